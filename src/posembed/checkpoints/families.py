"""Looks up a table in ``families.json``: one row per table of a model type, written by ``tools/census.py``.

A row is used only if it agrees with the table of the built model: the model's type and class, the table's name, the
fields that size it, its axes, its other rows, and the settings that differ from the type's defaults. The row says which
size changes were verified by running models before and after them (``shown``), or why the table is not resized
(``why``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

from torch import nn

from posembed.checkpoints.choose import Target
from posembed.checkpoints.position_tables import Config, Found, PositionTable, TableSize
from posembed.checkpoints.sources.configs import models_around, source_of
from posembed.errors import CheckpointError
from posembed.tables.families import family_of
from posembed.tables.layout import IMAGE_AXES, TableLayout

Row = Mapping[str, Any]

# Settings that change no position: activations, dropout, tokens, labels, what is returned or trained, first weights.
NO_POSITIONS = re.compile(
    r"^_|(^|_)(act|activation|afn|dtype|version|architectures|torchscript)(_|$)|_fn$|name$|id2label|label2id|num_labels|"
    r"problem_type|task_specific|finetuning|drop|classif|summary|init|loss|eps$|token_id|tie_|use_cache|vocab_size|"
    r"stage_names|^out_(features|indices)$|output_|return_|attn_implementation|chunk_size_feed_forward|^prefix$|^freeze_|"
    r"^((qkv|attention|mlp|use|enable|head|lm_head)_)?bias$"
)
NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")  # of a layer


@cache
def rows_by_type() -> Mapping[str, list[Row]]:
    rows: dict[str, list[Row]] = {}
    for row in json.loads(files("posembed.checkpoints").joinpath("families.json").read_text(encoding="utf-8")):
        rows.setdefault(row["type"], []).append(row)
    return rows


def known(found: Found, target: Target, config: Config) -> str | None:
    """Returns the method by which the model itself interpolates its table, as families.json says; "" for none or the
    default. None if runs must prove the change. Refuses a change that is known to be wrong.

    Limited differences are always proved, because what the model computes beyond their limits depends on both limits.
    """
    rows = []
    for size in target.changes:
        row = row_of(found, size.table, config)
        if row is not None and "why" in row:
            raise CheckpointError(f"{size.table.key}: not resized: {row['why']}")
        if row is None or change_of(size) not in row["shown"] or target.limited is not None:
            return None
        rows.append(row)
    return str(rows[0].get("own", ""))


def row_of(found: Found, table: PositionTable, config: Config) -> Row | None:
    """Returns the row of families.json that agrees with a table and the installed version of transformers, or None."""
    if found.model is None:
        return row_without_model(table, config)
    if not source_of(found.config).has_rows:
        return None
    facts = facts_of(found.model, table)
    here = rows_at(facts["type"], facts["model"], facts["table"])
    refused = [row for row in here if "why" in row]
    if here and refused == here:  # with all settings
        return here[0]
    return next((row for row in here if facts == {name: row[name] for name in facts} and is_current(row)), None)


def row_without_model(table: PositionTable, config: Config) -> Row | None:
    """Returns the row of a listed table without building the model, or None. Only rows for default settings count."""
    rows = rows_by_type().get(str(config.get("model_type")), [])
    around = rows_around(table.layout, config)
    facts = {"sizes": [field.path[-1] for field in table.fields], "kind": table.kind, "rows": around, "with": {}}
    same = [row for row in rows if table.key.endswith(row["table"]) and facts.items() <= row.items()]
    current = all("shown" in row and is_current(row) for row in same)
    return same[0] if same and current and table.found_by == "family" else None


def explained(model: nn.Module) -> dict[str, Row]:
    """Returns, by parameter name, the rows of tables that no config field resizes. Each row says why."""
    found = (
        (name, next((row for row in rows_for(model, name) if not row["sizes"]), None)) for name in model.state_dict()
    )
    return {name: row for name, row in found if row is not None}


def reason_without_table(model: nn.Module) -> str:
    """Returns why a model type without a table needs no resize, if a row says so; "" otherwise."""
    config: Any = model.config
    return next((str(row["why"]) for row in rows_at(config.model_type, type(model).__name__, "")), "")


def rows_at(kind: str, model: str, table: str) -> list[Row]:
    """Returns the rows of a table, one for each combination of settings that was seen."""
    return [row for row in rows_by_type().get(kind, []) if (row["model"], row["table"]) == (model, table)]


def rows_for(model: nn.Module, name: str) -> Iterator[Row]:
    """Yields the rows of a parameter for each model that contains it, for any settings."""
    for path in models_around(model, name) if source_of(model.config).has_rows else ():
        yield from rows_at(*place_of(model, name, path))


def rows_said(model: nn.Module, name: str) -> set[str]:
    """Returns what current rows of families.json say about a table's other rows, such as "2 before, 0 after"."""
    return {row["rows"] for row in rows_for(model, name) if "rows" in row and is_current(row)}


def is_current(row: Row) -> bool:
    """Returns whether the row was recorded with the installed version of transformers (major and minor)."""
    try:
        installed = version("transformers")
    except PackageNotFoundError:
        return False
    return ".".join(installed.split(".")[:2]) in row["seen"]


def place_of(model: nn.Module, name: str, path: str) -> tuple[str, str, str]:
    """Returns the type and class of the model at a path, and the parameter's name there, with N for layer numbers."""
    part: Any = model.get_submodule(path)
    return part.config.model_type, type(part).__name__, NUMBER.sub("N", name.removeprefix(f"{path}."))


def facts_of(model: nn.Module, table: PositionTable) -> dict[str, Any]:
    """Returns the facts that identify a table's row. They are the same for every size of a model type."""
    path = next(iter(models_around(model, table.parameter)))
    config: Any = model.get_submodule(path).config
    kind, owner, name = place_of(model, table.parameter, path)
    return {
        "type": kind,
        "model": owner,
        "table": name,
        "sizes": [field.path[-1] for field in table.fields],
        "kind": table.kind,
        "axes": axes_of(table.layout),
        "rows": rows_around(table.layout, {**config.to_dict(), "model_type": kind}),
        "with": settings_of(config),
    }


def axes_of(layout: TableLayout) -> str:
    """Returns the axes of a table in words, such as "height, width", and the dimensions that hold them, if stated."""
    kinds = {(False, True): "", (True, True): "differences of ", (True, False): "distances of "}
    axes = ", ".join(f"{kinds[axis.relative, axis.signed]}{axis.name}" for axis in layout.axes) or "positions"
    stored = {f"in dimensions {', '.join(map(str, layout.dims))}": layout.dims, "in columns": layout.columns}
    return " ".join([axes, *(words for words, given in stored.items() if given)])


def rows_around(layout: TableLayout, config: Config) -> str:
    """Returns the numbers of rows before and after the positions, in words: "2 before, 0 after"."""
    padding, before = config.get("pad_token_id"), str(layout.front)
    if family_of(config).after_padding and type(padding) is int and layout.front == padding + 1:
        before = "pad_token_id + 1"
    return rows_in_words(before, layout.tail)


def rows_in_words(before: int | str, after: int) -> str:
    return f"{before} before, {after} after"


def settings_of(config: Any) -> dict[str, Any]:
    """Returns the settings of a transformers config that differ from the defaults of its class, except sizes."""
    try:
        default = type(config)()
    except Exception:  # it has no defaults: every setting counts
        return switches(config.to_dict())
    own, usual = switches(config.to_dict()), switches(default.to_dict())
    return {name: own.get(name) for name in sorted(own.keys() | usual.keys()) if own.get(name) != usual.get(name)}


def switches(config: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Returns the settings of a config that are not sizes: strings, flags, and whether a number is positive."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if NO_POSITIONS.search(str(name)):
            continue
        if isinstance(value, Mapping):
            found |= switches(value, f"{above}{name}.")
        elif isinstance(value, list | tuple):
            found[above + name] = sorted({each for each in value if isinstance(each, str)})
        elif type(value) is int:
            found[above + name] = value if value <= 0 else "a number"
        elif value is None or isinstance(value, str | bool):
            found[above + name] = value
    return {name: value for name, value in found.items() if value != []}


def change_of(size: TableSize) -> str:
    """Returns the kind of a size change: "larger" or "smaller" or, for images, "square" or "oblong"."""
    sides = [axis.size for axis in size.layout.axes if axis.name in IMAGE_AXES]
    if len(sides) == 2 and len(size.layout.axes) == 2:
        return "square" if sides[0] == sides[1] else "oblong"
    return "larger" if size.length > size.table.length else "smaller"
