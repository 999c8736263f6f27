"""``posembed.check_checkpoint``: loads a checkpoint as its users will, and reports what works and what fails.

The library's own code loads the checkpoint. Each limit is reported with the file that states it, and the model runs at
its full length or image size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posembed.arguments import checks_arguments
from posembed.checkpoints.proof.answers import floats_in, seeded_outputs
from posembed.checkpoints.proof.copies import undisturbed
from posembed.checkpoints.proof.inputs import IMAGES, SHORT_TEXT, NotTried, Sizes, full_inputs
from posembed.checkpoints.sources.base import quiet, takes_text
from posembed.checkpoints.sources.configs import config_object, source_of
from posembed.errors import CheckpointError
from posembed.modelfiles.checkpoint import Checkpoint, open_checkpoint
from posembed.modelfiles.copies import recorded
from posembed.modelfiles.folders import SENTENCE_ENCODER, has_vocabulary, sentence_class
from posembed.publish.limits import Limit, compare_with_table, limits_of, sizes_of
from posembed.words import last_line, least

SHORT_TEXTS = (1, 8)
"""The lengths in tokens of the texts, besides the longest, whose outputs are compared."""
TEXTS = {"input_ids", "decoder_input_ids"}
NO_TEXT_ALONE = "it takes no text without an image, and images of another size"
BESIDE_TEXT = {*IMAGES, "input_features", "input_values", "visual_feats"}


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
    works: list[str] = []
    compare_with_table(limits, sizes, works, problems)
    fed = model.whole.max_seq_length if isinstance(model, SentenceEncoder) else None
    if fed and sizes.read and fed > sizes.read and fed not in [limit.value for limit in limits]:
        problems.append(
            f"sentence-transformers lets {fed} tokens through, and the table takes {sizes.read}: set max_seq_length in "
            "sentence_bert_config.json"
        )
    if takes_text(model):
        tokenizer_trouble(checkpoint, model, works, problems)
    with undisturbed(), torch.no_grad():
        try:
            at, _, outputs = run(model, full_inputs(model, sizes))
            works.append(f"runs {at}")
            if not all(bool(each.isfinite().all()) for each in outputs):
                problems.append(f"NaN or infinity in its outputs {at}")
        except NotTried as why:
            fails = is_at_fault(model, sizes)
            (problems if fails else works).append(f"it was not run{' at its full size' * fails}: {why}")
        for limit in limits:
            if isinstance(limit.value, int) or limit.value == sizes.image:
                continue
            try:
                at, *_ = run(model, full_inputs(model, replace(sizes, image=limit.value)))
                works.append(f"runs {at}, as {limit.where} makes images")
            except NotTried as why:
                problems.append(f"{limit.where} makes images of another size than the config's, and it fails: {why}")
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
            own = sentence_class(checkpoint.root)
            how = {"device_map": "meta"} if own else {}
            model, kind, call, unfit = source.load(checkpoint.folder, known, **how)
            if own:
                if find_spec("sentence_transformers") is None:
                    raise CheckpointError("its users need sentence-transformers: pip install sentence-transformers")
                import sentence_transformers

                library, call = "sentence-transformers", f"{own}({{folder!r}})"
                if (found := getattr(sentence_transformers, own, None)) is None:
                    raise CheckpointError(f"{library} {version(library)} has no {own}, which its settings name")
                whole = found(str(checkpoint.root), device="cpu", trust_remote_code=False)
                alone = own == SENTENCE_ENCODER and takes_text_alone(model)
                model = SentenceEncoder(whole, model.config) if alone else source.load(checkpoint.folder, known)[0]
                kind = f"sentence_transformers.{own}"
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

    def __init__(self, whole: Any, config: Any) -> None:
        super().__init__()
        self.whole: Any
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
    if not has_vocabulary(checkpoint.folder):
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


def run(model: nn.Module, given: Iterator[tuple[str, dict[str, Any]]]) -> tuple[str, dict[str, Any], list[Tensor]]:
    """Returns the first of the given inputs that a model takes, with its size in words, and the outputs. Raises
    NotTried, with the first error, if the model takes none."""
    failure: Exception | None = None
    try:
        for at, inputs in given:
            try:
                return at, inputs, outputs_of(model, inputs)
            except Exception as error:  # models raise whatever they like
                failure = failure or error
    except Exception as error:  # its config lacks a size of the inputs to try
        failure = failure or error
    raise NotTried(last_line(failure) if failure else "no input is known that it takes")


def outputs_of(model: nn.Module, inputs: dict[str, Any]) -> list[Tensor]:
    return list(floats_in(seeded_outputs(model, inputs)))


def takes_text_alone(model: nn.Module) -> bool:
    return takes_text(model) and not {*signature(model.forward).parameters} & (BESIDE_TEXT | TEXTS - {"input_ids"})


def is_at_fault(model: nn.Module, sizes: Sizes) -> bool:
    """Returns whether a failed run is the fault of the model, not of the inputs that were tried. For a model that takes
    text together with other inputs, this is certain only if the model runs with a short text; for another model of
    texts, if it does, or if its base fails too: heads ask for special tokens, or for several texts."""
    accepted, base = {*signature(model.forward).parameters}, getattr(model, "base_model", model)
    if not takes_text(model) and not accepted & TEXTS:
        return sizes.image is not None
    few = replace(sizes, read=least(sizes.read, SHORT_TEXT), written=least(sizes.written, SHORT_TEXT))
    with suppress(NotTried):
        if few != sizes and run(model, full_inputs(model, few)):
            return True
    if accepted & BESIDE_TEXT and accepted & TEXTS:
        return False
    with suppress(NotTried):
        return base is model or not run(base, full_inputs(base, sizes))
    return True


def compare(
    model: nn.Module, before: Checkpoint, name: str, sizes: Sizes, works: list[str], problems: list[str]
) -> None:
    """Runs the same texts, images or sounds through the old and the new model, and adds the result to the lists."""
    old, of_old, reads = load(before, name)[0], sizes_of(before), takes_text(model)
    if takes_text(old) != reads:
        other = "no texts" if reads else "texts"
        problems.append(f"not compared with {name}: it takes {other}, so it is another model")
        return
    longest, written = least(of_old.read, sizes.read), least(of_old.written, sizes.written)
    lengths = sorted({*(tokens for tokens in SHORT_TEXTS if tokens < (longest or 0)), longest or SHORT_TEXT})
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
            alone = reads and way[0].image is None and sizes.image is not None
            why = why or (NO_TEXT_ALONE if alone else last_line(error))
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
    _, inputs, first = run(old, full_inputs(new, sizes))
    second = outputs_of(new, inputs)
    if [each.shape for each in first] != [each.shape for each in second]:
        raise NotTried("its outputs have other shapes")
    largest = 0.0
    for one, other in zip(first, second, strict=True):
        if (apart := (one - other)[one != other].abs()).numel():
            scale = float(one.nan_to_num(0, 0, 0).abs().max()) or 1.0
            largest = max(largest, float(apart.nan_to_num(math.inf).max()) / scale)
    return largest
