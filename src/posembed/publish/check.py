"""``posembed.check_checkpoint``: loads a checkpoint as its users will, and says what they will meet.

The loading code is the library's own. The limits are read from the files that state them, so that each number can be
found, and the model runs at its full length or image size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posembed.arguments import checks_arguments
from posembed.checkpoints.find import find_tables
from posembed.checkpoints.position_tables import PIXELS, Size, pair
from posembed.checkpoints.proof import floats_in, seeded_outputs, undisturbed
from posembed.checkpoints.proof_inputs import image_inputs, inputs_of, line_inputs, text_inputs
from posembed.checkpoints.settings import NO_LIMIT, length_settings, processor_sections, sides_of
from posembed.checkpoints.sources import config_object, quiet, source_of, takes_text
from posembed.errors import CheckpointError
from posembed.modelfiles.checkpoint import Checkpoint, open_checkpoint
from posembed.words import last_line, least

SHORT_TEXTS = (1, 8)
"""Tokens of the texts, beside the longest, whose answers are compared."""
FEW_TOKENS = 8
"""Tokens of the text for a model whose length no table limits."""


@dataclass(frozen=True)
class Limit:
    """A number of tokens, or an image size, that a file states. where: the file and the names that lead to it."""

    where: str
    value: int | Size

    def __repr__(self) -> str:
        value = self.value if isinstance(self.value, int) else "x".join(map(str, self.value))
        return f"  {value:>10}  {self.where}"


@dataclass(frozen=True, eq=False, repr=False)
class Check:
    """What users of a checkpoint will meet.

    loaded_by: the library and class that loaded it. line: the Python code that loads it. length: the number of tokens
    that its position table takes; None without one. limits: what its files say of its length and image size.
    works: what was shown. problems: what will fail or surprise, empty if nothing will.
    """

    source: str
    loaded_by: str
    line: str
    length: int | None
    limits: tuple[Limit, ...]
    works: tuple[str, ...]
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        return {**vars(self), "limits": [vars(limit) for limit in self.limits]}

    def __repr__(self) -> str:
        lines = [f"{self.source}: loaded by {self.loaded_by}", *map(repr, self.limits), *self.works]
        return "\n".join([*lines, *(f"! {each}" for each in self.problems), f"to load it: {self.line}"])


@checks_arguments
def check_checkpoint(source: str | Path, *, against: str | Path | None = None) -> Check:
    """Loads a checkpoint with the library that its users load it with, and runs it.

    It says whether all weights have their place, whether the limits in all files agree, whether the model runs at its
    full length, and whether old texts get the old answers.

    Args:
        source: a folder or a hub name of transformers, sentence-transformers or timm.
        against: the checkpoint that ``source`` was made from. Random texts within its length go through both models.

    Raises:
        CheckpointError: a checkpoint that cannot be read, or that no installed library loads.

    Examples:
        >>> from transformers import BertConfig, BertModel
        >>> from posembed import check_checkpoint, resize_checkpoint
        >>> sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> BertModel(BertConfig(**sizes, intermediate_size=16)).save_pretrained("my-model")
        >>> resized = resize_checkpoint("my-model", "my-model-2048", length=2048)
        >>> check_checkpoint("my-model-2048", against="my-model").problems
        ()
    """
    checkpoint = open_checkpoint(source)
    model, loaded_by, line, problems = load(checkpoint, str(source))
    lengths, image = sizes_of(checkpoint)
    length = least(*lengths)
    limits = tuple(limits_of(checkpoint, length, image))
    problems += [*disagreements(limits, length, image)]
    works: list[str] = []
    with undisturbed(), torch.no_grad():
        ran = run(model, lengths, image)
        if isinstance(ran, str):
            certain = takes_text(model) or image is not None  # the inputs of other models are only tried
            (problems if certain else works).append(f"it was not run{' at its full size' * certain}: {ran}")
        else:
            at, outputs = ran
            works.append(f"runs {at}")
            if not all(bool(each.isfinite().all()) for each in outputs):
                problems.append(f"NaN or infinity in its outputs {at}")
        if against is not None:
            compare(model, open_checkpoint(against), str(against), length, works, problems)
    return Check(str(source), loaded_by, line, length, limits, tuple(works), tuple(problems))


def load(checkpoint: Checkpoint, name: str) -> tuple[nn.Module, str, str, list[str]]:
    """Returns the model of a checkpoint, what loaded it, the code that does so, and the keys without a place."""
    known = None if checkpoint.folder is None else config_object(checkpoint.config or {})
    if checkpoint.folder is None or known is None:
        raise CheckpointError(
            f"{name}: no installed library loads it: expected a folder of transformers, sentence-transformers or timm; "
            "a project's own file is loaded by the project's own code"
        )
    source = source_of(known)
    try:
        with quiet():
            model, kind, call, unfit = source.load(checkpoint.folder, known)
            if (checkpoint.root / "modules.json").exists():
                if find_spec("sentence_transformers") is None:
                    raise CheckpointError("its users need sentence-transformers: pip install sentence-transformers")
                from sentence_transformers import SentenceTransformer

                SentenceTransformer(str(checkpoint.root), device="cpu", trust_remote_code=False)
                kind, call = "sentence_transformers.SentenceTransformer", "SentenceTransformer({folder!r})"
                unfit = {what: [key for key in keys if "pooler" not in key] for what, keys in unfit.items()}
    except CheckpointError:
        raise
    except Exception as error:  # each library raises its own errors
        raise CheckpointError(f"{name}: {source.library} cannot load it ({last_line(error)})") from error
    problems = [f"{what}: {', '.join(keys[:3])}{', ...' * (len(keys) > 3)}" for what, keys in unfit.items() if keys]
    return model.eval().float(), kind, call.format(folder=name), problems


def sizes_of(checkpoint: Checkpoint) -> tuple[list[int], Size | None]:
    """Returns the lengths of the tables of a checkpoint, and the size of the images in its config."""
    lines, images = [], []
    for table in find_tables(checkpoint.config, checkpoint.tensors).understood:
        if not table.layout.axes:
            lines.append(table.length)
        elif table.field is not None and PIXELS.search(table.field.path[-1]):
            images.append(pair(table.field.value))
    return lines, next(iter(images), None)


def limits_of(checkpoint: Checkpoint, length: int | None, image: Size | None) -> Iterator[Limit]:
    """Yields what the files of a checkpoint say of its length and its image size; first, what its table holds."""
    if length is not None:
        yield Limit("positions in the table", length)
        for setting in length_settings(checkpoint, length, length):
            if type(setting.before) is int and setting.before < NO_LIMIT and "padding" not in setting.path:
                yield Limit(f"{setting.file}: {'.'.join(setting.path)}", setting.before)
    if image is not None:
        yield Limit(f"{checkpoint.config_name}: image size", image)
        for name, above, part in processor_sections(checkpoint, "image_processor"):
            field = "crop_size" if sides_of(part.get("crop_size")) else "size"
            sides = sides_of(part.get(field))
            if "height" in sides and "width" in sides:
                yield Limit(f"{name}: {'.'.join((*above, field))}", (sides["height"], sides["width"]))


def disagreements(limits: tuple[Limit, ...], length: int | None, image: Size | None) -> Iterator[str]:
    for limit in limits:
        if isinstance(limit.value, int) and length is not None and limit.value > length:
            yield f"{limit.where} lets {limit.value} tokens through, and the table takes {length}"
        elif isinstance(limit.value, int) and length is not None and limit.value < length:
            yield f"{limit.where} truncates texts to {limit.value} tokens, and the table takes {length}"
        elif isinstance(limit.value, tuple) and limit.value != image:
            yield f"{limit.where} makes images of another size than the config's"


def run(model: nn.Module, lengths: Sequence[int], image: Size | None) -> tuple[str, list[Tensor]] | str:
    """Returns the size at which a model was run, in words, and its outputs; or why it does not run."""
    why = "no input is known that it takes"
    for at, inputs in full_inputs(model, lengths, image):
        try:
            return at, list(floats_in(seeded_outputs(model, inputs)))
        except Exception as error:  # models raise whatever they like
            why = last_line(error)
    return why


def full_inputs(model: nn.Module, lengths: Sequence[int], image: Size | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields inputs of the full size to try: text and images as far as a model takes them, or else sounds."""
    tokens = min(lengths, default=FEW_TOKENS)
    text = text_inputs(model, tokens) if takes_text(model) else {}
    words = f"at {tokens} token{'s' * (tokens != 1)}"
    if image is not None:
        pixels = f"at {image[0]}x{image[1]} pixels"
        for form in image_inputs(model, image):
            # Where tokens stand for an image, a random text has the wrong number of them.
            if text and lengths and getattr(model.config, "image_token_id", None) is None:
                yield f"{words} and {pixels}", {**form, **text}
            else:
                yield pixels, form
    elif text:
        yield words, text
    else:
        for length in lengths:
            yield from ((f"at {length} positions", inputs) for inputs in line_inputs(model, length))
        yield from (("on a short input", inputs) for inputs in inputs_of(model))


def compare(
    model: nn.Module, before: Checkpoint, name: str, length: int | None, works: list[str], problems: list[str]
) -> None:
    """Sends the same texts through the model before and after."""
    old, longest = load(before, name)[0], least(*sizes_of(before)[0], length)
    lengths = sorted({*(tokens for tokens in SHORT_TEXTS if tokens < (longest or 0)), longest or FEW_TOKENS})
    largest = 0.0
    try:
        for tokens in lengths:
            inputs = text_inputs(model, tokens)
            for one, other in zip(
                *(list(floats_in(seeded_outputs(each, inputs))) for each in (old, model)), strict=True
            ):
                if one.numel() and not torch.equal(one, other):
                    largest = max(largest, float((one - other).abs().max()) / (float(one.abs().max()) or 1.0))
    except Exception as error:  # NotTried, or whatever a model raises
        works.append(f"not compared with {name}: no text goes through both ({last_line(error)})")
        return
    told = f"texts of {', '.join(map(str, lengths))} tokens get the answers of {name}"
    if largest > math.sqrt(torch.finfo(torch.float32).eps):
        problems.append(f"{told} only up to {largest:.2g} of the largest number in them")
    else:
        works.append(told + (f", up to {largest:.1g} of the largest number in them" if largest else ", bit for bit"))
