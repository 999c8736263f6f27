"""The settings of learning from text, and the metrics of a language model at several context lengths or of a learned
table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from posembed.errors import ArgumentError
from posembed.lab.data.lengths import FULL, NAMES, Counts, TrainLengths, counts_of, distribution
from posembed.lab.metrics import metrics
from posembed.lab.runs.spec import MODEL, TRAINING, TrainingSpec
from posembed.settings import Ascending, Count, TwoOrMore, option

if TYPE_CHECKING:
    from posembed.lab.data.text import Corpus

OF_MODEL = ("layers", "width", "heads", "dropout")
"""The settings that are taken from the config if ``model`` is given."""
CONTINUED_LEARNING_RATE = 1e-4
"""The default learning rate if training continues from weights. The presets' learning rates are too high for that."""

SAME_TOKENS, WHOLE_WINDOWS, BITS, CHUNKED_SAME, CHUNKED_WHOLE, REPEAT_GAIN = metrics("lengths")
LOSS, PERPLEXITY = metrics("held-out loss", "perplexity")
CHANGES = metrics("changes")


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
    """None means "full". For a file, its name without the folder; ``train_length_counts`` holds its contents."""
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
    model: str | None = option(
        "Compare inside a decoder of transformers: its config.json, or a folder that may hold its weights too.",
        default=None,
        compare=False,
    )
    model_sha256: str | None = None
    """Hash of the config and the weights of ``model``."""
    model_start: str | None = None
    """How training starts, as text: from random weights, or continued from weights."""
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
class TableSpec(LanguageSpec):
    """Settings of a run that trains a learned table at the input of a language model."""

    encoding: str = "learned"
    init: str = ""
    """The name of the initial values, as in ``initial_table``."""


@dataclass(frozen=True, kw_only=True)
class InitSpec(TableSpec):
    COMPARED: ClassVar[str] = "init"

    model: Literal["causal", "masked"] | None = option(
        "causal, which predicts the next token, or masked, which sees both sides of hidden tokens as BERT does. "
        "Default: causal.",
        MODEL,
        default=None,
    )

    @property
    def objective(self) -> str:
        return self.model or "causal"


@dataclass(frozen=True, kw_only=True)
class ByTaskSpec(TableSpec):
    COMPARED: ClassVar[str] = "task"

    task: str = ""
    """A name in ``lab.tasks.objectives``."""
    init: str = option(
        "Initial values of the tables, the same for all tasks of a seed: normal-STD, xavier, zero, sinusoidal or "
        "sinusoidal-STD.",
        MODEL,
    )

    @property
    def objective(self) -> str:
        return self.task


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
        raise ArgumentError(f"--model needs transformers: pip install 'posembed[hf]' ({error})") from error
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


def load_text(chosen: dict[str, Any], *, end: int | None = None) -> Corpus:
    """Loads the text that the settings name, and the file that ``train_lengths`` names. Removes "full", so that such
    runs equal the default. ``end`` is as in ``load_corpus``."""
    from posembed.lab.data.text import load_corpus

    name = chosen.pop("train_lengths", None)
    if name not in (None, FULL):
        counts = counts_of(name)
        known = name if Path(name).name in NAMES else Path(name).name  # a file may be called "short"
        chosen |= {"train_lengths": known, "train_length_counts": counts}
    return load_corpus(chosen["data"], tokenizer=chosen["tokenizer"], end=end)
