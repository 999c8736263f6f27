"""What a model learns on long texts: one objective per kind of model.

To add an objective, write a class of ``Objective`` in a file of its own, and add it to ``OBJECTIVES`` in run.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from posembed.errors import CheckpointError
from posembed.evaluation.collection import Collection
from posembed.evaluation.plan import Plan
from posembed.evaluation.runnable import Runnable
from posembed.evaluation.texts import encode
from posembed.files import whole_or_absent
from posembed.measure.jobs import Kept, Progress, Store
from posembed.statistics import Estimate, estimate
from posembed.tuning.settings import TuneSettings
from posembed.tuning.texts import Texts

RESIZED, VECTORS = "resized", "vectors.safetensors"
"""Names in the store of a fine-tuning: of the resized checkpoint, and of vectors of the original model."""


@dataclass(frozen=True, eq=False)
class Setup:
    """Everything that an objective is made from.

    original: the checkpoint before it is resized. texts: ``Texts`` or ``Pictures``, with training, held_out, short (too
    small), windows (the parts of ``training`` that are trained on), sha256, and notes on what was left out. old_length:
    the number of tokens that the original takes, including special tokens. collection: the queries and documents that
    measure the result, instead of the held-out texts.
    """

    original: Runnable
    tokenizer: Any
    texts: Any
    settings: TuneSettings
    old_length: int
    device: str | None
    collection: Collection | None = None

    @cached_property
    def windows_measured(self) -> float:
        """The size of the data that measure the result, in windows of the new length."""
        if self.collection is None or not isinstance(self.texts, Texts):
            return len(self.texts.held_out)
        sizes = (len(encode(self.tokenizer, text)) for text in self.collection.documents.values())
        return sum(min(size, self.texts.width) for size in sizes) / self.texts.width


class Objective:
    """A loss of a model on numbered items. An item is a window of the training texts.

    Every random number depends only on (seed, item), so a killed run continues with the same numbers. With equal items,
    a tuning at the old length reads the same tokens in several pieces.
    """

    chunked: ClassVar[str] = ""
    """The baseline (how texts are read) of the fine-tuning at the old length, if it is not the reference's."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.settings = setup, setup.settings

    @property
    def windows_once(self) -> float:
        """How much the original model reads in ``prepare``, in windows of the new length."""
        return 0

    def prepare(self, store: Store, progress: Progress) -> None:
        """Computes what all fine-tunings share, such as vectors of the original model, and keeps it in the store."""

    def loss(self, model: nn.Module, items: Sequence[int], *, length: int, seed: int) -> Tensor:
        """Returns the mean loss of the items, read in pieces of at most ``length`` tokens. Differentiable, ().

        Before ``prepare``, this method is only called to measure its time.
        """
        raise NotImplementedError

    def plan(self, tuned: Runnable, original: Runnable, old: Runnable | None, kept: Kept) -> Plan:
        """Plans the measurement on held-out texts, at the old and the new length. The reference, which is the last row,
        is the original model with chunks. old: the model of the same fine-tuning at the old length, which gets a row
        with the same chunks; None if there is nothing to train at the old length. The plan has one value per held-out
        document, or per query of a collection."""
        raise NotImplementedError

    def kept(self, tuned: Runnable) -> Estimate | None:
        """Returns the mean cosine between the vectors of the tuned and of the original model, for short texts or
        held-out images; None if the model has no such vectors."""
        before, after = (self.held_out_vectors(each) for each in (self.setup.original, tuned))
        return None if before is None or after is None else estimate((before * after).sum(dim=1).tolist())

    def held_out_vectors(self, runnable: Runnable) -> Tensor | None:
        """Returns the unit vectors (N, D) that a checkpoint should keep."""
        return None


def vectors_once(store: Store, make: Callable[[], Tensor], *, number: int) -> Tensor:
    """Returns the vectors that a store keeps; if it has none, computes and keeps them. Raises CheckpointError if the
    store does not have ``number`` vectors."""

    def write(path: Path) -> None:
        with whole_or_absent(path) as staging:
            save_file({"vectors": make()}, staging)

    place = store.once(VECTORS, write)
    found = load_file(place).get("vectors")
    if found is None or found.ndim != 2 or len(found) != number:
        raise CheckpointError(f"{place} is damaged: it has no {number:,} vectors; remove it, and repeat the command")
    return found
