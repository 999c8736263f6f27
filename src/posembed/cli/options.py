"""Options of commands, built from the fields of settings.

Most defaults depend on the preset, which is itself an option, so every setting is optional here. A library that fills a
dataclass from the command line would require all settings, so this module passes the fields to Typer instead.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from posembed.errors import ArgumentError
from posembed.lab.runs.spec import options


def path(text: str | Path) -> Path:
    """Parses a path. Refuses an empty text, which may come from an unset variable; Path("") is the current folder."""
    if not str(text):
        raise typer.BadParameter("expected a path, got an empty text; is the variable that holds it unset?")
    return Path(text)


PATH: dict[str, Any] = {"parser": path, "metavar": "PATH"}
"""The Typer settings for a path."""
READ_AS: dict[Any, dict[str, Any]] = {
    Path: PATH,
    tuple[int, int]: {"parser": str, "metavar": "HxW"},
    tuple[int, ...]: {"parser": str, "metavar": "N,N,..."},
    tuple[float, ...]: {"parser": str, "metavar": "X,X,..."},
    tuple[str, ...]: {"parser": str, "metavar": "NAME,NAME,..."},
}
"""The Typer settings for types that Typer does not support. ``take_options`` splits texts at their commas."""
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
AS_JSON = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)


def parameter(
    name: str, kind: Any, help: str, *, default: Any = None, shown: str | None = None, panel: str | None = None
) -> inspect.Parameter:
    """Returns a keyword parameter that Typer turns into an option. A flag without a default also has --no-NAME.

    ``shown``: the default to show in the help.
    """
    if typing.get_origin(kind) in (types.UnionType, typing.Union):  # T | None
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    spelled = name.replace("_", "-")
    read_as = READ_AS.get(kind, {})
    option = typer.Option(
        f"--{spelled}/--no-{spelled}" if kind is bool and default is None else f"--{spelled}",
        help=help if shown is None else f"{help} [dim]\\[default: {shown}][/dim]",
        rich_help_panel=panel,
        show_default=default is not None,
        **read_as,
    )
    annotation: Any = Annotated[Optional[str if read_as else kind], option]  # noqa: UP045
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def parameters_of(
    settings: type[Any],
    *,
    defaults: Mapping[str, Any] | None = None,
    panels: str = "{}",
    kinds: Mapping[str, Any] | None = None,
) -> list[inspect.Parameter]:
    """Returns one parameter per field made by ``option``. None means that the option was not given and the field's
    default applies. ``defaults``: default values for the help. ``kinds``: types that replace the fields' types."""
    hints = typing.get_type_hints(settings) | dict(kinds or {})
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


def with_parameters(function: Callable[..., None], parameters: list[inspect.Parameter]) -> Callable[..., None]:
    """Gives a function with **options the signature that Typer needs."""
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return function


def sides(text: str, option: str, *, square: bool = True) -> tuple[int, int]:
    """Parses HEIGHTxWIDTH: "384x512" -> (384, 512). With ``square``, "384" means (384, 384)."""
    match = re.fullmatch(r"(\d{1,6})(?:x(\d{1,6}))?", text)
    if match is None or not (match[2] or square):
        raise ArgumentError(f"{option}: expected {'a number or ' * square}HEIGHTxWIDTH, such as 24x32; got {text!r}")
    return int(match[1]), int(match[2] or match[1])
