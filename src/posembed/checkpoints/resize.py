"""``posembed.resize_checkpoint``: writes a checkpoint whose position tables have another length or grid."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from posembed._version import __version__
from posembed.arguments import checks_arguments
from posembed.checkpoints.choose import NewSize
from posembed.checkpoints.native.beside import Beside, changes_beside
from posembed.checkpoints.native.files import tables_in, why_no_table
from posembed.checkpoints.native.stated import AS_FOUND, Rows, refuse_unused
from posembed.checkpoints.plan import RESAMPLED, Edit, TableChange, plan_edit
from posembed.checkpoints.position_tables import Size, Tensors
from posembed.checkpoints.settings import TOKENIZER, Setting, changed_settings, unlike_the_image, with_settings
from posembed.checkpoints.sources.model_types import open_model
from posembed.errors import ArgumentError
from posembed.modelfiles.checkpoint import Checkpoint
from posembed.modelfiles.copies import keeps_form, whole_copy
from posembed.modelfiles.folders import RECORD, other_files
from posembed.modelfiles.json_files import LargeJson, encodable, json_text, read_json
from posembed.modelfiles.raw_files import open_file
from posembed.modelfiles.safetensors import tensor_sha256
from posembed.settings import Amount
from posembed.tables.modules import is_table_name, known_as_table

MODEL_CARD = "README.md"
NOT_TRAINED = "New rows are computed, not trained: evaluate the model at the new length before you rely on it."


@dataclass(frozen=True, eq=False, repr=False)
class Resize:
    """The changes of a resize, written or planned.

    edit: the changes of tensors and config. settings: the changed settings, in JSON files or in the file of weights.
    left_out: why each file or object is not copied, by its name. record: the entry in posembed.json. beside: what else
    changes in the file of weights.
    """

    edit: Edit
    settings: tuple[Setting, ...]
    left_out: Mapping[str, str]
    record: dict[str, Any]
    beside: Beside = field(default_factory=Beside)

    def __repr__(self) -> str:
        """Returns one line per change, so that the text can be searched."""
        left_out = (f"{name}: not copied, because {why}" for name, why in self.left_out.items())
        copies = (f"{name}: {each!r}" for name, edit in self.beside.copies.items() for each in edit.tables)
        changes = (*self.edit.tables, *self.edit.others, *self.settings)
        return "\n".join([*map(repr, changes), *copies, *self.edit.remarks, *left_out, *self.beside.remarks])


@checks_arguments
def resize_checkpoint(
    source: str | Path,
    out: str | Path,
    *,
    length: int | None = None,
    image_size: int | Size | None = None,
    patch_size: int | Size | None = None,
    grid: Size | None = None,
    window: int | Size | None = None,
    frames: int | None = None,
    queries: int | None = None,
    buckets: int | None = None,
    method: str | None = None,
    table: str | None = None,
    reserved: Amount | None = None,
    tail: Amount | None = None,
    old_grid: Size | tuple[int, int, int] | None = None,
    optimizer: Literal["keep", "drop"] | None = None,
    keep: Sequence[str] | None = None,
    model_type: str | None = None,
    prove: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
) -> Resize:
    """Copies a checkpoint, resizes its position tables, and changes everything that depends on their length.

    The table, the tensors that depend on it, the config and the settings files change together, or nothing changes. All
    other tensors and files are copied byte for byte. ``source`` is never changed, and ``out`` is complete or absent. If
    ``source`` and ``out`` are files of ``torch.save``, or folders of ``torch.distributed.checkpoint``, everything
    besides the weights is kept too; pickles in other folders become safetensors.

    Args:
        source: a folder, a hub name, or one file of weights: safetensors, or written by ``torch.save``. The options
            "for one file" below also apply to a folder of ``torch.distributed.checkpoint``.
        out: a new folder, or a new file if ``source`` is one. Its extension sets the format (``.pt``, ``.pth``,
            ``.pyth``, ``.ckpt``, ``.tar``, ``.bin`` or ``.safetensors``, which holds tensors only).
        length: for tables of sequences, the new number of positions, not counting reserved rows.
        image_size: for image tables, the new side or (height, width) in pixels.
        patch_size: for image tables, the new side or (height, width) of a patch in pixels. The table follows the new
            grid, and the weights that embed a patch are resampled. It can be given together with ``image_size``.
        grid: for image tables, the new (height, width) in patches.
        window: for tables of relative positions in a window (Swin), the new side or (height, width) in patches.
        frames: for tables with a time axis, the new number of frames, as the config counts them. If ``source`` is one
            file, it can be given together with ``image_size`` or ``grid``.
        queries: the new number of object queries, as in DETR. The first queries are kept.
        buckets: for tables of distance buckets, as in T5, the new number of buckets.
        method: a method of ``posembed.resize_table``. Default: the default of that function or, for 2-D relative
            positions in models of timm, timm's own.
        table: the key of the table, required if there are several tables, or if posembed is not sure which it is.
        reserved, tail: for one file, the numbers of rows before and after the positions. Default: the numbers in the
            settings of the file, or 0.
        old_grid: for one file, the current (height, width) of a table whose grid is not square, or (time, height,
            width).
        optimizer: for one file, what happens to the optimizer's state. "keep", the default, resizes the table's
            moments: rows that stay keep their moments, and all other rows start anew. If the state does not show which
            moments are the table's, the state is left out. "drop" always leaves the state out.
        keep: for one file, settings that must not change, because they equal the old length by chance. Use the names in
            the report of the changes.
        model_type: for a folder, the type of the model, such as "bert", if neither config.json nor the keys show it.
            It is written to the new config.json, because transformers needs it to choose the model's class.
        prove: whether to check the resize by running small copies of the model, before and after it, even if the type
            of the model is known. By default, only models of an unknown type are checked.
        overwrite: whether to replace ``out`` if it is the unchanged output of an earlier resize.
        dry_run: whether to only report the changes, without writing.

    Raises:
        ArgumentError: a size or a method cannot be used.
        CheckpointError: files cannot be read, understood or written. The disk is then unchanged.

    Examples:
        >>> from transformers import BertConfig, BertModel
        >>> from posembed import resize_checkpoint
        >>> sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> BertModel(BertConfig(**sizes, intermediate_size=16)).save_pretrained("my-model")
        >>> resized = resize_checkpoint("my-model", "my-model-2048", length=2048)
        >>> resized.edit.config["max_position_embeddings"]
        2048
        >>> BertModel.from_pretrained("my-model-2048").embeddings.position_embeddings
        Embedding(2048, 32)
    """
    checkpoint = open_model(source, model_type)
    name = encodable(checkpoint.root.resolve().name if Path(source).exists() else str(source))
    size = NewSize(length=length, image_size=image_size, patch_size=patch_size, grid=grid, window=window,
                   frames=frames, queries=queries, buckets=buckets)  # fmt: skip
    rows, whole = Rows(reserved, tail, old_grid), keeps_form(checkpoint, Path(out))
    if checkpoint.folder is not None and rows != AS_FOUND:
        raise ArgumentError(f"--reserved, --tail and --old-grid are for one file; the config of {source} says it")
    if optimizer is not None and not whole:
        forms = "a file of torch.save that is written as one, to OUT.pt, or a folder of torch.distributed.checkpoint"
        raise ArgumentError(f"--optimizer (optimizer=...) is for {forms}, to a folder")
    if keep and checkpoint.folder is not None:
        raise ArgumentError(f"--keep (keep=...) is for one file; {source} is a folder")
    how: dict[str, Any] = {"method": method, "table": table, "prove": prove}
    how |= {"rows": rows, "whole": whole, "optimizer": optimizer or "keep", "keep": keep or ()}
    if dry_run:
        return plan_resize(checkpoint, name, size, **how)
    with whole_copy(checkpoint, Path(out), overwrite=overwrite) as copy:
        resize = plan_resize(checkpoint, name, size, **how)
        copy.write(
            tensors={**resize.edit.tensors, **resize.beside.numbers},
            documents=new_documents(checkpoint, resize),
            metadata={"posembed": json_text(with_record(checkpoint, resize), one_line=True)},
            beside=resize.beside.values,
        )
    return resize


def plan_resize(
    checkpoint: Checkpoint,
    name: str,
    size: NewSize,
    *,
    rows: Rows = AS_FOUND,
    optimizer: str = "keep",
    keep: Sequence[str] = (),
    whole: bool = False,
    **how: Any,
) -> Resize:
    _, others = other_files(checkpoint)  # first, because it refuses links before their targets are read
    beside, left_out = Beside(), dict.fromkeys(others, "it may hold the old table")
    if checkpoint.folder is None:
        (file,) = checkpoint.weights

        def plan(tensors: Tensors) -> Edit:
            on_grid = size.length is None if size.length or size.grid or size.image_size else None
            found = tables_in(file, tensors, rows, on_grid=on_grid, named=how["table"] or "")
            edit = plan_edit(None, tensors, size, **how, found=found)
            refuse_unused(rows, found.stated or set(), (change.key for change in edit.tables))
            return edit

        named = how["table"] or ""
        given = named in checkpoint.tensors and not is_table_name(named) and not why_no_table(named, checkpoint.tensors)
        with known_as_table(named if given else ""):
            edit = plan(checkpoint.tensors)
            beside = changes_beside(file, size, edit, plan, optimizer if whole else None, keep)
        left_out |= beside.dropped
    else:
        edit = plan_edit(checkpoint.config, checkpoint.tensors, size, **how)
    settings = changed_settings(checkpoint, edit)
    edit = replace(edit, checks=(*edit.checks, *unlike_the_image(checkpoint, edit, settings)))
    settings += beside.settings
    for file in () if whole else checkpoint.weights:
        entries = [] if file.tree is None else file.tree.entries
        left_out |= dict.fromkeys(
            (f"{file.path.name}: {entry}" for entry in entries), "it is not a tensor of the model"
        )
    return Resize(edit, settings, left_out, new_record(name, edit, settings), beside)


def new_documents(checkpoint: Checkpoint, resize: Resize) -> dict[Path, str]:
    if checkpoint.folder is None:
        return {}
    inside = checkpoint.folder.relative_to(checkpoint.root)
    documents = {}
    names = {setting.file for setting in resize.settings} | ({checkpoint.config_name} if resize.edit.config else set())
    for name in names:
        changes = [setting for setting in resize.settings if setting.file == name]
        if Path(name).name == TOKENIZER:
            tokenizer = LargeJson(checkpoint.folder / name)
            for change in changes:
                tokenizer.replace(*change.path, value=change.after)
            documents[inside / name] = tokenizer.text
            continue
        settings = (name == checkpoint.config_name and resize.edit.config) or checkpoint.settings(name)
        with open_file(checkpoint.folder / name) as file:
            one_line = b"\n" not in file.read().strip()
        documents[inside / name] = json_text(with_settings(settings, changes), one_line=one_line)
    documents[Path(RECORD)] = json_text(with_record(checkpoint, resize))
    card = checkpoint.root / MODEL_CARD
    if card.is_file():
        with open_file(card) as file:  # bytes that are not UTF-8 stay unchanged
            text = file.read().decode("utf-8", "surrogateescape")
        documents[Path(MODEL_CARD)] = text.rstrip("\n") + "\n\n" + card_paragraph(resize)
    return documents


def with_record(checkpoint: Checkpoint, resize: Resize) -> dict[str, Any]:
    """Returns the record of earlier resizes, from posembed.json or a file's metadata, with this resize added."""
    record: Any = {}
    if checkpoint.folder is None:
        with suppress(ValueError, RecursionError):  # metadata from another program
            record = json.loads(checkpoint.weights[0].metadata.get("posembed", "{}"))
    elif (path := checkpoint.root / RECORD).exists():
        record = read_json(path)
    record = record if isinstance(record, dict) else {}
    earlier = record.get("resizes")
    return {**record, "resizes": [*(earlier if isinstance(earlier, list) else []), resize.record]}


def new_record(source: str, edit: Edit, settings: tuple[Setting, ...]) -> dict[str, Any]:
    """Returns the entry for posembed.json: time, lengths, methods, versions and hashes of changed tensors."""
    before, after = edit.target.length
    versions = {"posembed": __version__}
    for package in ("torch", "timm" if "architecture" in (edit.config or {}) else "transformers"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "source": source,
        "time": int(time.time()) // 2 * 2,
        "from": before,
        "to": after,
        "config_field": str(edit.target.field) if edit.target.field and edit.target.field.stated else None,
        "versions": versions,
        "tensors": [
            {
                "key": change.key,
                "method": change.how,
                "shape": [list(change.before.shape), None if change.after is None else list(change.after.shape)],
                "sha256": [None if at is None else tensor_sha256(at) for at in (change.before, change.after)],
                **({f"{'leading_' * change.leading}rows_kept": change.kept} if isinstance(change, TableChange) else {}),
            }
            for change in (*edit.tables, *edit.others)
        ],
        "settings": [
            {"file": setting.file, "field": ".".join(setting.path), "value": [setting.before, setting.after]}
            for setting in settings
        ],
    }


def card_paragraph(resize: Resize) -> str:
    before, after, unit = resize.edit.target.sizes
    lines = [f"## Position table resized from {before} to {after} {unit}", ""]
    for change, size in zip(resize.edit.tables, resize.edit.target.changes, strict=True):
        rows = f"{size.table.rows} to {size.layout.rows(size.length)} rows"
        unchanged = f"Unchanged rows{' at the start' * change.leading}: {change.kept}"
        lines.append(f"`{change.key}`: resized from {rows} by {change.how}. {unchanged}.")
    lines += [f"`{change.key}`: {change.how}." for change in resize.edit.others if change.how == RESAMPLED]
    lines.append(NOT_TRAINED)
    lines.append(f"Written by posembed {__version__} from {resize.record['source']}; see `{RECORD}` for details.")
    return "\n".join(lines) + "\n"
