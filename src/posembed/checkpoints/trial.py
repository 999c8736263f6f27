"""Runs small copies of a model before and after a resize, to check which rows of its table the model reads.

Matching shapes do not show that a model works at a new size: some models read a table by coordinates or interpolate
it, and some take only square images. The gradients of one run show which rows are read. Token i of a text must read the
row of position i, and each patch of an image must read the row of its own cell.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter, signature
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from posembed.checkpoints.choose import Target
from posembed.checkpoints.found import ConfigField, PositionTable, Size, TableSize, pair
from posembed.checkpoints.rebuild import LAYERS, last_line, models_around, quiet, takes_text
from posembed.errors import CheckpointError
from posembed.tables.layout import TableLayout
from posembed.tables.resize import resize_table

LONGEST_TEXT = 1024  # in tokens; longer tables are tried with texts of this length
SHORT_TEXTS = (16, 64, 512)  # in tokens; some models accept only lengths that are a multiple of some number
MOST_CELLS = 1024  # the maximum number of grid cells to compare with all patches
LARGEST_GRID = 10_000  # the maximum number of grid cells to try; larger grids are tried in copies with few cells
TOLERANCE = 1e-4
HEADS = re.compile(r"heads$|^n_head$")
FEED_FORWARD = re.compile(r"intermediate_size$|ffn_dim$")
FEW = 2  # layers, heads
FEW_TOKENS = 1024  # rows of a vocabulary
SHORT_TEXT = 8
MOST_NUMBERS = 64_000_000  # the maximum number of values in a copy or an image: 256 MB
NO_RUN = "no small copy of its model could be run to check which rows it reads ({})"
LOUDER = 10  # the factor by which initial weights are multiplied


class NotTried(Exception):  # noqa: N818 - never leaves this file
    """Raised if no small copy of a model could be run. The message gives the reason."""


class TooLarge(NotTried):
    """Raised if a small copy would take too much memory."""


@dataclass(frozen=True)
class Reading:
    """A claim to be checked: ``model``, on the meta device, reads its table with the layout and the length of ``size``.
    image: for grids, the (height, width) of an image in pixels. beside: the sizes of tables that change with it."""

    model: nn.Module
    size: TableSize
    image: Size | None
    beside: Sequence[TableSize] = ()


def refuse_misread(old_model: nn.Module, new_model: nn.Module, target: Target) -> list[tuple[TableSize, str]]:
    """Refuses a table if the model reads other rows than planned, or if no run can show which rows a text reads.
    Returns the tables along axes that ``runs.py`` must check, with the reason why an image did not ("" without a try).

    Two kinds of tables are accepted without a run. The rows of fixed sinusoids in a line follow from a formula at any
    position. If a text model cannot be run even at its own size, the names of its field and inputs must suffice.
    """
    old_image, new_image = target.image_size or (None, None)
    left = []
    for change in target.changes:
        table, in_line = change.table, not change.layout.axes
        if not is_plain(change):
            left.append((change, ""))
            continue
        if table.kind == "sinusoidal" and in_line:
            continue
        before = Reading(old_model, TableSize(table, table.layout, table.length), old_image)
        after = Reading(new_model, change, new_image, [other for other in target.changes if other.layout.axes])
        try:
            problem = contradiction(before, after)
        except NotTried as reason:
            models = map(old_model.get_submodule, models_around(old_model, table.parameter))
            if in_line and target.is_text and any(map(takes_text, models)):
                continue
            problem = NO_RUN.format(reason)
            if not in_line:
                left.append((change, problem))
                continue
        if problem:
            raise CheckpointError(f"{table.key}: not resized: {problem}")
    return left


def is_plain(change: TableSize) -> bool:
    """Returns whether a table holds the positions of a text, or a grid of patches in its rows that is not too large."""
    table = change.table
    return not table.layout.axes or (
        table.layout.grid is not None
        and table.patch is not None
        and not table.layout.dims
        and max(table.length, change.length) <= LARGEST_GRID
    )


def contradiction(before: Reading, after: Reading) -> str:
    """Runs small copies of both models. Returns the reason to refuse the resize, or "". Raises NotTried if no copy
    could be run."""
    reasons = []
    for path, narrow in product(models_around(before.model, before.size.table.parameter), (True, False)):
        try:
            found = misreading(before, path, narrow=narrow)
        except NotTried as reason:
            reasons.append(reason)
            continue
        try:
            found = found or misreading(after, path, narrow=narrow)
            return found or other_answer(before, after, path, narrow=narrow)
        except TooLarge:
            raise
        except NotTried as reason:
            return f"a small copy of the model runs at its own size, but not at the new one ({reason})"
    raise reasons[0] if reasons else NotTried("no model of transformers contains it")


def reads(model: nn.Module, table: PositionTable) -> bool:
    """Returns whether a small copy of a model on the meta device reads an image's cells as a table's layout says."""
    value = table.cells[0].field.value
    size = TableSize(table, table.layout, table.length)
    for path, narrow in product(models_around(model, table.parameter), (True, False)):
        try:
            return not misreading(Reading(model, size, pair(value)), path, narrow=narrow)
        except NotTried:
            continue
    return False


@contextmanager
def undisturbed() -> Iterator[None]:
    """Runs models on the CPU with gradients and a fixed seed, without changing the caller's modes and generators."""
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.device("cpu"), quiet():
        torch.default_generator.manual_seed(0)  # leaves the generators of other devices alone
        yield


def misreading(reading: Reading, path: str, *, narrow: bool) -> str:
    """Runs a small copy of the model at ``path``. Returns an objection if it contradicts ``reading``, or "". Raises
    NotTried if it cannot be run."""
    model = reading.model.get_submodule(path)
    with undisturbed():
        try:
            small = small_copy(model, narrow=narrow)
            table = small.get_parameter(reading.size.table.parameter.removeprefix(f"{path}."))
            table.requires_grad = True  # fixed sinusoids do not require gradients
            if reading.image is None:
                return wrong_line(small, table, reading.size)
            return wrong_grid(small, table, reading.size, reading.image)
        except TooLarge:
            raise
        except Exception as error:  # each model raises its own errors
            raise NotTried(f"{type(model).__name__}: {last_line(error)}") from error


def other_answer(before: Reading, after: Reading, path: str, *, narrow: bool) -> str:
    """Returns an objection if the output for a text changes although it reads the same rows, or "". This happens in
    DeBERTa, because of its distance buckets."""
    if before.image is not None:
        return ""  # an image of another size is a different input
    with undisturbed():
        old, new = (small_copy(reading.model.get_submodule(path), narrow=narrow) for reading in (before, after))
        with torch.no_grad():
            for parameter in old.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(LOUDER)  # otherwise attention is nearly uniform, whatever the scores are
            held = dict(new.named_parameters())
            for name, parameter in old.named_parameters():
                shared = tuple(map(slice, map(min, parameter.shape, held[name].shape)))
                held[name][shared] = parameter[shared]
            for change in after.beside:
                name = change.table.parameter.removeprefix(f"{path}.")
                if name in held:
                    sizes = {axis.name: axis.size for axis in change.layout.axes}
                    held[name].copy_(resize_table(old.get_parameter(name), sizes=sizes, layout=change.table.layout))
        shortest = min(before.size.length, after.size.length)
        for tokens in (min(shortest, LONGEST_TEXT), *(short for short in SHORT_TEXTS if short <= shortest)):
            try:
                inputs, answers = text_inputs(old, tokens), []
                for model in (old, new):
                    torch.default_generator.manual_seed(0)  # some models have random attention
                    answers.append([output.detach() for output in floats_in(model(**inputs))])
            except Exception:  # not a multiple that the model accepts
                continue
            same = all(
                one.shape == other.shape and torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)
                for one, other in zip(*answers, strict=False)
            )
            return "" if same else f"a text of {tokens} tokens gets another output at the new length with the same rows"
    return ""


def wrong_line(model: nn.Module, table: nn.Parameter, size: TableSize) -> str:
    """Checks that token i reads the row of position i, in a text of full length and in a short text. Returns an
    objection, or ""."""
    full = min(size.length, LONGEST_TEXT)
    failure = None
    for tokens in (full, *(short for short in SHORT_TEXTS if short < full)):
        try:
            if wrong := wrong_rows(model, table, size.layout.front, tokens):
                return wrong
        except Exception as error:  # a shorter text may still show which rows are read
            failure = error if tokens == full else failure
        else:
            if tokens < full:
                break
    if failure is not None:
        raise failure
    return ""


def wrong_rows(model: nn.Module, table: nn.Parameter, front: int, tokens: int) -> str:
    (gradient,) = gradients(model, text_inputs(model, tokens), table)
    read = set(gradient.flatten(0, -2).any(dim=1).nonzero().flatten().tolist())
    expected = set(range(front, front + tokens))
    if not read:
        raise NotTried(f"{type(model).__name__} reads none of its rows for a text alone")
    # Front rows may be read for padding; the row of a padding index is read but gets no gradient.
    if read - set(range(front)) - expected or len(expected - read) > 1:
        found, wanted = (f"rows {min(rows)} to {max(rows)}, {len(rows)} in all" for rows in (read, expected))
        return f"a text of {tokens} tokens reads {found}, instead of {wanted}"
    return ""


def wrong_grid(model: nn.Module, table: nn.Parameter, size: TableSize, image: Size) -> str:
    """Checks that each patch reads the row of its own cell. Returns an objection, or "".

    A patch's pixels x and its row p enter a model as W x + p, so the gradient at x is the gradient at p times W (or
    nearly so, if there is a norm in between). The patch with the most similar gradient must be the row's own patch.
    """
    (height, width), (lines, columns) = size.table.patch or (1, 1), size.layout.grid or (1, 1)
    pixels, rows = image_gradients(model, table, image)
    rows = size.layout.split(size.layout.rows_in(rows))[1]
    if not rows.any(dim=1).all():
        return "the model does not read one row for each patch"
    patches = pixels[:, : lines * height, : columns * width].unfold(1, height, height).unfold(2, width, width)
    patches = patches.permute(1, 2, 0, 3, 4).flatten(0, 1).flatten(1)
    some = torch.linspace(0, len(rows) - 1, min(len(rows), MOST_CELLS)).long()
    projections = [
        module
        for module in model.modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
        and tuple(module.weight.flatten(1).shape) == (rows.shape[1], patches.shape[1])
    ]
    for projection in projections:
        expected = rows[some] @ projection.weight.detach().flatten(1)
        likeness = normalize(expected) @ normalize(patches).T
        error = (expected - patches[some]).abs().max() / patches[some].abs().max()
        if torch.equal(likeness.argmax(dim=1), some) or error < TOLERANCE:
            return ""
        if isinstance(projection, nn.Conv2d) and is_read_behind(projection, model, table, size.layout, image):
            return ""
    convolutions = [projection for projection in projections if isinstance(projection, nn.Conv2d)]
    if not convolutions:
        raise NotTried("it has no convolution of patches")
    if any(any(convolution.padding) for convolution in convolutions):
        raise NotTried("its patches reach beyond the image")
    return f"the patches of an image do not read the cells of a {lines} x {columns} grid, row by row"


def is_read_behind(
    projection: nn.Conv2d, model: nn.Module, table: nn.Parameter, layout: TableLayout, image: Size
) -> bool:
    """Returns whether the gradient at each output of a convolution of patches is most similar to that at its own row.

    A norm between both changes the pixels' gradients so much that small patches look alike.
    """
    found: list[Tensor] = []
    hook = projection.register_forward_hook(lambda _layer, _inputs, output: found.append(output))
    try:
        inputs = next(image_inputs(model, image))
        total = random_total(model, inputs)
    except Exception:  # another form of image
        return False
    finally:
        hook.remove()
    rows, cells = torch.autograd.grad(total, (table, found[0]), allow_unused=True, materialize_grads=True)
    own, here = layout.split(layout.rows_in(rows))[1], cells.sum(dim=0).flatten(1).T
    return own.shape == here.shape and torch.equal(
        (normalize(own) @ normalize(here).T).argmax(dim=1), torch.arange(len(own))
    )


def image_gradients(model: nn.Module, table: nn.Parameter, size: Size) -> tuple[Tensor, Tensor]:
    """Returns the gradient of a run with respect to an image (C, height, width), summed over frames, and the gradient
    with respect to a table."""
    failure = None
    for inputs in image_inputs(model, size):
        image = list(inputs.values())[-1].requires_grad_()
        try:
            rows, pixels = gradients(model, inputs, table, image)
        except Exception as error:
            failure = failure or error
            continue
        return pixels.flatten(0, -4).sum(dim=0), rows
    raise failure or NotTried("it takes no pixel_values")


def gradients(model: nn.Module, inputs: Mapping[str, Any], *tensors: Tensor) -> tuple[Tensor, ...]:
    """Returns the gradients, with respect to these tensors, of a random linear function of all outputs of a model."""
    return torch.autograd.grad(random_total(model, inputs), tensors, allow_unused=True, materialize_grads=True)


def random_total(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """Returns a random linear function of all outputs of a model."""
    return torch.stack([(output * torch.randn_like(output)).sum() for output in floats_in(model(**inputs))]).sum()


def small_copy(
    model: nn.Module, *, narrow: bool, few_layers: bool = True, settings: Sequence[tuple[ConfigField, Any]] = ()
) -> nn.Module:
    """Builds a model of the same class on the CPU with few tokens and, if asked for, few layers and few heads.

    settings: config fields of the whole model, and other values of them.
    """
    config: Any = copy.deepcopy(model.config)
    make_small(config, narrow=narrow, few_layers=few_layers)
    for field, value in settings:
        set_in(config, field, value)
    kind: Any = type(model)
    with torch.device("meta"):
        sketch = kind(copy.deepcopy(config))
    if sum(tensor.numel() for tensor in (*sketch.parameters(), *sketch.buffers())) > MOST_NUMBERS:
        raise TooLarge(f"{kind.__name__} is too large to be tried")
    small: nn.Module = kind(config).float().eval()
    for parameter in small.parameters():
        if not parameter.any():  # gates and scales of zero would hide which rows are read
            nn.init.normal_(parameter, std=0.02)
    return small


def set_in(config: Any, field: ConfigField, value: Any) -> None:
    """Sets a field of the whole model's config in the config object of a part of the model."""
    for start in range(len(field.path)):
        section = config
        for name in field.path[start:-1]:
            section = getattr(section, name, None)
        if hasattr(section, field.path[-1]):
            setattr(section, field.path[-1], value)
            return


def make_small(config: Any, *, narrow: bool, few_layers: bool = True) -> None:
    """Shrinks a config object and its nested configs in place. Lengths and image sizes stay the same."""
    from transformers import PretrainedConfig

    numbers = [(name, value) for name, value in vars(config).items() if type(value) is int]
    heads = next((getattr(config, name, None) for name in ("num_attention_heads", "num_heads")), None)
    width = getattr(config, "hidden_size", None)
    narrow_width = None
    if narrow and type(heads) is type(width) is int and heads > FEW:
        narrow_width = config.hidden_size = width // heads * FEW
    for name, value in numbers:
        most = value
        if LAYERS.search(name) and value > FEW:
            if not few_layers:
                continue
            most = FEW
            for other, items in list(vars(config).items()):
                if isinstance(items, list | tuple) and len(items) == value:  # a list with an item per layer
                    setattr(config, other, items[:FEW])
        elif narrow and HEADS.search(name):
            most = FEW
        elif narrow_width and FEED_FORWARD.search(name):
            most = 4 * narrow_width
        elif name.endswith(("vocab_size", "_token_id")):
            most = FEW_TOKENS - name.endswith("_token_id")
        if value > most:
            setattr(config, name, most)
    if isinstance(getattr(config, "mask_ratio", None), float):
        config.mask_ratio = 0.0  # MAE's encoder drops most patches
    for inner in list(vars(config).values()):
        if isinstance(inner, PretrainedConfig):
            make_small(inner, narrow=narrow, few_layers=few_layers)


def text_inputs(model: nn.Module, tokens: int) -> dict[str, Any]:
    """Returns arguments for a model's forward with a random text. Raises NotTried if the model takes no text."""
    if not takes_text(model):
        raise NotTried("it takes no text")
    accepted = signature(model.forward).parameters
    sections = (model.config, getattr(model.config, "text_config", None))
    sizes = [size for section in sections if type(size := getattr(section, "vocab_size", None)) is int]
    special = {value for name, value in vars(model.config).items() if name.endswith("_token_id")}
    ordinary = [token for token in range(sizes[0] if sizes else FEW_TOKENS) if token not in special]
    ids = torch.tensor(ordinary or [0])[torch.randint(len(ordinary) or 1, (1, tokens))]
    given = {
        "input_ids": ids,
        "decoder_input_ids": ids,
        "bbox": torch.zeros(1, tokens, 4, dtype=torch.int64),
        "visual_feats": torch.zeros(1, 3, getattr(model.config, "visual_feat_dim", 1)),
        "visual_pos": torch.zeros(1, 3, 4),
    }
    number = Parameter.POSITIONAL_OR_KEYWORD
    others = {name: 1 for name, p in accepted.items() if p.kind is number and p.default is p.empty}
    return others | {name: value for name, value in given.items() if name in accepted}


def image_inputs(model: nn.Module, size: Size) -> Iterator[dict[str, Any]]:
    """Yields arguments to try with a model: a text, if the model takes one, and last a random image or video."""
    accepted = signature(model.forward).parameters
    texts = text_inputs(model, SHORT_TEXT) if takes_text(model) else {}
    name = next((name for name in ("pixel_values", "pixel_values_videos", "image", "images") if name in accepted), None)
    if name is not None:
        channels, frames = getattr(model.config, "num_channels", 3), getattr(model.config, "num_frames", None)
        for shape in ((1, channels),) if frames is None else ((1, frames, channels), (frames, channels)):
            if math.prod((*shape, *size)) > MOST_NUMBERS:
                raise TooLarge("its images are too large to be tried")
            yield {**texts, name: torch.randn(*shape, *size)}


def floats_in(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor) and outputs.is_floating_point() and outputs.requires_grad:
        yield outputs
    elif isinstance(outputs, Mapping | list | tuple):
        for value in outputs.values() if isinstance(outputs, Mapping) else outputs:
            yield from floats_in(value)
