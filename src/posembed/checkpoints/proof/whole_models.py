"""Runs whole models before and after a resize on PyTorch's meta device, which computes only shapes: models of any size
can run. This shows whether a model reads images of the new size, and how many tokens it makes of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from posembed.checkpoints.choose import Target
from posembed.checkpoints.position_tables import IMAGE_TOKENS, Size, fields_in
from posembed.checkpoints.proof.copies import small_copy, undisturbed
from posembed.checkpoints.proof.inputs import Misread, features_in, image_inputs, inputs_of
from posembed.checkpoints.sources.configs import models_around
from posembed.errors import CheckpointError
from posembed.words import last_line

Models: TypeAlias = tuple[nn.Module, nn.Module]  # before and after the resize
Run: TypeAlias = Callable[[Any, Mapping[str, Any]], Any]
MOST_PATCHES = 4096
STATED = re.compile(r"tokens_per_image|image_tokens|image_seq_len")


def remedy_for_window(target: Target) -> str:
    larger = "; if the window is larger than its smallest map, first set a larger image_size in config.json"
    return larger if target.of_window else ""


def run_whole(models: Models, target: Target) -> tuple[bool, tuple[int, int] | None]:
    """Runs the largest model around a table that accepts a known input, at the old and at the new size.

    Returns whether this is the outermost model and ran on the meta device, and the numbers of features that the model
    makes of an image, before and after (None if no run shows them). Refuses a model that does not run at the new size.
    """
    around = list(models_around(models[0], target.table.parameter))
    for path in reversed(around):
        parts = [model.get_submodule(path) for model in models]
        try:
            ran, counts = (tried(parts, target, run) for run in (run_forward, count_features))
            shapes = ran is not None
            if ran is counts is None and target.table.layout.grid is not None:
                small = narrow_copies(parts, target)
                ran, counts = (tried(small, target, run, "cpu") for run in (run_forward, count_features))
            if ran is counts is None:
                continue
            if counts is not None:
                refuse_other_count(parts, counts, target)
        except Misread as problem:
            raise CheckpointError(f"{target.table.key}: not resized: {problem}{remedy_for_window(target)}") from problem
        return shapes and path == around[-1], counts
    return False, None


def narrow_copies(models: Sequence[nn.Module], target: Target) -> list[nn.Module]:
    """Returns copies with few layers and heads, to run on the CPU at the true image size; [] if that is impossible."""
    if max(size for each in target.changes for size in (each.table.length, each.length)) > MOST_PATCHES:
        return []
    with undisturbed():
        try:
            return [small_copy(model, narrow=True) for model in models]
        except Exception:  # narrow copies of some models cannot be built, and large ones are not
            return []


def tried(models: Sequence[nn.Module], target: Target, run: Run, device: str = "meta") -> tuple[Any, Any] | None:
    """Runs the old model with inputs of its size until it accepts one, and the new model with the same form of input at
    its own size. Returns both results of ``run``, or None if the old model accepts no input. Raises Misread if the new
    model fails."""
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
                texts = (given[name].shape[1] for name in ("input_ids", "inputs_embeds") if name in given)
                if target.image_size is None and max(texts, default=0) > target.length[1]:
                    continue  # the new model need not read so long a text
                why = f"{type(models[1]).__name__}: {last_line(error)}"
                raise Misread(f"the model runs at its own size, but not at the new one ({why})") from error
    return None


def forms_of(model: nn.Module, size: Size | None) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
    """Yields inputs to try. Each comes with a number that the same form of input also has at another size."""
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


def count_features(model: Any, inputs: Mapping[str, Any]) -> int:
    """Returns the number of features that a model makes of an image for its text. Some models store this number."""
    computed = (getattr(module, field, None) for module in model.modules() for field in IMAGE_TOKENS)
    if (number := next((each for each in computed if type(each) is int), None)) is not None:
        return number
    accepted = signature(model.get_image_features).parameters
    given = {name: value for name, value in inputs.items() if name in accepted and isinstance(value, Tensor)}
    return features_in(model.get_image_features(**given))


def refuse_other_count(models: Sequence[Any], counts: tuple[int, int], target: Target) -> None:
    before, after = (dict(fields_in(model.config.to_dict())) for model in models)
    for path, number in before.items():
        stated = path[-1] not in IMAGE_TOKENS and STATED.search(path[-1]) and type(number) is int
        if stated and number == counts[0] and after.get(path) != counts[1]:
            size = " x ".join(map(str, target.image_size[1])) if target.image_size else "the new size"
            raise Misread(
                f"config.json says {'.'.join(path)}={after.get(path)} image tokens, but the model makes {counts[1]} of "
                f"an image of {size} pixels; pass a size of which it makes {after.get(path)}"
            )
