"""A checkpoint with longer, shorter or re-gridded position tables: ``posembed.resize_checkpoint``."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torch import Tensor

from posembed._version import __version__
from posembed.checkpoints.earlier import RECORD
from posembed.checkpoints.edit import Edit, TensorChange, plan_edit
from posembed.checkpoints.files import Checkpoint, open_checkpoint
from posembed.checkpoints.find import dotted
from posembed.checkpoints.json_files import LargeJson, encodable, json_text, read_json
from posembed.checkpoints.other_files import other_files
from posembed.checkpoints.settings import (
    TOKENIZER,
    Setting,
    audio_settings,
    config_settings,
    generation_settings,
    image_settings,
    length_settings,
    with_settings,
)
from posembed.checkpoints.tensor_files import open_file, tensor_bytes
from posembed.checkpoints.write import started_copy

MODEL_CARD = "README.md"


@dataclass(frozen=True, eq=False)
class Resize:
    """What a resize changes, or changed.

    edit: tensors and config. settings: values in the other files of settings, and those that repeat one in the
    config. left_out: files that the copy goes without. record: what posembed.json says of it.
    """

    source: str
    edit: Edit
    settings: tuple[Setting, ...]
    left_out: tuple[str, ...]
    record: dict[str, Any]


def resize_checkpoint(
    source: str | Path,
    out: str | Path,
    *,
    length: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    grid: tuple[int, int] | None = None,
    method: str | None = None,
    table: str | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
) -> Resize:
    """Copy a checkpoint with position tables of another length, and with everything that has to change with them.

    The table, the tensors that hang on it, the config and the settings beside it change together, or nothing does.
    Every other tensor and file is copied byte for byte; ``source`` is never written to, and ``out`` is whole or
    absent. Pickled weights are written as safetensors.

    Args:
        source: a folder, a hub name, or one file of weights (``.safetensors``, ``.bin``, ``.pt``).
        out: a place that is not there yet: a folder, or a ``.safetensors`` file where ``source`` is one file.
        length: how many positions a person may feed, whatever rows the table reserves beside them.
        image_size: for image tables, the new side, or (height, width), in pixels.
        grid: for image tables, the new (height, width) in patches.
        method: a name of ``posembed.resize_table``; its default otherwise.
        table: the key of the table that is meant, where there are several, or where one was only guessed.
        overwrite: replace ``out`` if it holds nothing but an earlier resize, unchanged.
        dry_run: write nothing; only say what would change.

    Raises:
        ArgumentError: a size or a method that cannot be used.
        CheckpointError: files that cannot be read, understood or written. The disk is then as it was.
    """
    checkpoint = open_checkpoint(source)
    name = encodable(checkpoint.root.name if Path(source).exists() else str(source))
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    arguments = {"length": length, "image_size": size, "grid": grid, "method": method, "table": table}
    if dry_run:
        return plan_resize(checkpoint, name, **arguments)
    with started_copy(checkpoint, Path(out), overwrite=overwrite) as copy:
        resize = plan_resize(checkpoint, name, **arguments)
        copy.finish(
            tensors=resize.edit.tensors,
            documents=new_documents(checkpoint, resize),
            metadata={"posembed": json_text(with_record(earlier_record(checkpoint), resize), one_line=True)},
        )
    return resize


def plan_resize(checkpoint: Checkpoint, name: str, **arguments: Any) -> Resize:
    """All that changes, with nothing written. arguments: as for ``plan_edit``."""
    others = other_files(checkpoint).left_out  # first: it refuses links before anything behind them is read
    edit = plan_edit(checkpoint.config, checkpoint.tensors, **arguments)
    settings = tuple(changed_settings(checkpoint, edit))
    beside = (f"{file.path.name}: {other}" for file in checkpoint.weights for other in file.others)
    return Resize(name, edit, settings, (*others, *beside), new_record(name, edit, settings))


def changed_settings(checkpoint: Checkpoint, edit: Edit) -> list[Setting]:
    target = edit.target
    settings = list(config_settings(checkpoint, target))
    if target.image_size is not None:
        settings += image_settings(checkpoint, *target.image_size, target.length)
    elif target.is_text:
        settings += length_settings(checkpoint, *target.length) if "encoder" in edit.sides else ()
        settings += generation_settings(checkpoint, *target.length) if "decoder" in edit.sides else ()
    else:
        settings += audio_settings(checkpoint, *target.length)
    return settings


def new_documents(checkpoint: Checkpoint, resize: Resize) -> dict[Path, str]:
    """Every text file that changes, whole, by its path inside the checkpoint."""
    if checkpoint.folder is None:
        return {}
    inside = checkpoint.folder.relative_to(checkpoint.root)
    documents = {}
    names = {setting.file for setting in resize.settings} | ({checkpoint.config_name} if resize.edit.config else set())
    for name in names:
        changes = [setting for setting in resize.settings if setting.file == name]
        if name == TOKENIZER:
            tokenizer = LargeJson(checkpoint.folder / name)
            for change in changes:
                tokenizer.replace(*change.path, value=change.after)
            documents[inside / name] = tokenizer.text
            continue
        settings = resize.edit.config if name == checkpoint.config_name else checkpoint.settings(name)
        with open_file(checkpoint.folder / name) as file:
            one_line = b"\n" not in file.read().strip()
        documents[inside / name] = json_text(with_settings(settings or {}, changes), one_line=one_line)
    documents[Path(RECORD)] = json_text(with_record(earlier_record(checkpoint), resize))
    card = checkpoint.root / MODEL_CARD
    if card.is_file():
        with open_file(card) as file:  # bytes that are no UTF-8 come out as they went in
            text = file.read().decode("utf-8", "surrogateescape")
        documents[Path(MODEL_CARD)] = text.rstrip("\n") + "\n\n" + card_paragraph(resize)
    return documents


def earlier_record(checkpoint: Checkpoint) -> dict[str, Any]:
    """What the checkpoint tells of its earlier resizes: in posembed.json, or in the metadata of a bare file."""
    if checkpoint.folder is not None:
        path = checkpoint.root / RECORD
        return dict(read_json(path)) if path.exists() else {}
    try:
        record = json.loads(checkpoint.weights[0].metadata.get("posembed", "{}"))
    except ValueError:  # not posembed's own
        return {}
    return record if isinstance(record, dict) else {}


def with_record(record: dict[str, Any], resize: Resize) -> dict[str, Any]:
    earlier = record.get("resizes")
    return {**record, "resizes": [*(earlier if isinstance(earlier, list) else []), resize.record]}


def new_record(source: str, edit: Edit, settings: tuple[Setting, ...]) -> dict[str, Any]:
    """What posembed.json keeps: time, from, to, method, versions, and changed tensors' hashes before and after."""
    before, after = edit.target.length
    field = edit.target.tables[0][0].config_field
    return {
        "source": source,
        "time": int(time.time()) // 2 * 2,
        "from": before,
        "to": after,
        "config_field": None if field is None else dotted(field),
        "versions": {name: found for name in ("posembed", "torch", "transformers") if (found := version_of(name))},
        "tensors": [
            {
                "key": change.key,
                "method": change.how,
                "shape": [list(change.before.shape), None if change.after is None else list(change.after.shape)],
                "sha256": [sha256(change.before), None if change.after is None else sha256(change.after)],
                **({"leading_rows_kept": change.kept} if change in edit.tables else {}),
            }
            for change in (*edit.tables, *edit.others)
        ],
        "settings": [
            {"file": setting.file, "field": dotted(setting.path), "value": [setting.before, setting.after]}
            for setting in settings
        ],
    }


def version_of(package: str) -> str | None:
    if package == "posembed":
        return __version__
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def sha256(tensor: Tensor) -> str:
    return hashlib.sha256(tensor_bytes(tensor)).hexdigest()


def card_paragraph(resize: Resize) -> str:
    """The paragraph at the end of the model card."""
    before, after = resize.edit.target.length
    lines = [f"## Position table resized from {before} to {after} positions", ""]
    for change in resize.edit.tables:
        lines.append(table_sentence(change))
    lines.append("New rows are computed, not trained; the quality at the new length is for an evaluation to say.")
    lines.append(f"Made with posembed {__version__} from {resize.source}; `{RECORD}` has the details.")
    return "\n".join(lines) + "\n"


def table_sentence(change: TensorChange) -> str:
    assert change.after is not None
    kept = f"; its first {change.kept} rows are unchanged" if change.kept else ""
    rows = f"{change.before.shape[-2]} to {change.after.shape[-2]} rows"
    return f"`{change.key}` went from {rows} by {change.how}{kept}."
