"""Runs whole models at their true sizes, before and after a resize.

Small copies have few layers and often only the part of a model around its table. They do not show that a later stage,
or the layers that make tokens of an image's cells, fit the new size. The meta device computes only shapes, so a model
of any size runs on it; what depends on values does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from posembed.checkpoints.choose import Target
from posembed.checkpoints.found import IMAGE_TOKENS, Size
from posembed.checkpoints.rebuild import is_of_timm, last_line, models_around
from posembed.checkpoints.trials.inputs import MOST_PATCHES, features_in, image_inputs, inputs_of
from posembed.checkpoints.trials.small_copies import small_copy, undisturbed

STATED = re.compile(r"tokens_per_image|image_tokens|image_seq_len")

Run = Callable[[Any, Mapping[str, Any]], Any]


class FailsAtNewSize(Exception):  # noqa: N818 - never leaves this file
    """Raised if the new model does not run with an input that the old one accepts at its own size."""


@dataclass(frozen=True)
class WholeRuns:
    """What runs of the whole models showed.

    problem: the reason to refuse the resize, or "". ran: whether the model that holds all others ran on the meta device
    at both sizes.
    image_tokens: the numbers of features that it makes of an image, before and after; None if no run shows them.
    """

    problem: str = ""
    ran: bool = False
    image_tokens: tuple[int, int] | None = None


def run_whole(old_model: nn.Module, new_model: nn.Module, target: Target) -> WholeRuns:
    """Runs the largest models that accept an input known here, at their old and at their new size."""
    around = list(models_around(old_model, target.table.parameter))
    for path in reversed(around):
        models = [model.get_submodule(path) for model in (old_model, new_model)]
        try:
            ran, counts = (tried(models, target, run) for run in (run_forward, count_features))
            shapes = ran is not None
            if ran is counts is None and may_be_copied(old_model, target):
                small = copied(models)
                ran, counts = (tried(small, target, run, "cpu") for run in (run_forward, count_features))
        except FailsAtNewSize as failure:
            why = f"{type(models[1]).__name__}: {failure}"
            return WholeRuns(f"the model runs at its own size, but not at the new one ({why})")
        if ran is not None or counts is not None:
            problem = other_count(models[0], models[1], counts, target) if counts is not None else ""
            return WholeRuns(problem, ran=shapes and path == around[-1], image_tokens=counts)
    return WholeRuns()


def may_be_copied(model: nn.Module, target: Target) -> bool:
    """Returns whether copies of few layers can be run on the CPU at the true size of their images."""
    is_grid = target.table.layout.grid is not None and not is_of_timm(model.config)
    return is_grid and max(size for each in target.changes for size in (each.table.length, each.length)) <= MOST_PATCHES


def copied(models: Sequence[nn.Module]) -> list[nn.Module]:
    with undisturbed():
        try:
            return [small_copy(model, narrow=True) for model in models]
        except Exception:  # narrow copies of some models cannot be built, and large ones are not
            return []


def tried(models: Sequence[nn.Module], target: Target, run: Run, device: str = "meta") -> tuple[Any, Any] | None:
    """Runs the old model with inputs of its own size, and the new one with an input of its size in the first form that
    the old one accepts. Returns what ``run`` gives for both, or None if the old one accepts none. Raises
    FailsAtNewSize."""
    sizes = target.image_size or (None, None)
    with undisturbed(), torch.no_grad(), torch.device(device):
        for number, inputs in forms_of(models[0], sizes[0]) if models else ():
            try:
                before = run(models[0], inputs)
            except Exception:  # each model raises its own errors
                continue
            given = next((each for other, each in forms_of(models[1], sizes[1]) if other == number), None)
            if given is None:
                return None
            try:
                return before, run(models[1], given)
            except Exception as error:
                if target.image_size is None and tokens_of(given) > target.length[1]:
                    continue  # the new model need not read so long a text
                raise FailsAtNewSize(last_line(error)) from error
    return None


def forms_of(model: nn.Module, size: Size | None) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
    """Yields inputs to try, each with a number that is the same for the same form of input at another size."""
    sources = [inputs_of(model)] if size is None else [image_inputs(model, size), inputs_of(model)]
    for source, inputs in enumerate(sources):
        try:
            for number, each in enumerate(inputs):
                yield (source, number), each
        except Exception:  # it takes other inputs, or its images are too large
            continue


def run_forward(model: Any, inputs: Mapping[str, Any]) -> bool:
    model(**inputs)
    return True


def tokens_of(inputs: Mapping[str, Any]) -> int:
    """Returns the length of the text in an input, or 0 without a text."""
    return max((inputs[name].shape[1] for name in ("input_ids", "inputs_embeds") if name in inputs), default=0)


def count_features(model: Any, inputs: Mapping[str, Any]) -> int:
    """Returns the number of features that a model makes of an image for its text, which some models compute first."""
    computed = (getattr(module, field, None) for module in model.modules() for field in IMAGE_TOKENS)
    if (number := next((each for each in computed if type(each) is int), None)) is not None:
        return number
    accepted = signature(model.get_image_features).parameters
    given = {name: value for name, value in inputs.items() if name in accepted and isinstance(value, Tensor)}
    return features_in(model.get_image_features(**given))


def other_count(old: Any, new: Any, counts: tuple[int, int], target: Target) -> str:
    """Returns an objection if a config states another number of image tokens than the new model makes, or ""."""
    stated, after = (dict(numbers_in(model.config.to_dict())) for model in (old, new))
    for path, number in stated.items():
        if path[-1] in IMAGE_TOKENS or not STATED.search(path[-1]) or number != counts[0]:
            continue
        if after.get(path) != counts[1]:
            size = " x ".join(map(str, target.image_size[1])) if target.image_size else "the new size"
            return (
                f"config.json says {'.'.join(path)}={after.get(path)} image tokens, but the model makes {counts[1]} of "
                f"an image of {size} pixels; pass a size of which it makes {after.get(path)}"
            )
    return ""


def numbers_in(config: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from numbers_in(value, (*above, str(name)))
        elif type(value) is int:
            yield (*above, str(name)), value
