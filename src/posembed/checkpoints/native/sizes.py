"""Finds settings beside the weights that hold a size: their meaning, by name, and their values for a new size."""

from __future__ import annotations

import math
import operator
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from posembed.checkpoints.plan import Edit
from posembed.checkpoints.position_tables import ConfigField, Size, pair
from posembed.checkpoints.responses import OTHER_SIZES, WINDOWED
from posembed.errors import CheckpointError
from posembed.modelfiles.checkpoint import WeightFile
from posembed.modelfiles.safetensors import values_of
from posembed.modelfiles.training_files import Place, Tree, children, joined, nodes
from posembed.tables.layout import IMAGE_AXES

SIZES = {
    "image_size": re.compile(r"im(age|g)_?(size|sz|res)|(^|_)im_?(size|sz)|input_(size|res)|resolution"),
    "num_frames": re.compile(r"frames"),
    "patch_size": re.compile(r"^patch_?size$"),
    "num_queries": re.compile(r"^num_(object_)?queries$"),
    "grid_size": re.compile(r"grid_?size"),
    "position_size": re.compile(r"^pos\w*_size$"),  # the side of a grid, or the length of a text
    "num_patches": re.compile(r"^n(um)?_patches$"),
    "window_size": WINDOWED,
}
"""For each kind of size, the usual name of its setting, and a pattern that matches its names."""
AXES = ("time", *IMAGE_AXES)
HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[-/ ]+")
LENGTH = re.compile(
    r"length|context|(?<![a-z])((n|num|max)?position|"
    r"([a-z]*(lens?|ctx)|(n|max|num)?_?pos|block_?sizes?|max_?seq)\d*(?![a-z]))"
)
"""Matches names with a word that means a length, or that ends so."""
NO_LENGTH = re.compile(
    r"hop|^win_|word|pred|queue|dataset|label|valid|epoch|(^|_)weights?(_|$)|_per_s(ec|$)|(^|_)(avg|mean|acc)(_|$)"
)
"""Matches names of lengths that say nothing about a table."""
OF_TRAINING = re.compile(r"tokens_per_sample|(?P<image>crop|resize)")
"""Matches names of lengths and image sizes of training texts and images, which never change with a table."""
OF_STATES = re.compile(
    r"(lr_)?sched\w*|((train|val|data)_?)?(loader|sampler)s?(_states?)?|metrics?|results?|loops|callbacks|counts?|"
    r"((np|numpy|torch|cuda|python|py)_?)?(rng|random)(_?states?)?"
)
"""Matches the names of counts and states of a training loop, beside the weights."""
OF_WORDS = re.compile(r"vocab(ulary)?|[a-z]+(2|_to_)(i|id|ix|idx|index)|[si]to[is]")
PART = re.compile(r"(?<![a-z])(?:(enc(?!oding)|src|source|audio)|(dec|tgt|target|te?xt)|(vis|ima?g))")
"""Matches the names of a model's parts: an encoder (Whisper's hears sounds), a decoder (of texts), one for images."""
OF_IMAGES = re.compile(r"(vision|visual|image|img)(_?(encoder|tower|model|config|cfg|args))?")
PADDING = re.compile(r"^pad(ding)?_(token_id|idx|id|index)$")
MOST_NUMBERS = 100  # of one group of settings
LINES = ("", "num_frames", "position_size")
"""The kinds of settings that may be the length of a table of positions in a line. "" stands for no kind."""
AFTER_PADDING = 2
"""The number of reserved rows in fairseq's models, which count positions from the id of the padding token, 1."""
FEW_NUMBERS = 3
LEAST_IMAGE = 16  # pixels
LONGEST_SIZE = 100  # characters
STAYS = "--keep (keep=...) leaves it as it is"


def name_of(place: Sequence[Any]) -> str:
    """Returns the name of a setting in snake case: img_size for IMG_SIZE, visual.img_size and img_size.value."""
    names = [str(each) for each in place if each != "value"]
    return HUMP.sub("_", names[-1].rpartition(".")[2]).lower() if names else ""


def kind_of(place: Sequence[Any]) -> str:
    """Returns the key of ``SIZES`` that fits a setting's name; "" if none fits, as for a length."""
    return next((kind for kind, pattern in SIZES.items() if pattern.search(name_of(place))), "")


def sizes_in(file: WeightFile) -> dict[Place, Any]:
    """Returns, by place, the settings and the small tensors of a file that may be a length or an image size."""
    few = (((key,), tensor) for key, tensor in file.tensors.items() if math.prod(tensor.shape) <= FEW_NUMBERS)
    held = ((place, values_of(tensor)) for place, tensor in few) if file.tree is None else settings_in(file.tree)
    return {place: value for place, value in held if sides(value) is not None and may_be_size(place)}


def settings_in(tree: Tree | None) -> Iterator[tuple[Place, Any]]:
    return nodes(tree.root if tree else {}, without=holds_no_settings)


def pads(tree: Tree | None) -> bool:
    everything = nodes(tree.root if tree else {})
    return any(type(value) is int and value == 1 and PADDING.search(name_of(place)) for place, value in everything)


def is_vocabulary(place: Place, value: Any) -> bool:
    """Whether a value is a vocabulary: a dictionary with such a name, or of numbers that count up, or of very many."""
    if not isinstance(value, Mapping) or any(type(each) is not int for each in value.values()):
        return False
    if OF_WORDS.fullmatch(name_of(place)):
        return True
    starts = ({*range(at, at + len(value))} for at in (0, 1))
    return len(value) > MOST_NUMBERS or (len(value) > FEW_NUMBERS and {*value.values()} in starts)


def holds_no_settings(place: Place, value: Any) -> bool:
    """Whether a value is a vocabulary, counts things, or is the state of a training loop."""
    return is_vocabulary(place, value) or bool(children(value) and OF_STATES.fullmatch(name_of(place)))


def may_be_size(place: Place) -> bool:
    name = name_of(place)
    other = OTHER_SIZES.search(name.replace("token_len", "")) or NO_LENGTH.search(name)
    return not other and bool(LENGTH.search(name) or kind_of(place))


def nearness(place: Place, *keys: str) -> int:
    """Returns how many parts of a model the names of a setting and of one of the tables share: enc_len, encoder.wpe."""
    names = (HUMP.sub("_", name).lower() for name in (joined(place), *keys))
    of_setting, *of_tables = ({each.lastindex for each in PART.finditer(name)} for name in names)
    return max((len(of_setting & each) for each in of_tables), default=0)


def nearer(place: Place, edit: Edit) -> int:
    """Returns 1 or more if a setting belongs to a table that changes, -1 or less if to another, and 0 if to any."""
    if any(OF_IMAGES.fullmatch(name_of((each,))) for each in place[:-1]) and any(e.layout.grid for e in edit.unchanged):
        return -1
    others = (each.key for each in edit.unchanged if not each.layout.axes)
    return nearness(place, *(each.key for each in edit.tables)) - nearness(place, *others)


def plain(value: Any) -> Any:
    """Converts a number of PyTorch or numpy, or a size with such numbers, to plain Python."""
    if isinstance(value, Tensor) and value.ndim and sides(value):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    is_number = (isinstance(value, Tensor) and not value.ndim) or isinstance(value, Integral)
    return operator.index(value) if is_number and not isinstance(value, bool) and sides(value) else value


def field_of(name: str, size: tuple[int, ...], sizes: Mapping[Any, Any]) -> ConfigField:
    """Returns the setting of the kind ``name`` that holds a size. If no setting does, ``name`` itself stands for it."""
    both = size[0], size[-1]
    fits = [place for place, value in sizes.items() if kind_of(place) == name and sides(value) == both]
    value = both[0] if both[0] == both[1] else both
    return ConfigField(tuple(map(str, fits[0] if fits else (name,))), value, stated=bool(fits))


def sides(value: Any) -> Size | None:
    """Returns the (height, width) that a setting holds, or None. Its value may be one number, also in a list, or
    (height, width), (3, height, width) or (height, width, 3)."""
    value = value.tolist() if isinstance(value, Tensor) and value.ndim < 2 and value.numel() <= FEW_NUMBERS else value
    if isinstance(value, list | tuple) and 0 < len(value) <= FEW_NUMBERS:
        numbers = [int(each) for each in value if isinstance(each, Integral)]
        two = numbers[in_list(numbers)] if len(numbers) == len(value) else []
        value = two if len(two) > 1 else (*two, None)[0]
    elif isinstance(value, Integral) and not isinstance(value, bool):  # also numpy's
        value = int(value)
    return pair(value)


def in_list(value: Sequence[Any]) -> slice:
    """Returns the slice of a list that holds the sides."""
    channels_last = len(value) == 3 and value[2] in (1, 3) and value[1] >= LEAST_IMAGE
    return slice(0, 2) if channels_last else slice(-2, None)


def changed_sizes(file: WeightFile, edit: Edit) -> Iterator[tuple[Place, Any, tuple[int, ...], str]]:
    """Yields (place, value, new size, key) for each setting that holds an old size and does not belong to another
    table. key: another table in a line that stays, to which the setting may belong as well, or ""."""
    lengths, changed = new_sizes(edit)
    lines = {each.key: {pair(each.rows), pair(each.length)} for each in edit.unchanged if not each.layout.axes}
    for place, value in sizes_in(file).items():
        kind, number = kind_of(place), plain(value)
        whole = tuple(number) if isinstance(number, list) else None
        size = changed.get((kind, whole)) or changed.get((kind, sides(value)))
        one = number[0] if isinstance(value, list | tuple) and len(value) == 1 else number
        if size is None and kind in LINES and type(one) is int:
            size = pair(lengths.get(one))
        near = nearer(place, edit) if kind in LINES else 1
        if size and near >= 0:
            yield place, value, size, next((key for key in lines if not near and sides(value) in lines[key]), "")


def new_sizes(edit: Edit) -> tuple[dict[int, int], dict[tuple[str, Any], tuple[int, ...] | None]]:
    """Returns two mappings: from old to new lengths, and from pairs of a kind and an old size to new sizes."""
    lengths: dict[int, int] = {}
    for change in edit.target.changes:
        if not change.layout.axes:  # the number of cells of a grid is the length of no text
            lengths |= {change.table.rows: change.layout.rows(change.length), change.table.length: change.length}
    changed: dict[tuple[str, Any], tuple[int, ...] | None] = {}
    for of, value in edit.target.values.items():
        if (kind := kind_of(of.path)) and pair(value) != pair(of.value):
            changed[kind, pair(of.value)] = pair(value)
    for change in edit.target.changes:
        old, new = change.table.layout.axes, change.layout.axes
        if tuple(axis.name for axis in old) in (AXES, IMAGE_AXES) and not any(axis.relative for axis in old):
            before, after = (tuple(int(axis.size) for axis in axes) for axes in (old, new))
            follow: dict[tuple[str, Any], tuple[int, ...] | None]
            follow = {(kind, before[at:]): after[at:] for kind in ("grid_size", "position_size") for at in (0, -2)}
            follow["num_patches", pair(math.prod(before))] = pair(math.prod(after))
            changed |= {old: new for old, new in follow.items() if old[1] != new}
    return lengths, changed


def unchanged_sizes(tree: Tree, edit: Edit) -> Iterator[Place]:
    """Yields the places of settings with the old size in a form that is not updated, such as "224x224", of the number
    of rows of a grid, of training texts and images, and of image sizes whose new value is not known. Settings that
    change may be among them."""
    changed, image = new_sizes(edit)[1], edit.target.image_size
    old = {frames[0] for kind, frames in changed if kind == "num_frames"}
    for table in (change.table for change in edit.target.changes):
        old |= {table.rows, table.length, table.rows - AFTER_PADDING * (not table.layout.axes)}
    others = {size for each in edit.unchanged for size in (each.rows, each.length)}
    kinds = {(kind, len(each or ())) for kind, each in changed}
    of_grid = ("grid_size", 2) in kinds and ("image_size", 2) not in kinds
    for place, value in nodes(tree.root, without=is_vocabulary):
        may_be, of_training = may_be_size(place), sides(value) and OF_TRAINING.search(name_of(place))
        if not (may_be or of_training) or (isinstance(value, Tensor) and value.numel() > FEW_NUMBERS):
            continue
        kind = "image_size" if of_training and of_training["image"] else kind_of(place)
        text = str(value.tolist() if isinstance(value, Tensor) else value)
        numbers = {float(each) for each in re.findall(r"\d+(?:\.\d+)?", text)} if len(text) < LONGEST_SIZE else set()
        plainly = kind in LINES and len(numbers) == 1 and re.fullmatch(r"[\d.,()[\] ]+", text)
        if plainly and numbers <= old and (numbers.isdisjoint(others) or nearer(place, edit) >= 0):
            yield place
        unknown = kind == "image_size" and of_grid and (image is None or image[0] != image[1])
        same = any(kind == other and numbers >= {*each} for other, each in changed if each)
        if (unknown if sides(value) and may_be else same) or (unknown and of_training):
            yield place


def renewed(value: Any, new: tuple[int, ...], name: str) -> Any:
    """Returns a new size in the form of its setting. Raises CheckpointError if the setting cannot hold the size."""
    number = plain(value)
    one = isinstance(number, int)
    if (one or len(number) == 1) and len(set(new)) > 1:
        raise CheckpointError(f"{name} is one number, so the new size must be square; {STAYS}")
    made = None
    with suppress(OverflowError, RuntimeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy before 2 warns and keeps the last bits
        made = like(value, new[0] if one else new)
    if sides(made) != new[-2:]:
        raise CheckpointError(f"{name} cannot hold {max(new)} in its {value.dtype}; save it in a wider one, or {STAYS}")
    return made


def like(value: Any, new: Any) -> Any:
    """Returns a new size in the form of the old value: a number of the same type, or a list with its sides replaced."""
    if isinstance(value, Tensor):
        return torch.tensor(like(value.tolist(), new), dtype=value.dtype)
    if not isinstance(value, list | tuple):
        return type(value)(new)
    inside = list(value)
    where = slice(None) if len(new) == len(value) else in_list(value)
    inside[where] = map(like, inside[where], new)
    return type(value)(inside)
