"""Do the rows of a learned table get different gradients at the start? In a causal and in a masked model.

    python benchmarks/first_gradients.py

For two sets of 24 batches, it computes the mean gradient of each row, minus the mean over all rows. It prints the
cosine between both sets: near 1 if rows get different gradients, near 0 if their differences are only noise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posembed.lab.questions import QUESTIONS

BATCHES = 24


def differences(task: Any, spec: Any, first: int) -> Tensor:
    """Returns the mean gradient of each row (L, D) over the batches from ``first`` on, minus the mean over rows."""
    model = task.build(spec)
    for step in range(first, first + BATCHES):
        (task.loss(model, *task.draw(spec, model, step)) / BATCHES).backward()
    gradient = model.encoding.weight.grad
    return gradient - gradient.mean(dim=0)


def main() -> None:
    question: Any = QUESTIONS["inits"]
    for model in ("causal", "masked"):
        task, shared = question.prepare(question.settings("tiny", {"model": model}))
        for spec in question.specs(shared, ["zero", "normal-0.02"], 1):
            one, other = (differences(task, spec, first).flatten() for first in (0, BATCHES))
            print(f"{model}, {spec.init}: {F.cosine_similarity(one, other, dim=0):.2f}", flush=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
