"""A user's own objective: a loss, or a class with the methods of ``Objective``."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posembed.errors import ArgumentError
from posembed.evaluation.api import check
from posembed.evaluation.plan import Plan
from posembed.evaluation.results import Evaluation, ResultsFile
from posembed.evaluation.runnable import Runnable
from posembed.evaluation.texts import special_tokens
from posembed.statistics import Estimate
from posembed.tuning.draws import padded, pieces, window_of
from posembed.tuning.objectives import Objective, Progress, Setup
from posembed.tuning.texts import Texts

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""A function of the model, token ids (B, L) with special tokens, and their mask (B, L), which is 0 at the padding. It
returns the mean loss of the rows, ()."""
METHODS = ("windows_once", "prepare", "loss", "plan", "by_document", "kept")


class OwnLoss:
    """A user's loss, measured as models of this kind are. See ``Objective`` for the methods."""

    def __init__(self, setup: Setup[Texts], function: Loss, of_kind: Objective) -> None:
        self.setup, self.function, self.of_kind = setup, function, of_kind
        self.before, self.after = (torch.tensor(each, dtype=torch.long) for each in special_tokens(setup.tokenizer))

    @property
    def windows_once(self) -> float:
        return 0

    def prepare(self, folder: Path, progress: Progress) -> None:
        """Computes nothing: the loss gets only the model and the texts."""

    def loss(self, model: nn.Module, items: Sequence[int], *, length: int, seed: int) -> Tensor:
        windows, device = self.setup.texts.windows, next(model.parameters()).device
        parts = pieces(self.setup.texts.width, length - len(self.before) - len(self.after))
        ids = [windows[window_of(item, len(windows), seed)].ids for item in items]
        rows = [torch.cat([self.before, each[part], self.after]) for each in ids for part in parts]
        fed, mask = padded(rows, self.setup.tokenizer.pad_token_id or 0)
        found = self.function(model, fed.to(device), mask.to(device))
        valid = isinstance(found, Tensor) and found.shape == () and found.requires_grad
        expected = "a function that returns a differentiable loss, a tensor of shape ()"
        check(valid, "objective", expected, getattr(found, "shape", found))
        return found

    def plan(self, tuned: Runnable, original: Runnable, old: Runnable | None, kept: ResultsFile) -> Plan:
        return self.of_kind.plan(tuned, original, old, kept)

    def by_document(self, evaluation: Evaluation) -> Evaluation:
        return self.of_kind.by_document(evaluation)

    def kept(self, tuned: Runnable) -> Estimate | None:
        return self.of_kind.kept(tuned)


def own_objective(own: Any, of_kind: Callable[[Setup[Any]], Objective]) -> Callable[[Setup[Any]], Objective]:
    """Returns what makes a user's objective: a class itself, or a function as the loss of the model's kind.

    Raises ArgumentError if it is neither, or if the class lacks a method.
    """
    check(callable(own), "objective", "a loss, a class with the methods of Objective, or None", own)
    if not isinstance(own, type):
        return lambda setup: OwnLoss(setup, own, of_kind(setup))
    if missing := [name for name in METHODS if not hasattr(own, name)]:
        base = f"{of_kind.__module__}.{of_kind.__qualname__}"
        raise ArgumentError(
            f"objective: expected a class with {', '.join(METHODS)}; {own.__name__} has no {', '.join(missing)}; "
            f"derive it from {base}"
        )
    return own


def identity(own: Any) -> str:
    """Returns a hash of an objective's name and source, which a continued fine-tuning must share; "" for None."""
    if own is None:
        return ""
    try:
        source = inspect.getsource(own)
    except (OSError, TypeError):  # typed into an interpreter, or an instance of a class
        source = ""
    name = getattr(own, "__qualname__", type(own).__qualname__)
    return hashlib.sha256(f"{name} {source}".encode()).hexdigest()
