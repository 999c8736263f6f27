"""``posembed.check_checkpoint``: loads a checkpoint as its users will, and reports what works and what fails.

The library's own code loads the checkpoint. Each limit is reported with the file that states it, and the model runs at
its full length or image size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posembed.arguments import checks_arguments
from posembed.checkpoints.choose import NOT_TEXT
from posembed.checkpoints.find import find_tables
from posembed.checkpoints.plan import BOTH
from posembed.checkpoints.position_tables import PIXELS, Size, pair, section
from posembed.checkpoints.proof import floats_in, seeded_outputs
from posembed.checkpoints.proof_inputs import (
    IMAGES,
    NotTried,
    image_inputs,
    inputs_of,
    line_inputs,
    random_ids,
    text_inputs,
)
from posembed.checkpoints.settings import NO_LIMIT, length_settings, processor_sections, sides_of
from posembed.checkpoints.small_copies import undisturbed
from posembed.checkpoints.sources.base import quiet, takes_text
from posembed.checkpoints.sources.configs import config_object, source_of
from posembed.errors import CheckpointError
from posembed.modelfiles.checkpoint import Checkpoint, open_checkpoint
from posembed.modelfiles.copies import recorded
from posembed.words import last_line, least

SHORT_TEXTS = (1, 8)
"""The lengths in tokens of the texts, besides the longest, whose outputs are compared."""
FEW_TOKENS = 8
"""The length in tokens of the text for a model whose length no table limits."""
GENERATION = "generation_config.json"
VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt")
TEXTS = {"input_ids", "decoder_input_ids"}
BESIDE_TEXT = {*IMAGES, "input_features", "input_values"}


@dataclass(frozen=True)
class Sizes:
    """The sizes that a checkpoint's tables allow. read, written: the most tokens of a text that the model reads, and
    that its decoder writes. others: lengths of other inputs, such as sounds. image: the image size in the config."""

    read: int | None
    written: int | None
    others: tuple[int, ...]
    image: Size | None


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
    """What users of a checkpoint will find.

    loaded_by: the library and class that loaded it. line: the Python code that loads it. length: the number of tokens
    that its position table takes; None without a table. limits: the lengths and image sizes that its files state.
    works: what was shown to work. problems: what will fail or surprise, empty if nothing will.
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
    """Loads a checkpoint with the library that its users will use, and runs the model.

    Reports missing and unused weights, limits in files above the table's length, whether the model runs at its full
    size, and whether texts within the length of ``against`` get the same outputs from both models.

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
    sizes = sizes_of(checkpoint)
    limits = tuple(limits_of(checkpoint, sizes))
    problems += beyond_the_table(limits, sizes)
    works = list(below_the_table(limits, sizes))
    if takes_text(model):
        tokenizer_trouble(checkpoint, model, works, problems)
    with undisturbed(), torch.no_grad():
        ran = run(model, sizes)
        if isinstance(ran, str):
            fails = is_at_fault(model, sizes)
            (problems if fails else works).append(f"it was not run{' at its full size' * fails}: {ran}")
        else:
            at, outputs = ran
            works.append(f"runs {at}")
            if not all(bool(each.isfinite().all()) for each in outputs):
                problems.append(f"NaN or infinity in its outputs {at}")
        for limit in limits:
            if isinstance(limit.value, tuple) and limit.value != sizes.image:
                ran = run(model, replace(sizes, image=limit.value))
                if isinstance(ran, str):
                    problems.append(
                        f"{limit.where} makes images of another size than the config's, and it fails: {ran}"
                    )
                else:
                    works.append(f"runs {ran[0]}, as {limit.where} makes images")
        if against is not None:
            tuned = checkpoint.root.is_dir() and bool(recorded(checkpoint.root, "tunings"))
            before = open_checkpoint(against)
            if not tuned and is_another_model(checkpoint, before):
                problems.append(
                    f"{against} is another model: most of its weights are missing here, or have another shape"
                )
            compare(model, before, str(against), sizes, works, works if tuned else problems)
            if tuned:
                works.append("it was fine-tuned, so other answers are expected")
    return Check(str(source), loaded_by, line, sizes.read, limits, tuple(works), tuple(problems))


def load(checkpoint: Checkpoint, name: str) -> tuple[nn.Module, str, str, list[str]]:
    """Returns a checkpoint's model, the class that loaded it, the code that does so, and the problems with its keys."""
    known = None if checkpoint.folder is None else config_object(checkpoint.config or {})
    if checkpoint.folder is None or known is None:
        raise CheckpointError(
            f"{name}: no installed library loads it: expected a folder of transformers, sentence-transformers or timm; "
            "a project's own file is loaded by the project's own code"
        )
    source = source_of(known)
    library = source.library
    try:
        with quiet():
            of_sentences = (checkpoint.root / "modules.json").exists()
            how = {"device_map": "meta"} if of_sentences else {}
            model, kind, call, unfit = source.load(checkpoint.folder, known, **how)
            if of_sentences:
                if find_spec("sentence_transformers") is None:
                    raise CheckpointError("its users need sentence-transformers: pip install sentence-transformers")
                from sentence_transformers import SentenceTransformer

                library = "sentence-transformers"
                whole = SentenceTransformer(str(checkpoint.root), device="cpu", trust_remote_code=False)
                alone = takes_text_alone(model)
                model = SentenceEncoder(whole, model.config) if alone else source.load(checkpoint.folder, known)[0]
                kind, call = "sentence_transformers.SentenceTransformer", "SentenceTransformer({folder!r})"
                unfit = {what: [key for key in keys if "pooler" not in key] for what, keys in unfit.items()}
            model = model.eval().float()
    except CheckpointError:
        raise
    except Exception as error:  # each library raises its own errors
        raise CheckpointError(f"{name}: {library} cannot load it ({last_line(error)})") from error
    problems = [f"{what}: {', '.join(keys[:3])}{', ...' * (len(keys) > 3)}" for what, keys in unfit.items() if keys]
    return model, kind, call.format(folder=name), problems


class SentenceEncoder(nn.Module):
    """A model of sentence-transformers with all its modules, as a model that takes token ids."""

    def __init__(self, whole: nn.Module, config: Any) -> None:
        super().__init__()
        self.whole, self.config = whole, config

    def forward(self, input_ids: Tensor) -> Any:
        return self.whole({"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)})

    def get_input_embeddings(self) -> nn.Module:
        from transformers import PreTrainedModel

        transformer = next(each for each in self.whole.modules() if isinstance(each, PreTrainedModel))
        return transformer.get_input_embeddings()


def tokenizer_trouble(checkpoint: Checkpoint, model: Any, works: list[str], problems: list[str]) -> None:
    """Says why texts do not get through: the tokenizer of transformers does not load, or has ids without a row."""
    assert checkpoint.folder is not None
    # Without these files, transformers returns an empty tokenizer of the family.
    if not any(path.name in VOCABULARIES or path.suffix == ".model" for path in checkpoint.folder.iterdir()):
        return
    from transformers import AutoTokenizer

    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(checkpoint.folder, trust_remote_code=False, config=model.config)
            largest = max(tokenizer.get_vocab().values(), default=-1)
    except ImportError as error:  # a package that is missing here, not a fault of the checkpoint
        works.append(f"its tokenizer was not tried: {str(error).strip().splitlines()[0]}")
        return
    except Exception as error:  # each tokenizer raises its own errors
        problems.append(f"transformers cannot load its tokenizer ({last_line(error)})")
        return
    try:
        table = model.get_input_embeddings()
    except NotImplementedError:  # such as CLIP, which has several
        return
    if type(table) is nn.Embedding and largest >= table.num_embeddings:
        problems.append(
            f"its tokenizer has ids up to {largest}, and its token embeddings have {table.num_embeddings} rows"
        )


def is_another_model(checkpoint: Checkpoint, before: Checkpoint) -> bool:
    """Returns whether fewer than half of the weights before have a counterpart of the same shape, under any name: one
    model may be saved with a prefix, such as ``bert.``, and the other without."""
    old, new = (Counter(tuple(tensor.shape) for tensor in each.tensors.values()) for each in (before, checkpoint))
    return 2 * (old & new).total() < old.total()


def sizes_of(checkpoint: Checkpoint) -> Sizes:
    texts, others, images = [], [], []
    for table in find_tables(checkpoint.config, checkpoint.tensors).understood:
        path = () if table.field is None else table.field.path
        if table.layout.axes:
            if table.field is not None and PIXELS.search(path[-1]):
                images.append(pair(table.field.value))
        elif any(map(NOT_TEXT.search, path)):
            others.append(table.length)
        else:
            texts.append((BOTH.intersection(table.key.split(".")) or BOTH, table.length))
    read, written = (least(*(length for of, length in texts if side in of)) for side in ("encoder", "decoder"))
    return Sizes(read if read is not None else written, written, tuple(others), next(iter(images), None))


def limits_of(checkpoint: Checkpoint, sizes: Sizes) -> Iterator[Limit]:
    """Yields the length of a checkpoint's table, and the limits on length and image size that its files state. Limits
    on padding and on generated text count only if they are above the table's length."""
    if (length := sizes.read) is not None:
        yield Limit("positions in the table", length)
        for setting in length_settings(checkpoint, length, length):
            padded = "padding" in setting.path
            if type(setting.before) is int and setting.before < NO_LIMIT and (not padded or setting.before > length):
                yield Limit(f"{setting.file}: {'.'.join(setting.path)}", setting.before)
    longest = checkpoint.settings(GENERATION).get("max_length")
    if sizes.written is not None and type(longest) is int and longest > sizes.written:
        yield Limit(f"{GENERATION}: max_length", longest)
    if sizes.image is not None:
        yield Limit(f"{checkpoint.config_name}: image size", sizes.image)
        trained = section(checkpoint.config or {}, ("pretrained_cfg",)).get("input_size")
        if isinstance(trained, list) and len(trained) == 3:
            yield Limit(f"{checkpoint.config_name}: pretrained_cfg.input_size", (trained[1], trained[2]))
        for name, above, part in processor_sections(checkpoint, "image_processor"):
            crops = sides_of(part.get("crop_size")) and part.get("do_center_crop") is not False
            field = "crop_size" if crops else "size"
            sides = sides_of(part.get(field))
            if "height" in sides and "width" in sides:
                yield Limit(f"{name}: {'.'.join((*above, field))}", (sides["height"], sides["width"]))


def beyond_the_table(limits: tuple[Limit, ...], sizes: Sizes) -> Iterator[str]:
    for limit in limits:
        length = sizes.written if limit.where.startswith(GENERATION) else sizes.read
        if isinstance(limit.value, int) and length is not None and limit.value > length:
            yield f"{limit.where} lets {limit.value} tokens through, and the table takes {length}"


def below_the_table(limits: tuple[Limit, ...], sizes: Sizes) -> Iterator[str]:
    """Says where texts are truncated early. This may be intended: all-MiniLM-L6-v2 reads 256 of 512 positions."""
    for limit in (limit for limit in limits if not limit.where.startswith(GENERATION)):
        if isinstance(limit.value, int) and sizes.read is not None and limit.value < sizes.read:
            yield f"what reads {limit.where} truncates texts at {limit.value} tokens; the table takes {sizes.read}"


def run(model: nn.Module, sizes: Sizes) -> tuple[str, list[Tensor]] | str:
    """Returns the size at which a model was run, in words, and its outputs; or why it does not run."""
    why = ""
    try:
        for at, inputs in full_inputs(model, sizes):
            try:
                return at, list(floats_in(seeded_outputs(model, inputs)))
            except Exception as error:  # models raise whatever they like
                why = why or last_line(error)
    except Exception as error:  # its config lacks a size of the inputs to try
        why = why or last_line(error)
    return why or "no input is known that it takes"


def takes_text_alone(model: nn.Module) -> bool:
    return takes_text(model) and not {*signature(model.forward).parameters} & (BESIDE_TEXT | TEXTS - {"input_ids"})


def is_at_fault(model: nn.Module, sizes: Sizes) -> bool:
    """Returns whether a failed run is the fault of the model, not of the inputs that were tried. For a model that takes
    text together with other inputs, this is certain only if the model runs with a short text."""
    accepted = {*signature(model.forward).parameters}
    if accepted & BESIDE_TEXT and accepted & TEXTS:
        few = replace(sizes, read=least(sizes.read, FEW_TOKENS), written=least(sizes.written, FEW_TOKENS))
        return few != sizes and not isinstance(run(model, few), str)
    return takes_text(model) or sizes.image is not None


def full_inputs(model: nn.Module, sizes: Sizes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields inputs of the full size to try, each with this size in words: text and images, or else sounds."""
    tokens, image = sizes.read or FEW_TOKENS, sizes.image
    text = text_inputs(model, tokens) if takes_text(model) else {}
    if "decoder_input_ids" in text:
        text["decoder_input_ids"] = text["decoder_input_ids"][:, : sizes.written]
    words = f"at {tokens} token{'s' * (tokens != 1)}"
    if image is not None:
        pixels = f"at {image[0]}x{image[1]} pixels"
        for form in image_inputs(model, image):
            # Where tokens stand for an image, a random text has the wrong number of them.
            if text and sizes.read is not None and getattr(model.config, "image_token_id", None) is None:
                yield f"{words} and {pixels}", {**form, **text}
            else:
                yield pixels, form
    elif text:
        yield words, text
    else:
        for length in sizes.others:
            written = f" and {sizes.written} tokens" * (sizes.written is not None)
            yield from ((f"at {length} positions{written}", each) for each in sounds(model, length, sizes.written))
        for length in (*sizes.others, *filter(None, (sizes.read,))):
            yield from ((f"at {length} positions", inputs) for inputs in line_inputs(model, length))
        yield from (("on a short input", inputs) for inputs in inputs_of(model))


def sounds(model: nn.Module, positions: int, written: int | None) -> Iterator[dict[str, Any]]:
    """Yields a spectrogram (1, bands, frames) that a model's convolutions turn into ``positions`` positions, and a text
    for its decoder."""
    layers = [each for each in model.modules() if isinstance(each, nn.Conv1d)]
    accepted = signature(model.forward).parameters
    if "input_features" in accepted and layers:
        frames = positions * math.prod(each.stride[0] for each in layers)
        text = {"decoder_input_ids": random_ids(model, written)} if written and "decoder_input_ids" in accepted else {}
        yield {"input_features": torch.randn(1, layers[0].in_channels, frames), **text}


def compare(
    model: nn.Module, before: Checkpoint, name: str, sizes: Sizes, works: list[str], problems: list[str]
) -> None:
    """Runs the same texts, images or sounds through the old and the new model, and adds the result to the lists."""
    old, of_old, reads = load(before, name)[0], sizes_of(before), takes_text(model)
    longest, written = least(of_old.read, sizes.read), least(of_old.written, sizes.written)
    lengths = sorted({*(tokens for tokens in SHORT_TEXTS if tokens < (longest or 0)), longest or FEW_TOKENS})
    given = [
        Sizes(tokens, least(tokens, written), sizes.others, sizes.image)
        for tokens in (lengths if reads else lengths[-1:])
    ]
    hears = sizes.image is None and not reads and bool(sizes.others)
    same = sizes.others == of_old.others if hears else sizes.image is not None and sizes.image == of_old.image
    ways = [given] * same
    ways += [[replace(each, image=None) for each in given]] * reads
    another = "sounds of another length" if hears else "images of another size"
    why = "" if ways else f"it takes {another if hears or sizes.image is not None else 'no text'}"
    for way in ways:
        try:
            largest = max(gap(old, model, each) for each in way)
        except Exception as error:  # NotTried, or whatever a model raises
            why = why or last_line(error)
            continue
        image = "" if way[0].image is None else "{}x{} pixels".format(*way[0].image)
        texts = f"texts of {', '.join(map(str, lengths))} tokens{' with an image' * bool(image)}"
        told = f"{texts if reads else 'sounds' if hears else f'images of {image}'} get the answers of {name}"
        if largest > math.sqrt(torch.finfo(torch.float32).eps):
            problems.append(f"{told} only up to {largest:.2g} of the largest number in them")
        else:
            works.append(
                told + (f", up to {largest:.1g} of the largest number in them" if largest else ", bit for bit")
            )
        return
    works.append(f"not compared with {name}: {why}")


def gap(old: nn.Module, new: nn.Module, sizes: Sizes) -> float:
    """Returns the largest difference between two models' outputs for the first input that the old model takes, divided
    by the largest number in the old output; infinity if an output is not a number."""
    why: Exception = NotTried("no input is known that it takes")
    for _, inputs in full_inputs(new, sizes):
        try:
            first = list(floats_in(seeded_outputs(old, inputs)))
        except Exception as error:
            why = error
            continue
        second = list(floats_in(seeded_outputs(new, inputs)))
        if [each.shape for each in first] != [each.shape for each in second]:
            raise NotTried("its outputs have other shapes")
        largest = 0.0
        for one, other in zip(first, second, strict=True):
            if (apart := (one - other)[one != other].abs()).numel():
                scale = float(one.nan_to_num(0, 0, 0).abs().max()) or 1.0
                largest = max(largest, float(apart.nan_to_num(math.inf).max()) / scale)
        return largest
    raise why
