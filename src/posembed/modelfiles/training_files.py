"""A file of torch.save as one tree of values: a model's tensors, and what a training script saves around them.

A script may save a state dict alone, or in a dictionary with settings, an optimizer and averages of the weights. A
``Tree`` says where in the file each of these is. ``replaced`` returns the same contents with new values: the nesting,
keys, order and types stay.
"""

from __future__ import annotations

import argparse
import copy
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from posembed.modelfiles.safetensors import can_be_stored
from posembed.tables.modules import is_table_name

Place: TypeAlias = "tuple[Any, ...]"
"""The path to a value: keys, indices and names of attributes."""
Values: TypeAlias = "Iterator[tuple[Place, Any]]"
Form: TypeAlias = "tuple[tuple[int, ...], bool]"
MODELS = (
    "state_dict", "model_state_dict", "model", "module", "net", "network", "params", "weights", "ema", "model_ema",
)  # fmt: skip
"""The usual names of a model's weights in files that also hold other objects, the best name first."""
WRAPPERS = re.compile(
    r"^((module|_orig_mod|_forward_module)\.)+|\b(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)
"""Matches what DistributedDataParallel, AveragedModel, Lightning's Fabric, torch.compile, FSDP and activation
checkpointing add to the names of tensors."""
NAMESPACES = (argparse.Namespace, types.SimpleNamespace)
"""Types that hold settings as attributes."""
COPIES = re.compile(r"fp32|master")
"""Matches the names of the float32 copies that a mixed-precision optimizer keeps of parameters in float16."""
FLAT = re.compile(
    r"((?:.+?\.)??(?:state(?=\..*\.(?:step|sum|\w*(?:exp_|_avg|moment)\w*)$)|param_groups))\.(.+)\.(\w+)", re.DOTALL
)
"""Matches the entries of an optimizer's state dict that was flattened (``flatten_optimizer_state_dict``)."""
STATE = re.compile(rf"optim|^adamw?$|^exp_avg|{COPIES.pattern}|^{FLAT.pattern}$", re.DOTALL)
AVERAGES = re.compile(r"shadow(_params)?|ema(_\w+)?|averages?|averaged_\w+|params|weights")
"""Matches the names of lists that may be averages of the weights, in the model's order."""
DROPPED = object()
"""Marks an entry that is left out, in place of its new value."""


@dataclass(frozen=True)
class Tree:
    """The contents of a file. model: the place of the model's tensors, which may be nested further."""

    root: Any
    model: Place = ()

    def places(self, model: Place) -> dict[str, Place]:
        """Returns the places of a state dict's tensors by key. The keys of nested dictionaries are joined by dots."""
        held = leaves(at(self.root, model), without=is_of_optimizer)
        return {joined(place): (*model, *place) for place, value in held if is_weight(value)}

    def tensors(self, model: Place) -> dict[str, Tensor]:
        return self.values(self.places(model))

    @cached_property
    def twice(self) -> set[str]:
        """The model's keys that the file holds twice: in nested dictionaries, and joined by dots."""
        keys = [joined(place) for place, _ in leaves(at(self.root, self.model))]
        return {key for key in keys if keys.count(key) > 1} if len(keys) > len(set(keys)) else set()

    def changes(self, model: Place, tensors: Mapping[str, Tensor | None]) -> dict[Place, Any]:
        """Returns the new values of a state dict's tensors, by place. None removes a tensor."""
        places = self.places(model)
        return {places[key]: DROPPED if new is None else new for key, new in tensors.items()}

    @cached_property
    def named(self) -> dict[Place, str]:
        """The names, without those of wrappers, of all tensors that belong neither to the model nor to an optimizer."""
        outside = (place for place, value in nodes(self.root) if isinstance(value, Tensor) and not self.in_state(place))
        names = {place: ".".join(unwrapped(str(name)) for name in place) for place in outside}
        return {place: name for place, name in names.items() if not within(place, [self.model])}

    @cached_property
    def twins(self) -> dict[str, dict[str, Place]]:
        """The places, by the model's keys, of other tensors with these names, behind what is before the names. Also of
        lists of such tensors in the model's order, as diffusers keeps averages."""
        model, found = self.tensors(self.model), dict[str, dict[str, Place]]()
        of_model = {unwrapped(key): key for key in model}
        for place, whole in self.named.items():
            parts = whole.split(".")
            for end in range(len(parts)):
                if (name := ".".join(parts[end:])) in of_model:
                    found.setdefault(".".join(parts[:end]), {})[of_model[name]] = place
        untied = {(each.data_ptr(), form(each)): key for key, each in model.items()}.values()
        for place, value in nodes(self.root):
            inner = dict(children(value)) if place and AVERAGES.fullmatch(str(place[-1])) else {}
            if inner and {(*place, name) for name in inner} <= self.named.keys() and [*inner] == [*range(len(inner))]:
                kinds = [form(each) for each in inner.values()]
                keys = [key for key in untied if form(model[key]) in kinds]
                if [form(model[key]) for key in keys] == kinds and all(map(is_weight, inner.values())):
                    found[joined(place)] = {key: (*place, index) for index, key in enumerate(keys)}
        own = shapes(model)
        return {name: found[name] for name in found if agree(own, shapes(self.values(found[name])))}

    def values(self, places: Mapping[str, Place]) -> dict[str, Tensor]:
        return {key: at(self.root, place) for key, place in places.items()}

    @cached_property
    def copies(self) -> dict[str, dict[str, Place]]:
        """The ``twins`` that are copies of the weights, such as averages, with the buffers beside them."""
        model, copies = self.tensors(self.model), dict[str, dict[str, Place]]()
        for name, places in self.twins.items():
            if not are_statistics(self.values(places), model):
                copies[name] = dict(places)
        taken = {place for places in copies.values() for place in places.values()}
        for place, whole in self.named.items():
            above = max((name for name in copies if name and whole.startswith(f"{name}.")), key=len, default=None)
            if above is not None and place not in taken:
                copies[above].setdefault(whole.removeprefix(f"{above}."), place)
        return copies

    @property
    def statistics(self) -> set[Place]:
        """The places of the other ``twins``, which are numbers about the weights."""
        others = (places for name, places in self.twins.items() if name not in self.copies)
        return {place for places in others for place in places.values()}

    @cached_property
    def others(self) -> dict[Place, Any]:
        """All values by place, without the tensors of the model and its copies."""
        held = {place for places in (self.places(self.model), *self.copies.values()) for place in places.values()}
        return {place: value for place, value in leaves(self.root) if place not in held}

    @cached_property
    def beside(self) -> dict[Place, Any]:
        """The values in ``others``, without the state that optimizers keep for each parameter."""
        states = [(*each, "state") for each in self.optimizers]
        return {place: value for place, value in self.others.items() if not within(place, states)}

    @cached_property
    def entries(self) -> list[str]:
        """The names of all contents but the model's tensors: of the largest parts that contain no such tensor."""
        found, held = [], set(self.places(self.model).values())
        for place in (place for place, _ in leaves(self.root) if place not in held):
            same = next((i for i, (one, two) in enumerate(zip(place, self.model, strict=False)) if one != two), None)
            found.append(joined(place if same is None else place[: same + 1]))
        return list(dict.fromkeys(found))

    @cached_property
    def optimizers(self) -> dict[Place, Mapping[Any, Any]]:
        """The states of optimizers, as PyTorch saves them, by place."""
        return {place: value for place, value in nodes(self.root) if is_optimizer(value)}

    def in_state(self, place: Place) -> bool:
        """Whether a value belongs to the state of an optimizer."""
        return any(STATE.search(str(name)) for name in place) or within(place, filter(None, self.optimizers))

    def entry_of(self, place: Place) -> Place:
        """Returns the place to leave out if a part of an optimizer's state cannot be kept: the list or mixed-precision
        optimizer around the part or, if this also holds the model, the part alone."""
        place = next((each for each in self.optimizers if each and within(place, [each])), place or ("state",))
        names = [end for end, name in enumerate(place) if type(name) is not int]
        ends = [end for end in names if STATE.search(str(place[end]))] + names[-1:]
        entry = next((place[: end + 1] for end in ends if not self.holds_model(place[: end + 1])), place)
        above = entry[:-1]
        copies = any(COPIES.search(str(name)) and children(each) for name, each in children(at(self.root, above)))
        return above if above and copies and not self.holds_model(above) else entry

    def holds_model(self, place: Place) -> bool:
        copies = (each for places in self.copies.values() for each in places.values())
        return any(within(each, [place]) for each in (self.model, *copies))


def within(place: Place, places: Iterable[Place]) -> bool:
    """Whether a place is one of ``places``, or inside one of them."""
    return any(place[: len(each)] == each for each in places)


def is_weight(value: Any) -> bool:
    """Whether a value is a tensor that safetensors can hold. Other tensors, such as sparse ones, are never tables."""
    return isinstance(value, Tensor) and value.layout == torch.strided and can_be_stored(value.dtype)


def is_optimizer(value: Any) -> bool:
    """Whether a value is the state of an optimizer. Lookahead's has two states, neither of them called ``state``."""
    if not isinstance(value, Mapping) or "param_groups" not in value:
        return False
    groups = (each for _, each in children(value["param_groups"]) if isinstance(each, Mapping))
    return isinstance(value.get("state"), Mapping) or any("params" in each for each in groups)


def is_of_optimizer(place: Place, value: Any) -> bool:
    named = "optim" in str(place[-1]) and bool(children(value))
    return named or is_optimizer(value) or bool(FLAT.fullmatch(str(place[-1])))


def tree_of(root: Any) -> Tree | None:
    """Finds the model in the contents of a file. Returns None if no tensors in it could be a model."""
    model: Place = ()
    while True:
        inside = at(root, model)
        parts = {name: value for name, value in inside.items() if isinstance(value, Mapping)}
        found = [name for name, value in parts.items() if holds_weights(name, value)]
        own = [value for value in inside.values() if isinstance(value, Tensor) and value.ndim]
        named = [name for name in MODELS if name in found]
        # Beside a state dict, whole numbers are the state of a random generator, and others may be weights of classes.
        if any(not found or (value.is_floating_point() and not named) for value in own):
            break
        if not found:
            return None
        if not named and len(found) > 1:  # copies of a model, or the parts of one; deeper, its layers may be alike
            named = alike(inside, found) if model in ((), ("model",)) else []
            if not named:
                break
        model = (*model, (named or found)[0])
    list(nodes(root))  # raises RecursionError if one of them holds itself
    return Tree(root, model)


def alike(inside: Mapping[Any, Any], names: list[Any]) -> list[Any]:
    """Returns the names whose state dicts are copies of the first one, or []."""
    first = shapes(inside[names[0]])
    same = [name for name in names if agree(first, shapes(inside[name]))]
    return same if len(same) > 1 else []


def agree(one: Mapping[str, Form], other: Mapping[str, Form]) -> bool:
    """Whether two models are copies of one: most tensors of the first are in both, with their forms, and no table of
    positions has another number of rows, as a teacher's or a decoder's may have."""
    named = (key for key in one.keys() & other.keys() if is_table_name(key))
    pairs = ((one[key][0], other[key][0]) for key in named if len(one[key][0]) == len(other[key][0]) > 1)
    longer = any(first != second and first[-1] == second[-1] for first, second in pairs)
    return len(one.items() & other.items()) > len(one) / 2 and not longer


def are_statistics(tensors: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> bool:
    """Whether tensors with the names of a model's are numbers about its weights, such as squares of gradients or a mask
    of zeros and ones: those of a table of positions are positive, or zero, and the table's are not."""
    both = ((tensors[key], model[key]) for key in tensors if is_table_name(key))
    values = ([each.detach().float() for each in pair] for pair in both if all(map(has_values, pair)))
    return any(about.min() >= 0 > table.min() and about.max() > 0 for about, table in values)


def has_values(tensor: Tensor) -> bool:
    return is_weight(tensor) and tensor.is_floating_point() and tensor.numel() > 0 and not tensor.is_meta


def shapes(model: Mapping[Any, Any]) -> dict[str, Form]:
    return {unwrapped(joined(place)): form(each) for place, each in leaves(model) if isinstance(each, Tensor)}


def form(tensor: Tensor) -> Form:
    """Returns what a copy of a tensor has in common with it. A mask of booleans is no copy of weights."""
    return tuple(tensor.shape), tensor.is_floating_point()


def unwrapped(key: str) -> str:
    return WRAPPERS.sub("", key)


def holds_weights(name: Any, value: Mapping[Any, Any]) -> bool:
    """Whether a dictionary holds tensors outside of optimizers."""
    held = leaves({name: value}, without=is_of_optimizer)
    return any(isinstance(each, Tensor) and each.ndim for _, each in held)


def joined(place: Place) -> str:
    return ".".join(map(str, place))


def children(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, NAMESPACES):
        return list(vars(value).items())
    return list(enumerate(value)) if isinstance(value, list | tuple) else []


def nodes(value: Any, place: Place = (), *, without: Callable[[Place, Any], bool] | None = None) -> Values:
    """Yields a value and all values in it, with their places. without: whether to leave out a value and all in it."""
    if place and without is not None and without(place, value):
        return
    yield place, value
    for name, inner in children(value):
        yield from nodes(inner, (*place, name), without=without)


def leaves(value: Any, *, without: Callable[[Place, Any], bool] | None = None) -> Values:
    return ((place, each) for place, each in nodes(value, without=without) if not children(each))


def at(value: Any, place: Place) -> Any:
    for name in place:
        value = vars(value)[name] if isinstance(value, NAMESPACES) else value[name]
    return value


def still_tied(root: Any, changes: Mapping[Place, Any]) -> dict[Place, Any]:
    """Returns the new values. Tensors that shared memory before, and are still equal, share memory again."""
    kept, first = dict(changes), dict[Any, Tensor]()
    for place, new in changes.items():
        old = at(root, place)
        if isinstance(old, Tensor) and isinstance(new, Tensor) and old.layout == torch.strided:
            one = first.setdefault((old.data_ptr(), old.shape, old.stride(), old.dtype), new)
            bits = (each.view(torch.uint8) if each.element_size() == 1 else each for each in (one, new))
            kept[place] = one if torch.equal(*bits) else new  # torch.equal knows no float8
    return kept


def replaced(value: Any, changes: Mapping[Place, Any]) -> Any:
    """Copies a value with new values at some places. Parts without new values are shared with the original."""
    if () in changes:
        new = changes[()]
        is_parameter = isinstance(value, nn.Parameter) and isinstance(new, Tensor)
        return nn.Parameter(new, requires_grad=value.requires_grad) if is_parameter else new
    by_name: dict[Any, dict[Place, Any]] = {}
    for (name, *rest), new in changes.items():
        by_name.setdefault(name, {})[tuple(rest)] = new
    if not by_name:
        return value
    inner = {name: replaced(each, by_name.get(name, {})) for name, each in children(value)}
    kept = {name: each for name, each in inner.items() if each is not DROPPED}
    if isinstance(value, tuple | list):
        return type(value)(kept.values())
    new = copy.copy(value)  # an ordered dictionary, a defaultdict or a namespace stays one
    held = vars(new) if isinstance(new, NAMESPACES) else new
    for name in inner:
        if name in kept:
            held[name] = kept[name]
        else:
            del held[name]
    return new
