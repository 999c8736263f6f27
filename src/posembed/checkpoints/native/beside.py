"""Changes besides the weights in one file: settings, copies of the weights, and an optimizer's moments.

A copy is recognised by the names of its tensors, or by its values. A mixed-precision optimizer keeps a second copy of
the parameters, in float32 and without names, and would overwrite the new table with the old one at its next step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posembed.checkpoints.choose import NewSize
from posembed.checkpoints.layouts import projection_beside
from posembed.checkpoints.native.optimizers import MOMENTS, changed_moments
from posembed.checkpoints.native.sizes import changed_sizes, plain, renewed, sides, sizes_in, unchanged_sizes
from posembed.checkpoints.native.stated import is_of_images
from posembed.checkpoints.plan import Edit
from posembed.checkpoints.position_tables import Tensors
from posembed.checkpoints.settings import Setting
from posembed.errors import ArgumentError, CheckpointError
from posembed.modelfiles.checkpoint import WeightFile
from posembed.modelfiles.safetensors import tensor_bytes
from posembed.modelfiles.training_files import (
    DROPPED,
    FLAT,
    Place,
    Tree,
    at,
    is_weight,
    joined,
    unwrapped,
    within,
)
from posembed.tables.modules import GIVEN, is_table_name, parent

UNKNOWN, ASKED_FOR = "it is not known which of its values belong to the table", "it was asked for"
EMA = re.compile(r"_ema$|(?<![^.])ema_(?=[^.]*$)")
"""Matches what the name of an average's module adds to that of the module itself."""
ROTATIONS = re.compile(r"(^|[._])(rope|rotary\w*|freqs?|cos|sin)(\b|_)")
OVERLAP = "{}: its images are taken to have {} x {} pixels, in patches that do not overlap; if they do, pass --grid"
FRAMES = "{}: it is not known how many frames a row stands for, so --frames is taken as its number of rows"
OR_GRID = "{}: a class token or patches are beside it; if its rows are the cells of a grid, pass --grid, not --length"
OF_PATCHES = "the weights of its patches have other shapes than its moments"


@dataclass(frozen=True)
class Beside:
    """What changes besides the weights. values: new values by place, the path of keys in the file. numbers: in a file
    of tensors only, new values of tensors that hold sizes, by key. dropped: why each entry is left out. remarks: what
    stays although it looks like a table or a size, in sentences."""

    settings: tuple[Setting, ...] = ()
    copies: Mapping[str, Edit] = field(default_factory=dict)
    values: Mapping[Place, Any] = field(default_factory=dict)
    numbers: Mapping[str, Tensor] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def changes_beside(
    file: WeightFile,
    size: NewSize,
    edit: Edit,
    plan: Callable[[Tensors], Edit],
    optimizer: str | None,
    keep: Sequence[str] = (),
) -> Beside:
    """Returns what changes besides the weights. size: what the user asks for. plan: plans the same resize for a copy of
    the weights, given its tensors. optimizer: "keep" or "drop"; None for a new file of tensors only. keep: settings
    that stay unchanged."""
    tree, values, settings = file.tree, dict[Place, Any](), []
    keys: Mapping[Place, str] = {(key,): key for key in file.tensors}
    if tree is not None:
        keys = {place: key for key, place in tree.places(tree.model).items()}
    sizes = {
        joined(place): (place, value, new, other)
        for place, value, new, other in changed_sizes(file, edit)
        if optimizer is not None or place in keys
    }
    if unknown := [name for name in keep if name not in sizes]:
        would = ", ".join(sizes) or "none"
        raise ArgumentError(f"--keep (keep=...): {unknown[0]} is no setting that changes; these do: {would}")
    unsure = {name: other for name, (*_, other) in sizes.items() if other}
    if unsure and unsure.keys().isdisjoint(keep):  # who keeps one of them has seen the others
        both = "may each be the length of {} or of {}; pass --keep (keep=...) for the latter{}"
        key, other = edit.target.table.key, next(iter(unsure.values()))
        both = both.format(key, other, "" if GIVEN.get() else ", or leave out --table")
        raise CheckpointError(f"{', '.join(unsure)} {both}")
    for place, value, new, _ in (size for name, size in sizes.items() if name not in keep):
        values[place] = renewed(value, new, f"{file.path}: {joined(place)}")
        settings.append(Setting(file.path.name, tuple(map(str, place)), plain(value), plain(values[place])))
    if tree is None or optimizer is None:
        return Beside(tuple(settings), numbers={keys[place]: new for place, new in values.items()})
    masters, mixed, like_tables = second_copies(tree, edit)
    masters |= averages(tree, edit)
    flat = [place for place in tree.others if FLAT.fullmatch(str(place[-1]))]
    mixed += flat if not set(flat).isdisjoint(mixed) else []
    dropped, why = dict.fromkeys(map(tree.entry_of, mixed), UNKNOWN), OF_PATCHES if edit.target.patch_size else UNKNOWN
    for place in tree.optimizers:
        moments = None if edit.target.patch_size else changed_moments(tree, place, edit, masters)
        values |= moments or {}
        dropped |= {tree.entry_of(place): why} if moments is None else {}
    if optimizer == "drop":
        of_optimizers = (*tree.optimizers, *filter(tree.in_state, [*masters, *mixed, *flat]))
        dropped |= dict.fromkeys(map(tree.entry_of, of_optimizers), ASKED_FOR)
    copies = {}
    for name, places, tensors in copies_in(tree, masters):
        if edit.tensors.keys().isdisjoint(places) or any(within(place, dropped) for place in places.values()):
            continue
        try:
            of_copy = plan(tensors)
        except CheckpointError as error:
            raise CheckpointError(f"{name}: a second copy of the weights, not resized: {error}") from error
        copies[name] = replace(of_copy, tables=tuple(change for change in of_copy.tables if change.key in places))
        after = {key: DROPPED if each is None else each for key, each in of_copy.tensors.items()}
        values |= {place: after[key] for key, place in places.items() if key in after}
    values = {place: new for place, new in values.items() if not within(place, dropped)}
    values |= dict.fromkeys(dropped, DROPPED)
    grids = {each.key for each in edit.unchanged if edit.target.image_size and each.layout.grid}
    like = {
        "a table of the old size": [*like_tables, *rotations(tree, edit), *unknown_tables(tree, edit)],
        "a table of another model": namesakes(tree, edit),
        "a table of another image": [place for place, key in keys.items() if key in grids],
        "a setting of the old size": unchanged_sizes(tree, edit),
    }
    remarks = [
        f"{joined(place)}: looks like {what}, and stays as it is"
        for what, places in like.items()
        for place in places
        if joined(place) not in keep and not within(place, values) and not any(within(each, [place]) for each in values)
    ]
    alone = size.image_size is not None and size.patch_size is None
    old = edit.target.image_size[0] if alone and edit.target.image_size else None
    if old and old not in map(sides, sizes_in(file).values()):
        remarks.append(OVERLAP.format(edit.target.table.key, *old))
    frames = [each for each in edit.target.values if each.path == ("num_frames",) and size.frames is not None]
    for change in edit.target.changes:
        steps = [cells.stride for cells in change.table.cells if cells.field in frames]
        projection = projection_beside(change.table.key, file.tensors) if steps == [1] else None
        deep = projection and file.tensors[projection].shape[2:-2] not in ((), (1,))
        if deep or (steps == [1] and not projection and len(change.table.cells) > 1):
            remarks.append(FRAMES.format(change.table.key))
        if not change.layout.axes and change.table.doubt and is_of_images(change.table, file.tensors, by_shape=False):
            remarks.append(OR_GRID.format(change.table.key))
    left_out = {joined((*above, FLAT.sub(r"\1", str(last)))): why for (*above, last), why in dropped.items()}
    return Beside(tuple(settings), copies, values, dropped=left_out, remarks=tuple(remarks))


def copies_in(tree: Tree, masters: Mapping[Place, str]) -> Iterator[tuple[str, dict[str, Place], Tensors]]:
    """Yields each copy of the weights: its name, the places of its tensors by the model's keys, and these tensors.
    masters: the keys of tensors copied without names, by place. A copy of these gets other tensors from the model."""
    averaged = {key for key, place in tree.places(tree.model).items() if place in masters}
    model = {key: tensor for key, tensor in tree.tensors(tree.model).items() if key not in averaged}
    copies, left = [*tree.copies.items()], list(masters)
    while left:  # each time, one copy of each tensor
        places = {masters[place]: place for place in reversed(left)}
        left = [place for place in left if place not in places.values()]
        above = next(iter(places.values()))
        while any(place[: len(above)] != above for place in places.values()):
            above = above[:-1]
        copies.append((joined(above), places))
    for name, places in copies:
        yield name, places, {**model, **{key: at(tree.root, place).detach() for key, place in places.items()}}


def second_copies(tree: Tree, edit: Edit) -> tuple[dict[Place, str], list[Place], list[Place]]:
    """Finds unnamed copies of the tensors that change. Returns their keys by place, the places of tensors that may hold
    such a copy among other values, and of tensors that look like a table but are not a known one."""
    model, masters, mixed, like = tree.tensors(tree.model), dict[Place, str](), list[Place](), list[Place]()
    changes = (*edit.tables, *edit.others)
    old = {each.key: each.before for each in changes if each.after is not None and each.before.is_floating_point()}
    shapes, least = [each.before.shape for each in edit.tables], min(each.numel() for each in old.values())
    by_shape: dict[Any, set[str]] = {}
    for key, each in model.items():
        by_shape.setdefault(each.shape, set()).add(key)
    for place, value in tree.others.items():
        beside = place in tree.beside
        if isinstance(value, np.ndarray) and value.shape in shapes:
            like.append(place)
        if not isinstance(value, Tensor) or (place[-1] in MOMENTS and not beside):
            continue
        alike = by_shape.get(value.shape, set())
        of_table, number = not alike.isdisjoint(old), is_weight(value) and value.is_floating_point()
        equal = {key for key in alike if of_table and number and same(value, model[key])}
        if equal and old.keys() >= equal and (old.keys() >= alike or varies(value)):
            masters[place] = min(equal)
        elif not beside or (equal and old.keys().isdisjoint(equal)):
            continue  # of another parameter
        elif number and (
            of_table or (not alike and value.numel() >= least)
            if tree.in_state(place)
            else any(holds(value, each) for each in old.values())
        ):
            mixed.append(place)
        elif value.shape in shapes or (is_table_name(joined(place)) and value.shape[:-1] in (s[:-1] for s in shapes)):
            like.append(place)
    return masters, mixed, like


def averages(tree: Tree, edit: Edit) -> dict[Place, str]:
    """Returns the keys, by place, of averages among a model's own tensors, as LitEma of latent-diffusion names them:
    model_ema.wpeweight for model.wpe.weight, or for wpe.weight."""
    found = dict[Place, str]()
    for places in (tree.places(tree.model), *tree.copies.values()):
        tensors = tree.values(places)
        for module in {parent(key) for key in tensors if EMA.search(parent(key))}:
            own = {key.rpartition(".")[2]: key for key in tensors if parent(key) == module}
            for above in (f"{EMA.sub('', module)}.", f"{parent(module)}.".lstrip(".")):
                inside = [key for key in tensors if key.startswith(above) and parent(key) != module]
                names = {key[len(above) :].replace(".", ""): key for key in inside}
                if len(names.keys() & own) > len(own) / 2:
                    pairs = ((own[name], key) for name, key in names.items() if name in own and key in edit.tensors)
                    found |= {places[one]: key for one, key in pairs if tensors[one].shape == tensors[key].shape}
                    break
    return found


def namesakes(tree: Tree, edit: Edit) -> list[Place]:
    """Returns the places of tensors with the name of a table and another number of rows, as a teacher's."""
    ends = {f".{unwrapped(each.key)}": each.before.shape for each in edit.tables}
    named = {place: value for place, value in tree.beside.items() if isinstance(value, Tensor)}
    return [
        place
        for place, value in named.items()
        if any(joined(place).endswith(end) and value.shape != shape for end, shape in ends.items())
    ]


def unknown_tables(tree: Tree, edit: Edit) -> list[Place]:
    """Returns the places of the model's other tensors with the name and the rows of a table, as an average's has, or
    one in which each layer has such rows (YOLOS)."""
    shapes = [each.before.shape[-2:] for each in edit.tables]
    others = {key: place for key, place in tree.places(tree.model).items() if key not in edit.tensors}
    return [place for key, place in others.items() if is_table_name(key) and at(tree.root, place).shape[-2:] in shapes]


def rotations(tree: Tree, edit: Edit) -> list[Place]:
    """Returns the places of stored sines, cosines and frequencies with as many rows as the old table."""
    rows = {size for change in edit.target.changes for size in (change.table.rows, change.table.length)}
    model = {key: place for key, place in tree.places(tree.model).items() if key not in edit.tensors}
    return [place for key, place in model.items() if ROTATIONS.search(key) and rows & {*at(tree.root, place).shape}]


def same(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors of the same shape have equal values in the narrower of their dtypes."""
    narrow = min(one.dtype, two.dtype, key=lambda dtype: dtype.itemsize)
    return two.is_floating_point() and torch.equal(one.detach().to(narrow), two.detach().to(narrow))


def varies(tensor: Tensor) -> bool:
    return bool((tensor != tensor.flatten()[:1]).any())


def holds(value: Tensor, tensor: Tensor) -> bool:
    """Whether ``value`` is larger than ``tensor`` and contains its values as one contiguous run."""
    inside = value.numel() > tensor.numel() and varies(tensor)
    return inside and bytes(tensor_bytes(tensor)) in bytes(tensor_bytes(value.detach().to(tensor.dtype)))
