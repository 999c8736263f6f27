"""Checks that a run on this machine can show what a model answers to a text.

Where the kernel of an attention is missing, transformers' MRA returns zeros for it and runs all the same. Every answer
then follows from its own token alone, and is the same whatever the length changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from posembed.checkpoints.trials.small_copies import floats_in

TEXTS = ("input_ids", "decoder_input_ids")
PLACES = 4  # tokens that are changed in turn
UNMIXED = (
    "on this machine, no token of a text changes the model's answer at another position (its attention may need a "
    "kernel for a GPU), so no run shows that texts of up to {} tokens keep their answers{}"
)


def mixes_tokens(model: nn.Module, inputs: Mapping[str, Any]) -> bool:
    """Returns whether another token changes the answer of a model at other positions, or if there is one answer for the
    whole text, that answer."""
    ids = inputs["input_ids"]
    tokens = ids.shape[1]
    if bool((ids == ids[:, :1]).all()):  # one token, or a vocabulary of one, as in Decision Transformer
        return True
    before = answers(model, inputs)
    for place in torch.linspace(0, tokens - 1, PLACES).long().tolist():
        other = ids.clone()
        other[:, place] = ids[ids != ids[:, place]][0]
        after = answers(model, {**inputs, **{name: other for name in TEXTS if name in inputs}})
        if any(changes_elsewhere(*pair, place, tokens) for pair in zip(before, after, strict=False)):
            return True
    return False


def answers(model: nn.Module, inputs: Mapping[str, Any]) -> list[Tensor]:
    torch.default_generator.manual_seed(0)  # some models have random attention
    return [output.detach() for output in floats_in(model(**inputs))]


def changes_elsewhere(one: Tensor, other: Tensor, place: int, tokens: int) -> bool:
    if one.shape != other.shape:
        return True
    changed = one != other
    if one.dim() > 1 and one.shape[1] == tokens:
        changed[:, place] = False
    return bool(changed.any())


def why_unmixed(old: nn.Module, new: nn.Module, length: int) -> str:
    """Returns the reason to refuse a resize, with the numbers other than sizes of tables that change with it."""
    names = ", ".join(f"{name} is {before} at the old and {after} at the new length"
                      for name, before, after in numbers_that_change(old, new))  # fmt: skip
    return UNMIXED.format(length, f"; {names}" if names else "")


def numbers_that_change(old: nn.Module, new: nn.Module) -> Iterator[tuple[str, int, int]]:
    """Yields the numbers in the modules, without sizes of tables, with their old and new values."""
    parts = dict(new.named_modules())
    seen = set()
    for path, module in old.named_modules():
        if isinstance(module, nn.Embedding) or path not in parts:
            continue
        for name, before in vars(module).items():
            after = vars(parts[path]).get(name)
            if type(before) is type(after) is int and before != after and name not in seen:
                seen.add(name)
                yield f"{path}.{name}", before, after
