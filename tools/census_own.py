"""Which method of posembed gives the answers of a model that reads its old table at a new size itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from inspect import signature

import torch
from torch import nn

from posembed.checkpoints.choose import Target
from posembed.checkpoints.position_tables import TableSize
from posembed.checkpoints.proof.answers import SAME, SMOOTH, fill, pair_up, resized, seeded
from posembed.checkpoints.proof.copies import copies, undisturbed
from posembed.checkpoints.proof.inputs import inputs_of
from posembed.checkpoints.proof.reads import IN_PART
from posembed.checkpoints.sources.configs import models_around
from posembed.errors import ArgumentError
from posembed.tables.resize import kernels_between

#: Attention over more patches than this takes minutes and gigabytes on a CPU.
MOST_ROWS = 10_000


def own_method(old_model: nn.Module, new_model: nn.Module, target: Target) -> str:
    """Returns the method whose table gives the model's own answers at the new size, if the default one does not.

    Both are small copies with the same weights. The old copy gets an input of the new size, and interpolates its table
    (``interpolate_pos_encoding``, or always); the new copy has the tables that a method gives. The tables are smooth
    and random. Returns "" if the default does, if no method does, or if no copy reads another size.
    """
    table = target.table
    axes = table.layout.axes
    windowed = target.image_size is None and any(axis.relative for axis in axes)
    if table.rows > MOST_ROWS or not axes or windowed or axes[0].name in IN_PART or table.kind == "sinusoidal":
        return ""
    kernels = kernels_between(table.layout, target.changes[0].layout)[0]
    for path in models_around(old_model, table.parameter):
        models = [model.get_submodule(path) for model in (old_model, new_model)]
        with undisturbed():
            try:
                made = copies(models, target, target.changes, path, narrow=True)
                old, new = made.old, made.new
                tables = {
                    name: TableSize(replace(before.table, layout=before.layout), after.layout, after.length)
                    for name, before, after in zip(made.before, made.before.values(), made.after.values(), strict=True)
                }
                with torch.no_grad():
                    pair_up(old, new, tables, waves=0, loud=True)
                    if (difference(old, new, tables, None) or 0) > SAME:
                        return ""  # it depends on the size beyond its tables, so its answers compare nothing
                    pair_up(old, new, tables, waves=SMOOTH)
                    apart = difference(old, new, tables, None)
                    if apart is None:
                        continue
                    others = kernels.methods if apart > SAME else ()
                    same = (name for name in others if gives_same(old, new, tables, name))
                    return next(same, "")
            except Exception:  # the model reads inputs of its own size alone
                continue
    return ""


def gives_same(old: nn.Module, new: nn.Module, tables: Mapping[str, TableSize], method: str) -> bool:
    try:
        apart = difference(old, new, tables, method)
    except ArgumentError:  # such as truncate for more frames
        return False
    return apart is not None and apart < SAME


def difference(old: nn.Module, new: nn.Module, tables: Mapping[str, TableSize], method: str | None) -> float | None:
    """Resizes the tables of the old copy into the new one, and returns how far their answers are apart. Returns None if
    no answer depends on the tables, such as one to a text alone."""
    rows = resized(old, tables, method)
    asks = "interpolate_pos_encoding" in signature(old.forward).parameters
    failure: Exception | None = None
    for inputs in inputs_of(new):
        answers = []
        try:
            own = seeded(old, {**inputs, **({"interpolate_pos_encoding": True} if asks else {})})
            for scale in (0, 1):
                fill(new, rows, scale)
                answers.append(seeded(new, inputs))
        except Exception as error:  # these inputs are in another form, or of a size that the model does not read
            failure = failure or error
            continue
        without, ours = answers
        known = bool(own.isfinite().all() and ours.isfinite().all())
        if known and own.shape == ours.shape and not torch.equal(without, ours):
            return float((own - ours).norm() / own.norm())
    if failure is not None:
        raise failure
    return None
