"""How far does each encoding carry a language model past its training length?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from posembed.errors import ArgumentError
from posembed.lab.by_seed import BySeed
from posembed.lab.data.lengths import FULL, NAMES, Counts, TrainLengths, counts_of, distribution
from posembed.lab.question import Compared, Loaded, Row, Summary, TrainedQuestion, presets_of
from posembed.lab.runs.spec import MODEL, TRAINING, TrainingSpec, with_default_window
from posembed.settings import Ascending, Count, TwoOrMore, option
from posembed.statistics import Estimate

if TYPE_CHECKING:
    from posembed.lab.data.text import Corpus

ByLength: TypeAlias = dict[int, Estimate | None]
"""Estimates by context length. None means that the encoding has no position at that length."""

OF_MODEL = ("layers", "width", "heads", "dropout")
"""The settings that are taken from the config if ``model`` is given."""
CONTINUED_LEARNING_RATE = 1e-4
"""The default learning rate if training continues from weights. The presets' learning rates are too high for that."""


@dataclass(frozen=True)
class Measurements:
    """Mean losses on held-out text, in nats per token, by test length. None means that the encoding has no position.

    nonoverlapping: the loss of all tokens, in non-overlapping windows of each length, as in the ALiBi paper.
    same_tokens: the loss of the same tokens (the last tokens of each longest window), with each length of context.
    chunked: the loss of all tokens, if each window of ``nonoverlapping`` is fed in chunks of the training length.
    chunked_same_tokens: the loss of the same tokens, if their context is also fed in chunks.
    repeat_gain: how much lower the loss of a passage is at its repetition, by the number of tokens between.
    bytes_per_token: the mean number of bytes in the tokens of ``nonoverlapping``; None if it is unknown.
    """

    nonoverlapping: dict[int, float | None]
    same_tokens: dict[int, float | None]
    chunked: dict[int, float]
    chunked_same_tokens: dict[int, float]
    repeat_gain: dict[int, float | None]
    bytes_per_token: dict[int, float | None]


@dataclass(frozen=True, kw_only=True)
class LanguageSpec(TrainingSpec):
    data: str = option("stdlib, text files, a folder, or hf:NAME[:CONFIG].", compare=False)
    data_sha256: str
    """Hash of the text, its split and the tokenizer."""
    tokenizer: str = option(
        "bytes, bpe:N (N tokens learned from the data), a tokenizer.json, or a name on the hub.", compare=False
    )
    train_length: Count = option("Tokens per training sequence.", MODEL)
    train_lengths: str | None = option(
        "Lengths of the training sequences: full (the training length), uniform (1 to the training length), short (few "
        "are long), or a file with one length per line, or a length and a count. Default: full.",
        MODEL,
        default=None,
    )
    """None means "full". A file's name without its folder; ``train_length_counts`` holds its contents."""
    train_length_counts: Counts = ()
    test_tokens: Count = option("Held-out tokens to measure on.", TRAINING)

    @property
    def objective(self) -> str:
        """What the model learns from the text: a name in ``lab.tasks.objectives``."""
        return "causal"

    @cached_property
    def lengths_drawn(self) -> TrainLengths | None:
        """The distribution of the lengths of training sequences; None if all have the training length."""
        return distribution(self.train_lengths, self.train_length_counts, self.train_length)

    @property
    def sequences_in_words(self) -> str:
        if self.train_lengths is None:
            return f"sequences of {self.train_length:,} tokens"
        return f"sequences of up to {self.train_length:,} tokens (train lengths: {self.train_lengths})"

    @property
    def tokens_read(self) -> int:
        """The expected number of tokens that a run predicts in training."""
        drawn = self.lengths_drawn
        return round(self.steps * self.batch * (self.train_length if drawn is None else drawn.mean))


@dataclass(frozen=True, kw_only=True)
class LengthSpec(LanguageSpec):
    Measured = Measurements

    model: str | None = option(
        "Compare inside a decoder of transformers: its config.json, or a folder that may hold its weights too.",
        default=None,
        compare=False,
    )
    model_sha256: str | None = None
    """Hash of the config and the weights of ``model``."""
    model_start: str | None = None
    """Whether training starts from random weights or continues, in words."""
    test_lengths: Ascending[TwoOrMore] = option("Context lengths to measure at, separated by commas.", MODEL)
    window: Count = option("Causal window of the encodings that use one.", MODEL)
    ring: Count = option("Rows of the rolling table; at least the window.", MODEL)
    rope_factors: tuple[float, ...] = option(
        "Factors of rope-longrope, one per pair of components of a head, separated by commas.",
        MODEL,
        default=(),
    )

    @property
    def longest(self) -> int:
        return max(self.train_length, *self.test_lengths)


@dataclass(frozen=True, kw_only=True)
class LengthRow(Row):
    """The results of one encoding. Perplexities are per token; intervals are over seeds.

    ``ratio`` divides ``same_tokens`` by the encoding's own value at ``base_length``. ``versus_reference`` divides it by
    the reference's value at the same length. Both are paired by seed.
    """

    window: int | None
    perplexity: ByLength
    bits_per_byte: ByLength
    same_tokens: ByLength
    chunked: ByLength
    chunked_same_tokens: ByLength
    ratio: ByLength
    versus_reference: ByLength
    repeat_gain: ByLength
    """The gain in nats per token, by the number of tokens between a passage and its repetition."""


@dataclass(frozen=True, kw_only=True)
class LengthSummary(Summary):
    train_length: int
    test_lengths: tuple[int, ...]
    gaps: tuple[int, ...]
    rows: tuple[LengthRow, ...]


class Lengths(TrainedQuestion[LengthSpec, Measurements, LengthSummary]):
    name = page = "lengths"
    asks = "How far does each encoding carry a language model past its training length?"
    Spec = LengthSpec
    usual = ("learned", "rolling", "sinusoidal", "rope", "alibi")
    usual_reference = "alibi"
    names_help = "Encodings to compare, separated by commas. NAME+window applies a causal window."
    presets = presets_of("lengths")
    preset = "quick"
    presets_help = (
        "quick (minutes), small (an hour on two cores), gpt2 (a GPU), documents (512 to 4,096 tokens, as in guides; a "
        "GPU) or documents-quarter (a quarter of every size)."
    )

    def settings(self, preset: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
        chosen = super().settings(preset, given)
        return chosen if chosen.get("model") is None else chosen | of_model(Path(chosen["model"]).expanduser(), given)

    def load(self, chosen: dict[str, Any]) -> Loaded:
        with_length_counts(chosen)
        if chosen.get("model") is not None:
            from posembed.lab.tasks.inside import load_inside

            return load_inside(chosen)
        from posembed.lab.tasks.language import LanguageModelling

        corpus = corpus_of(chosen)
        with_default_window(chosen)
        return LanguageModelling(corpus), {"data_sha256": corpus.sha256}

    def summary(self, runs: Sequence[BySeed[Measurements]], spec: LengthSpec, reading: Compared) -> LengthSummary:
        return LengthSummary(
            train_length=spec.train_length,
            test_lengths=spec.test_lengths,
            gaps=tuple(sorted({gap for each in runs for m in each.measured.values() for gap in m.repeat_gain})),
            rows=tuple(length_row(each, spec) for each in runs),
        )


def of_model(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that override the preset for the model at ``path``: its tokenizer, and a lower learning rate
    if training continues from its weights.

    Raises:
        ArgumentError: a setting in ``OF_MODEL`` is given, weights have no tokenizer, or transformers is missing.
    """
    if both := [name for name in OF_MODEL if given.get(name) is not None]:
        given_both = ", ".join(f"--{name}" for name in both)
        raise ArgumentError(f"the config of {path} decides {', '.join(OF_MODEL)}; leave out {given_both}, or --model")
    try:
        from posembed.integrations.decoder import has_weights
    except ImportError as error:
        raise ArgumentError(f"--model needs transformers 5 or later: pip install 'posembed[hf]' ({error})") from error
    continued, tokenizer = has_weights(path), (path if path.is_dir() else path.parent) / "tokenizer.json"
    found = {"learning_rate": CONTINUED_LEARNING_RATE} if continued and given.get("learning_rate") is None else {}
    if given.get("tokenizer") is not None:
        return found
    if tokenizer.is_file():
        return found | {"tokenizer": str(tokenizer)}
    if continued:
        raise ArgumentError(
            f"{path} has weights but no tokenizer.json, and the weights expect their own token ids; save the tokenizer "
            "there, or name it with --tokenizer (bytes needs a vocabulary of 256 or more)"
        )
    return found


def with_length_counts(chosen: dict[str, Any]) -> None:
    """Reads the file that ``train_lengths`` names. Removes "full", so that these runs are the same as without it."""
    name = chosen.pop("train_lengths", None)
    if name not in (None, FULL):
        counts = counts_of(name)
        known = name if Path(name).name in NAMES else Path(name).name  # a file may be called "short"
        chosen |= {"train_lengths": known, "train_length_counts": counts}


def corpus_of(chosen: Mapping[str, Any], *, end: int | None = None) -> Corpus:
    """Loads the text that the settings name. ``end`` is as in ``load_corpus``."""
    from posembed.lab.data.text import load_corpus

    return load_corpus(chosen["data"], tokenizer=chosen["tokenizer"], end=end)


def length_row(runs: BySeed[Measurements], spec: LengthSpec) -> LengthRow:
    lengths, base = spec.test_lengths, base_length(spec)
    gaps = next(iter(runs.measured.values())).repeat_gain if runs.measured else ()

    def perplexities(name: str) -> ByLength:
        return {n: loss and loss.exp() for n, loss in runs.means(attrgetter(name), lengths).items()}

    def bits(m: Measurements) -> dict[int, float | None]:
        return {n: bits_per_byte(m.nonoverlapping[n], m.bytes_per_token[n]) for n in lengths}

    def ratio(length: int, others: BySeed[Measurements], other_length: int | None) -> Estimate | None:
        if other_length is None:
            return None
        less = runs.less(others, lambda m: m.same_tokens[length], lambda m: m.same_tokens[other_length])
        return less and less.exp()

    return LengthRow(
        **runs.row,
        window=runs.results[0].window,
        perplexity=perplexities("nonoverlapping"),
        bits_per_byte=runs.means(bits, lengths),
        same_tokens=perplexities("same_tokens"),
        chunked=perplexities("chunked"),
        chunked_same_tokens=perplexities("chunked_same_tokens"),
        ratio={length: ratio(length, runs, base) for length in lengths},
        versus_reference={length: ratio(length, runs.reference or runs, length) for length in lengths},
        repeat_gain=runs.means(lambda m: m.repeat_gain, gaps),
    )


def bits_per_byte(loss: float | None, bytes_per_token: float | None) -> float | None:
    """Converts a loss in nats per token to bits per byte of text."""
    return None if loss is None or bytes_per_token is None else loss / math.log(2) / bytes_per_token


def base_length(tested: LengthSpec | LengthSummary) -> int | None:
    """Returns the length that ratios are relative to: the longest tested length up to the training length, if any."""
    return max((length for length in tested.test_lengths if length <= tested.train_length), default=None)
