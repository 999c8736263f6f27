"""Which rows a lengthened language model starts with: those that read long windows with the lowest loss.

Tiled rows keep every text within the old length as it was, but a model that goes by exact positions may read nothing
sensible past it. Stretched rows change every position a little. Which is the better start depends on the model, and a
few windows tell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from posembed.checkpoints.live import resize_model_
from posembed.checkpoints.resize import plan_resize
from posembed.errors import ArgumentError
from posembed.evaluation.api import device_named
from posembed.measure.jobs import read_settings
from posembed.tuning.language import Language
from posembed.tuning.objectives import Objective, Setup
from posembed.tuning.remedies import memory, too_large
from posembed.tuning.run import TunePlan, size_of, store_of

STARTS = ("tile", "stretch")
TRIED = 8
"""Training windows that are read for each method."""


def started(plan: TunePlan, make: Callable[[Setup], Objective]) -> TunePlan:
    """Returns the plan with the better of the methods in ``STARTS``, if the method is open: none was given, the model
    is a language model, and its old rows may change. An unfinished fine-tuning keeps the method that it began with."""
    default = any(change.how in STARTS for change in plan.resize.edit.tables)
    if plan.settings.method is not None or plan.settings.train == "rows" or not default:
        return plan
    method = read_settings(plan.store.path).get("method") if plan.store.begun else None
    losses = dict[str, float]()
    if method not in STARTS:
        if not isinstance(plan.objective, Language):
            return plan
        if not all(can_start(plan, method) for method in STARTS):
            return plan
        losses = {method: loss(plan, method) for method in STARTS}
        method = min(losses, key=losses.__getitem__)
    settings = replace(plan.settings, method=method)
    setup = replace(plan.setup, settings=settings)
    return replace(
        plan,
        setup=setup,
        objective=make(setup),
        resize=plan_resize(plan.original.checkpoint, str(plan.source), **size_of(plan.original, settings)),
        store=store_of(plan.out, settings, plan.hashes),
        starts=losses,
    )


def can_start(plan: TunePlan, method: str) -> bool:
    """Returns whether a method can be used: stretch needs rows after those that it keeps."""
    size = {**size_of(plan.original, plan.settings), "method": method}
    try:
        plan_resize(plan.original.checkpoint, str(plan.source), **size)
    except ArgumentError:
        return False
    return True


def loss(plan: TunePlan, method: str) -> float:
    """Returns the loss per token of the resized model, before any fine-tuning, on a few training windows.

    The weights are loaded outside of inference mode: those of pickles are kept, and could not be trained otherwise.
    """
    model: Any = plan.original.model(device_named(plan.setup.device)).float().eval()
    resize_model_(model, length=plan.settings.length, method=method)
    length, seed = plan.settings.length, plan.settings.seed
    items = range(min(TRIED, len(plan.texts.windows)))
    with memory(too_large(length, plan.original)), torch.inference_mode():
        found = [plan.objective.loss(model, [item], length=length, seed=seed).item() for item in items]
    return sum(found) / len(found)
