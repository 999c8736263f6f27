"""The settings of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeAlias

from annotated_types import Ge, Lt, MinLen

from posembed.settings import Ascending, Count, Different, Part, Settings, argument, option

Kind = Literal["causal", "masked", "sentences", "images"]
KINDS: dict[Kind, str] = {
    "causal": "a causal language model",
    "masked": "a masked language model",
    "sentences": "a sentence encoder",
    "images": "an image model",
}
SHORTEST = 16  # tokens
TokenCount: TypeAlias = Annotated[int, Ge(SHORTEST)]
Lengths: TypeAlias = Ascending[TokenCount]
TorchSeed: TypeAlias = Annotated[int, Ge(-(2**63)), Lt(2**64)]
Sources: TypeAlias = Annotated[tuple[str, ...], MinLen(1)]
Way: TypeAlias = Literal["truncate", "late", "context", "max", "mean"]
Ways: TypeAlias = Different[Way]
DEFAULT_LENGTHS = (256, 512, 1024, 2048)
RETRIEVAL = "Retrieval"
MODEL_TYPE = "The type of a model of transformers, such as bert, if neither config.json nor the keys show it."


@dataclass(frozen=True, kw_only=True)
class Measured(Settings):
    """The settings that every evaluation has."""

    lengths: Lengths = option("Lengths in tokens, separated by commas.", default=DEFAULT_LENGTHS)
    device: str | None = option("The device that runs the models. Default: an accelerator if available.", default=None)
    model_type: str | None = option(MODEL_TYPE, default=None)
    results: Path | None = option("A folder that keeps every measurement, so that none is repeated.", default=None)


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings(Settings):
    """The checkpoints to evaluate, and the data to evaluate them on."""

    checkpoints: Sources = argument(
        "Folders or hub names of models of one kind, each with its tokenizer.", "CHECKPOINTS"
    )
    text: tuple[Path, ...] = option(
        "A text file or a folder of text files; can be repeated. Either this or --retrieval is required.", default=()
    )
    retrieval: str | None = option(
        "Instead of --text: a folder in BEIR's layout (corpus.jsonl, queries.jsonl, qrels/*.tsv), or a generated task, "
        "passkey or needle.",
        default=None,
    )


@dataclass(frozen=True, kw_only=True)
class Amount(Part):
    """The amount of data to read, if the data do not decide it."""

    belongs: ClassVar[str] = "--text and the generated tasks, passkey and needle"
    texts: Count = option(
        "Maximum number of texts; the first that are long enough are used. For a generated task, the number of "
        "documents.",
        default=100,
    )


@dataclass(frozen=True, kw_only=True)
class Drawn(Part):
    """The seed of what is drawn at random."""

    belongs: ClassVar[str] = "masked language models and the generated tasks, passkey and needle"
    seed: TorchSeed = option("Seed of the masked tokens, or of a generated task.", default=0)


@dataclass(frozen=True, kw_only=True)
class Search(Part):
    """How documents are searched."""

    belongs: ClassVar[str] = "--retrieval"
    ways: Ways | None = option(
        "The baselines: truncate, late, context, max, mean. Default: all.", RETRIEVAL, default=None
    )
    chunk: TokenCount | None = option("Tokens per chunk. Default: the original length.", RETRIEVAL, default=None)
    query_prompt: str | None = option(
        'A text before each query, such as "query: ". Default: the model\'s.', RETRIEVAL, default=None
    )
    document_prompt: str | None = option("A text before each document. Default: the model's.", RETRIEVAL, default=None)


@dataclass(frozen=True, kw_only=True)
class Split(Part):
    """The judgements of a folder."""

    belongs: ClassVar[str] = "a folder as --retrieval"
    split: str | None = option("The file in qrels. Default: test, or the only file.", RETRIEVAL, default=None)


PARTS = (Amount, Drawn, Search, Split)
