"""Options of a command from the fields of its settings, so that name, type, help and default exist once."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from posembed.lab.runs.spec import options

KINDS = {"int": int, "float": float, "bool": bool}
"""Fields with other types become options with a text, which the command parses."""


def with_fields(settings: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a command that takes ``**given``: one option per field that ``option`` made; None means not given."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [each for each in inspect.signature(command, eval_str=True).parameters.values() if each.name != "given"]
        fields = [_parameter(name, field) for name, field in options(settings).items()]
        parameters = [*fields, *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own)]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def _parameter(name: str, field: dataclasses.Field[Any]) -> inspect.Parameter:
    kind = KINDS.get(str(field.type).removesuffix(" | None"), str)
    text = field.metadata["help"]
    if field.default not in (None, False, dataclasses.MISSING):
        text += f" Default: {field.default}."
    asked = typer.Option(help=text, metavar="HxW" if str(field.type).startswith("Grid") else None)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, asked]
    )
