"""The folders that a fine-tuning writes: whether they may be written, and what is in them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from posembed._version import __version__
from posembed.checkpoints.resize import MODEL_CARD, NOT_TRAINED
from posembed.errors import ArgumentError, CheckpointError
from posembed.files import as_bytes, leftovers, longest_name, reason, remove, renamed
from posembed.measure.jobs import Store
from posembed.modelfiles.checkpoint import Checkpoint, open_checkpoint
from posembed.modelfiles.copies import RECORD, fingerprint, refuse_full_disk, refuse_unsafe_place, whole_copy
from posembed.modelfiles.folders import other_files
from posembed.modelfiles.json_files import json_text, read_json
from posembed.tuning.objectives import RESIZED
from posembed.tuning.settings import TRAINED, folder_of
from posembed.words import amount

if TYPE_CHECKING:
    from posembed.tuning.run import TunePlan

REMOVE = "choose another OUT, or remove it yourself"
COPIES = 3
"""Copies of the weights in a checkpoint of the Trainer: the weights, and two averages of AdamW."""


def beside(out: Path, length: int) -> Path:
    """Returns the folder of the checkpoint that is fine-tuned at its old length."""
    return out.with_name(f"{out.name}-at-{length}")


def refuse_before_reading(checkpoint: Checkpoint, out: Path, old_length: int) -> None:
    """Raises an error for places that cannot be written, before texts are read: see ``refuse_places`` for the rest."""
    places, store = (out, beside(out, old_length)), Store(folder_of(out), {}, own=["*"])
    long, longest = (len(os.fsencode(place.name)) for place in places)
    if (most := longest_name(out.parent) - longest + long) < long:
        raise ArgumentError(f"out: expected a name of at most {most} bytes; got {long}")
    if str(out) != as_bytes(str(out)).decode():
        raise ArgumentError(f"out: expected a path in UTF-8, in which safetensors can write; got {str(out)!a}")
    refuse_unsafe_place(checkpoint, out)
    store.refuse_foreign()
    for place in places if not store.begun else ():
        if os.path.lexists(place):
            raise CheckpointError(f"{place}: it exists; {REMOVE}")
    if not all(map(os.path.lexists, places)) and not os.access(out.parent, os.W_OK | os.X_OK):
        raise CheckpointError(
            f"{out}: {out.absolute().parent} cannot be written: permission denied; choose another OUT"
        )


def refuse_places(plan: TunePlan) -> None:
    """Raises CheckpointError if a folder to write exists, unless this fine-tuning wrote it."""
    for place in plan.places.values():
        refuse_unsafe_place(plan.original.checkpoint, place)
        if os.path.lexists(place) and not wrote(plan, place):
            raise CheckpointError(f"{place}: it exists; {REMOVE}")
    if plan.store.path.exists() and plan.store.path.stat().st_dev != plan.out.absolute().parent.stat().st_dev:
        raise CheckpointError(
            f"{plan.store.path} is on another disk than {plan.out}, to which the finished checkpoint is moved; "
            "move it beside OUT"
        )
    if not plan.store.begun:
        kept, _ = other_files(plan.original.checkpoint)
        copies = 1 + len(plan.lengths) * (1 + plan.settings.seeds) + 2 * COPIES
        refuse_full_disk(plan.original.checkpoint, kept, plan.out, copies=copies)


def wrote(plan: TunePlan, place: Path) -> bool:
    with suppress(CheckpointError, KeyError, IndexError, TypeError, AttributeError):
        last = read_json(place / RECORD)["tunings"][-1]
        settings = json.loads(json.dumps(plan.settings.to_dict()))
        return plan.store.begun and (last["hashes"], last["settings"]) == (plan.hashes, settings)
    return False


def refuse_changed(plan: TunePlan, place: Path) -> None:
    """Raises CheckpointError if a folder of the store has other files than this fine-tuning wrote there."""
    same = False
    with suppress(CheckpointError, KeyError, TypeError, AttributeError):
        same = (place.name == RESIZED or wrote(plan, place)) and all(
            (place / name).is_file() and fingerprint(place / name) == known
            for name, known in read_json(place / RECORD)["files"].items()
        )
    if not same:
        raise CheckpointError(
            f"{place}: its files are not those that this fine-tuning wrote; move it away, and repeat the command"
        )


def write(plan: TunePlan, which: str, place: Path) -> None:
    """Copies the fine-tuned checkpoint of the first seed to ``place``, through the store, so that a kill leaves no part
    of it beside ``place``."""
    whole = plan.store.path / f"whole-{which}"
    if os.path.lexists(whole) and not wrote(plan, whole):
        raise CheckpointError(f"{whole}: this fine-tuning did not write it; move it away, and repeat the command")
    for unfinished in (whole, *leftovers(whole)):
        remove(unfinished)
    checkpoint = open_checkpoint(plan.place(which, plan.settings.seed))
    with whole_copy(checkpoint, whole) as copy:
        copy.write(tensors={}, documents={})
    if os.path.lexists(place) or not renamed(whole, place):
        raise CheckpointError(
            f"{place}: something else was written there during the fine-tuning; move it away, and repeat the "
            f"command; it continues from {plan.store.path}"
        )


def documents(plan: TunePlan, which: str, checkpoint: Checkpoint, steps: int) -> Iterator[tuple[Path, str]]:
    """Yields the record of a fine-tuned checkpoint, and its model card, by path in the checkpoint."""
    path, length = checkpoint.root / RECORD, plan.lengths[which]
    record = read_json(path) if path.exists() else {}
    entry = {
        "source": Path(plan.source).name if Path(plan.source).exists() else str(plan.source),
        "time": int(time.time()),
        "length": length,
        "steps": steps,
        "settings": plan.settings.to_dict(),
        "hashes": plan.hashes,
        "posembed": __version__,
    }
    yield Path(RECORD), json_text({**record, "tunings": [*record.get("tunings", []), entry]})
    card = checkpoint.root / MODEL_CARD
    before = card.read_bytes().decode("utf-8", "surrogateescape") if card.is_file() else ""
    before = before.replace(f"{NOT_TRAINED}\n", "").rstrip("\n")
    before += "\n\n" if before else ""
    trained, at, of = TRAINED[plan.settings.train], f"{length:,} tokens", f"windows of {plan.settings.length:,} tokens"
    if length != plan.settings.length:  # without new rows
        trained = trained.removeprefix("the new rows, and ")
        of += f", read in pieces of {length:,}"
    if plan.original.kind == "images":
        at, of = f"{length} x {length} pixels", "images"
    yield (
        Path(MODEL_CARD),
        (
            f"{before}## Fine-tuned at {at}\n\n"
            f"Trained: {trained}; {amount(steps, 'step')} of {plan.settings.batch} {of}.\n"
            f"Written by posembed {__version__}; see `{RECORD}` for details.\n"
        ),
    )


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns errors of writing in the block into a CheckpointError that says how to continue."""
    try:
        yield
    except (OSError, SafetensorError, CheckpointError) as error:
        if isinstance(error, SafetensorError) and "os error" not in str(error):  # of reading
            raise CheckpointError(
                f"{folder}: a file in it is damaged ({error}); move the folder away, and repeat the command"
            ) from error
        cause, said = error, f"{folder}: cannot be written: {reason(error)}"
        if isinstance(error, CheckpointError):
            if not isinstance(error.__cause__, OSError):
                raise
            cause, said = error.__cause__, str(error)
        remedy = "make it writable" if isinstance(cause, PermissionError) else "make room"
        raise CheckpointError(f"{said}; {remedy}, and repeat the command; it continues from {folder}") from cause
