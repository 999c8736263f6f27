"""What the census found out about the tables of a model: rows of src/posembed/checkpoints/families.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import transformers
from census_own import own_method

from posembed.checkpoints.choose import NewSize
from posembed.checkpoints.families import change_of, facts_of
from posembed.checkpoints.find import find_tables
from posembed.checkpoints.plan import plan_edit
from posembed.checkpoints.sources.configs import build_on_meta, config_object
from posembed.errors import PosEmbedError
from posembed.modelfiles.checkpoint import open_checkpoint

FILE = Path(__file__).parents[1] / "src" / "posembed" / "checkpoints" / "families.json"
FACTS = ("type", "model", "table", "sizes", "kind", "axes", "rows", "with")
KINDS = ("larger", "smaller", "square", "oblong")


def rows_of(source: Path, calls: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields a row for each table of a model in a folder. calls: what the census tried, and how it ended."""
    checkpoint = open_checkpoint(source)
    config, tensors = checkpoint.config or {}, checkpoint.tensors
    found = find_tables(config, tensors)
    assert found.model is not None
    shown: dict[str, dict[str, Any]] = {}
    for call in calls:
        if call["outcome"] != "resized" or call["wrong"]:
            continue
        for options in (call["options"], *other_sizes(call["options"])):
            try:
                size = NewSize(**{name: each for name, each in options.items() if name != "table"})
                edit = plan_edit(config, tensors, size, table=options.get("table"), prove=True, found=found)
            except PosEmbedError:
                continue
            if edit.target.limited is not None:  # always proved
                continue
            own = own_method(found.model, build_on_meta(config_object(edit.config or config)), edit.target)
            for size in edit.target.changes:
                about = shown.setdefault(size.table.key, {"shown": []})
                if (kind := change_of(size)) not in about["shown"]:
                    about["shown"].append(kind)
                about |= {"own": own} if own else {}
    for table in found.understood:
        yield facts_of(found.model, table) | shown.get(table.key, {})


def other_sizes(options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields sizes of other kinds than one that the census tried: smaller ones, and images that are not square."""
    for name, size in options.items():
        if name in ("length", "frames", "buckets"):
            yield {**options, name: size * 3 // 8 if name != "buckets" else size // 4 * 2}
        elif name in ("image_size", "grid") and isinstance(size, list | tuple):
            yield {**options, name: (size[0], 2 * size[1])}
            yield {**options, name: (size[0], size[1] // 2 * 3)}


def write_families(results: Sequence[Mapping[str, Any]]) -> None:
    """Adds the rows of these results to families.json. Rows of other versions, and refusals, stay."""
    rows = {identity(row): row for row in json.loads(FILE.read_text(encoding="utf-8"))}
    version = ".".join(transformers.__version__.split(".")[:2])
    for row in (row for result in results for row in result.get("rows", ()) if "shown" in row):
        new = {name: row[name] for name in (*FACTS, "shown", "own") if name in row}
        held = rows.setdefault(identity(row), {**new, "seen": []})
        held["shown"] = [kind for kind in KINDS if kind in (*held["shown"], *new["shown"])]
        held["seen"] = sorted({*held["seen"], version})
    lines = (json.dumps(row, ensure_ascii=False) for row in sorted(rows.values(), key=identity))
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def identity(row: Mapping[str, Any]) -> str:
    return json.dumps([row.get(name) for name in (FACTS if "shown" in row else FACTS[:3])])
