"""Changes besides the weights in one file: settings, copies of the weights, and an optimizer's moments.

A copy is recognised by the names of its tensors, or by its values. A mixed-precision optimizer keeps a second copy of
the parameters, in float32 and without names, and would overwrite the new table with the old one at its next step.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from posembed.checkpoints.choose import NewSize
from posembed.checkpoints.layouts import projection_beside
from posembed.checkpoints.native.sizes import changed_sizes, plain, renewed, sides, sizes_in, unchanged_sizes
from posembed.checkpoints.plan import Edit, TableChange
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
    children,
    form,
    is_weight,
    joined,
    leaves,
    unwrapped,
    within,
)
from posembed.tables.modules import is_table_name, parent

MOMENTS = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer"}
"""The names of gradient averages (moments) that start at zero. A ``square_avg`` does in RMSprop of PyTorch, but starts
at one in timm's; Adagrad says where its ``sum`` starts."""
UNKNOWN, ASKED_FOR = "it is not known which of its values belong to the table", "it was asked for"
EMA = re.compile(r"_ema$|(?<![^.])ema_(?=[^.]*$)")
"""Matches what the name of an average's module adds to that of the module itself."""
ROTATIONS = re.compile(r"(^|[._])(rope|rotary\w*|freqs?|cos|sin)(\b|_)")
OVERLAP = "{}: its images are taken to have {} x {} pixels, in patches that do not overlap; if they do, pass --grid"
FRAMES = "{}: it is not known how many frames a row stands for, so --frames is taken as its number of rows"
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
        both = "may each be the length of {} or of {}; pass --keep (keep=...) for the latter, or leave out --table"
        other = next(iter(unsure.values()))
        raise CheckpointError(f"{', '.join(unsure)} {both.format(edit.target.table.key, other)}")
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
        if projection and file.tensors[projection].shape[2:-2] not in ((), (1,)):
            remarks.append(FRAMES.format(change.table.key))
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
        tensors = {key: at(tree.root, place) for key, place in places.items()}
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
    """Returns the places of the model's other tensors with the name and the shape of a table, as an average's has."""
    shapes = [each.before.shape for each in edit.tables]
    others = {key: place for key, place in tree.places(tree.model).items() if key not in edit.tensors}
    return [place for key, place in others.items() if is_table_name(key) and at(tree.root, place).shape in shapes]


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


def changed_moments(tree: Tree, place: Place, edit: Edit, masters: Mapping[Place, str]) -> dict[Place, Tensor] | None:
    """Returns an optimizer's moments for the tables, in the new sizes, by place. Unchanged rows keep their moments; the
    moments of all other rows start where the optimizer starts. None if it is unknown which moments belong to the
    tables, or what the optimizer keeps.

    A state dict of torch.distributed.checkpoint names the parameters. Others number the parameters in an order that
    only the script knows, so a table is recognised by its shape, or by a copy of the table among its moments. masters:
    the keys of such copies, by place. Names and shapes say nothing if another network in the file has them too.
    """
    found, at_state, optimizer = dict[Place, Tensor](), (*place, "state"), tree.optimizers[place]
    if not isinstance(optimizer.get("state"), Mapping):
        return None if any(isinstance(each, Tensor) for _, each in leaves(optimizer)) else {}
    own = {key: at(tree.root, each) for key, each in tree.places(tree.model).items() if each not in masters}
    model = {unwrapped(key): tuple(each.shape) for key, each in own.items()}
    untied = {(each.data_ptr(), tuple(each.shape)) for each in own.values()}
    floats = ((each, *form(value)) for each, value in tree.beside.items() if isinstance(value, Tensor))
    beside = [(each, shape) for each, shape, real in floats if real and not (each in masters or tree.in_state(each))]
    of_model, of_others = (Counter(shape for _, shape in each) for each in (untied, beside))
    others = {(unwrapped(joined(each[start:])), shape) for each, shape in beside for start in range(len(each))}
    names, starts = dict[Any, str](), set[Any]()  # names: of numbered parameters, where the optimizer was given them
    for group in (each for _, each in children(optimizer["param_groups"]) if isinstance(each, Mapping)):
        names |= zip(group.get("params") or (), group.get("param_names") or (), strict=False)
        start = group.get("initial_accumulator_value")
        starts.add(start if isinstance(start, int | float) else None)
    known: dict[Any, Any] = {**dict.fromkeys(MOMENTS, 0.0), "sum": starts.pop() if len(starts) == 1 else None}
    kept = [*moments_of(tree, place)]
    named = {number: unwrapped(str(names.get(number, number))) for number, *_ in kept}
    copied = {joined(each[len(at_state) + 1 :]) for each in masters if within(each, [at_state])}
    held = [each for each in kept if each[1] not in copied]
    sizes = {number: tuple(each.shape) for number, name, each in held if name in known}
    sized = {(named[number], shape) for number, shape in sizes.items()}
    by_name = sized <= model.items() and not sized <= others
    placed = ({*named.values()} <= model.keys() and sized <= model.items()) or (
        {*named.values()} <= {name for name, _ in others} and sized <= others
    )
    means = all(known.get(name) is not None for _, name, _ in held)
    plain = means and Counter(sizes.values()) <= of_model + of_others
    elsewhere = {each.shape for other in tree.optimizers if other != place for *_, each in moments_of(tree, other)}
    for change in edit.tables:
        shape, wanted = change.before.shape, unwrapped(change.key)
        pinned = {
            each[len(at_state)] for each, key in masters.items() if key == change.key and within(each, [at_state])
        }
        same = {one for one, _, each in held if each.shape == shape}
        if pinned or all(each.isdigit() for each in named.values()):
            alike = pinned or same
            certain = bool(pinned) or (of_model[shape] == 1 and not of_others[shape])
            if not alike and (plain or shape in elsewhere):
                continue  # it optimizes other parameters
        else:
            alike = {one for one, _, _ in held if named[one] == wanted}
            certain = by_name or (wanted, tuple(shape)) not in others
            if not alike and placed:
                continue  # it optimizes other parameters
        moments = {(*at_state, number, name): each for number, name, each in held if number in alike}
        fit = all(form(each) == (shape, True) and each.layout is torch.strided for each in moments.values())
        if len(alike) != 1 or not (certain and means and fit):
            return None
        found |= {each: resized_moment(moment, change, edit, known[each[-1]]) for each, moment in moments.items()}
    return found


def moments_of(tree: Tree, optimizer: Place) -> Iterator[tuple[Any, Any, Tensor]]:
    """Yields each tensor that an optimizer keeps, after its parameter's number or name, and its own name."""
    for place, each in leaves(tree.optimizers[optimizer].get("state")):
        if isinstance(each, Tensor) and each.ndim:
            yield place[0], place[1] if len(place) == 2 else joined(place[1:]), each


def resized_moment(moment: Tensor, change: TableChange, edit: Edit, start: float) -> Tensor:
    """Returns a table's moment in the new size. start: its value for rows that are new or changed."""
    size = next(each for each in edit.target.changes if each.table.key == change.key)
    centred = any(axis.relative and axis.signed for axis in size.layout.axes)

    def placed(rows: Tensor, length: int | tuple[int, ...]) -> Tensor:
        padding, sizes = [0, 0], (length,) if isinstance(length, int) else length
        for old, new in zip(reversed(rows.shape[:-1]), reversed(sizes), strict=True):
            first = (new - old) // 2 if centred else 0
            padding += [first, new - old - first]
        return functional.pad(rows, padding, value=math.nan)

    moved = (size.resized(change.before, placed), change.after, size.resized(moment, placed))
    as_bytes = {"memory_format": torch.contiguous_format}  # rows of one number too
    before, after, rows = (size.layout.rows_in(each).detach().clone(**as_bytes) for each in moved)
    kept = (before.view(torch.uint8) == after.view(torch.uint8)).all(dim=1, keepdim=True)
    return size.layout.stored(torch.where(kept, rows, start), like=moment)
