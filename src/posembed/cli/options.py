"""Options of commands, made from the fields of settings.

A preset decides most defaults, and it is itself an option. So every setting is optional here, and a library that fills
a dataclass from the command line would ask for all of them; these few lines give Typer the fields instead.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from posembed.lab.runs.spec import options, split_names


def folder(path: str | Path) -> Path:
    """Parses a folder. An empty name, as from an unset variable, is refused."""
    if not str(path):
        raise typer.BadParameter("expected a folder, got an empty name; write . for the current one")
    return Path(path)


def numbers(kind: type[int] | type[float], example: str) -> Callable[[str], tuple[Any, ...]]:
    """Returns a parser of numbers joined by commas."""

    def parse(text: str) -> tuple[Any, ...]:
        try:
            return tuple(kind(number) for number in split_names(text))
        except ValueError:
            what = "whole numbers" if kind is int else "numbers"
            raise typer.BadParameter(f"expected {what} joined by commas, such as {example}; got {text!r}") from None

    return parse


PARSERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    Path: (folder, "PATH"),
    tuple[int, ...]: (numbers(int, "128,256"), "N,N,..."),
    tuple[float, ...]: (numbers(float, "1,1.5"), "X,X,..."),
    tuple[str, ...]: (str, "NAME,NAME,..."),  # ``take_options`` splits it
}
"""How Typer reads the types it does not know: parser and metavar."""


def parameter(
    name: str,
    kind: Any,
    help: str,
    *,
    default: Any = None,
    shown: str | None = None,
    panel: str | None = None,
    with_no: bool = False,
) -> inspect.Parameter:
    """Returns a keyword parameter that Typer makes an option of. ``shown`` is the default that the help shows;
    ``with_no`` adds --no-NAME to a flag."""
    kind = optional_of(kind)
    parser, metavar = PARSERS.get(kind, (None, None))
    spelled = name.replace("_", "-")
    option = typer.Option(
        f"--{spelled}/--no-{spelled}" if with_no else f"--{spelled}",
        help=help if shown is None else f"{help} [dim]\\[default: {shown}][/dim]",
        rich_help_panel=panel,
        show_default=default is not None,
        parser=parser,
        metavar=metavar,
    )
    annotation: Any = Annotated[Optional[str if parser else kind], option]  # noqa: UP045
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def parameters_of(
    settings: type[Any], *, defaults: Mapping[str, Any] | None = None, panels: str = "{}"
) -> list[inspect.Parameter]:
    """Returns one parameter per field made by ``option``; None means not given, so that the settings' own default
    holds. ``defaults``: what the help shows, where that is not the field's default."""
    hints = typing.get_type_hints(settings)
    found = []
    for name, field in options(settings).items():
        own = None if field.default is dataclasses.MISSING else field.default
        shown = (defaults or {}).get(name, own or None)
        if isinstance(shown, tuple):
            shown = ",".join(map(str, shown))
        panel = field.metadata["panel"]
        found.append(
            parameter(
                name,
                hints[name],
                field.metadata["help"],
                shown=None if shown is None else str(shown),
                panel=panel and panels.format(panel),
            )
        )
    return found


def optional_of(kind: Any) -> Any:
    """Returns T for T | None, and any other type as it is."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return next(part for part in typing.get_args(kind) if part is not type(None))
    return kind


def with_parameters(function: Callable[..., None], parameters: list[inspect.Parameter]) -> Callable[..., None]:
    """Gives a function that takes **options the signature that Typer reads."""
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return function
