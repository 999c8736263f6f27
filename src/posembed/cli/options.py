"""Commands built from settings: every field is an option or an argument, read as text and converted by its type."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import rich_click as click

from posembed.errors import ArgumentError
from posembed.measure.processes import launched
from posembed.settings import Part, Settings, Sides, bare, expected, flag, item_of, option, options, types_of

click.rich_click.TEXT_MARKUP = "rich"
NOT_DIVIDED = "start it without accelerate launch"
METAVARS = {int: "N", float: "X", Path: "PATH", str: "TEXT"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Printing(Settings):
    """How a command prints its result."""

    json: bool = flag("Print JSON instead of text.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Values(Printing):
    """How a command prints what it measured."""

    csv: bool = flag("Print every measured value as CSV instead of text, with the columns of frame() in Python.")


def print_measured(found: Any, shape: str) -> None:
    """Prints a result that has ``to_dict`` and ``frame``. shape: "json" or "csv"."""
    print(json.dumps(found.to_dict(), indent=2) if shape == "json" else found.frame().to_csv(index=False).rstrip())


def shape_of(given: dict[str, Any]) -> str:
    """Removes ``json`` and ``csv`` from ``given``. Returns "json", "csv" or "" for text. A dry run refuses csv."""
    shapes = [shape for shape in ("json", "csv") if given.pop(shape, False)]
    if len(shapes) > 1:
        raise ArgumentError("expected one of --json and --csv; got both")
    if shapes == ["csv"] and given.get("dry_run"):
        raise ArgumentError("--csv prints measured values, and a dry run measures none; leave one out")
    return "".join(shapes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planning(Settings):
    """Whether a command only prints its plan."""

    dry_run: bool = flag("Print what would be done, its sizes and estimated time, and stop.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Paging(Settings):
    """The page that a command also writes."""

    report: Path | None = option("Also write an HTML page with figures to this file.", default=None)


def command(
    name: str,
    run: Callable[[dict[str, Any]], int | None],
    *kinds: type[Settings],
    help: str | None = None,
    defaults: Mapping[str, Any] | None = None,
    panels: str = "{}",
    several: str = NOT_DIVIDED,
) -> click.RichCommand:
    """Returns a command whose options are the fields of ``kinds``. ``run`` receives the given values by name, and may
    return an exit code.

    ``help``: its description; by default the docstring of ``run``. ``defaults``: defaults that only the help shows.
    ``panels``: a template for the headings of option groups. ``several``: the advice if the command is started in
    several processes at once; "" if it divides its work between them.
    """
    shown = dict(defaults or {})
    known = {
        field: parameter_of(made, types_of(kind)[field], shown.get(field, made.default), panels, kind)
        for kind in kinds
        for field, made in options(kind).items()
    }

    types = {field: made for kind in kinds for field, made in types_of(kind).items()}

    def callback(**given: Any) -> int | None:
        if several and launched().count > 1:
            raise ArgumentError(f"posembed {name} is not divided between processes; {several}")
        for field, value in given.items():  # as a path, empty text would be the current folder
            if "" in (value if isinstance(value, tuple) else (value,)):
                words = "a value" if dataclasses.is_dataclass(bare(types[field])) else expected(types[field])
                raise ArgumentError(f"{field}: expected {words}; got ''")
        return run({field: value for field, value in given.items() if value not in (None, ())})

    return click.RichCommand(name=name, params=[*known.values()], callback=callback, help=help or run.__doc__)


def parameter_of(
    field: dataclasses.Field[Any], kind: Any, default: Any, panels: str, settings: type[Settings]
) -> click.Parameter:
    """Returns the option or the argument of a field of ``settings``."""
    about, spelled, only = field.metadata, field.name.replace("_", "-"), bare(kind)
    item = item_of(kind)
    if metavar := about.get("metavar"):
        return click.RichArgument(
            [field.name], metavar=metavar, nargs=1 if item is None else -1, required=True, help=about["help"]
        )
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    hidden = default is dataclasses.MISSING or default is None or default is False or default == ""
    belongs, notes = settings.belongs if issubclass(settings, Part) else "", list[str]()
    required = default is field.default_factory is dataclasses.MISSING
    if belongs or required:
        notes.append(f"{'required' if required else 'only'}{belongs and f' for {belongs}'}")
    notes += [] if hidden else [f"default: {default}"]
    help = f"{about['help']} [dim]\\[{'; '.join(notes)}][/dim]" if notes else about["help"]
    more: dict[str, Any] = {
        "help": help,
        "default": None,
        "panel": panels.format(about["panel"]) if about["panel"] else "Options",
    }
    if only is bool:
        names = [f"--{spelled}" if "flag" in about else f"--{spelled}/--no-{spelled}"]
        return click.RichOption(names, is_flag=True, **more)
    word = "HxW" if kind is Sides else METAVARS.get(only, "TEXT") if item is None else METAVARS.get(bare(item), "TEXT")
    repeated = item is not None and bare(item) is Path
    if item is not None and not repeated:
        word = f"{'NAME' if word == 'TEXT' else word},..."
    return click.RichOption([f"--{spelled}", field.name], metavar=word, multiple=repeated, **more)
