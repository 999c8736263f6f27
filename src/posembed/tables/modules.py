"""Finds position tables and their layouts in the modules and state dicts of any library."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from posembed.errors import ArgumentError
from posembed.tables.layout import TableLayout
from posembed.tables.rows import is_table

NAMED_LIKE_A_TABLE = re.compile(r"pos(ition)?s?(al)?_?(emb|enc)|embed_positions|\b(wpe|pe)\b|\bW_pos$")
NOT_A_TABLE = re.compile(
    r"rel(ative)?(_|pos)|_rel|rotary|bias|conv|kernel|gaussian|[xyhw]_position|2d|proj|norm|gate|scale"
)
NAMED_LIKE_TOKENS = re.compile(r"tok|word|vocab|wte|embed_in|shared|char|types?\b")
OF_DIFFERENCES = re.compile(r"relative|(^|[._])rel[._]?pos|_rel\b|distance")
POSITION_IDS = re.compile(r"^pos(ition)?(s|_ids)$")
OF_A_LAYER = re.compile(r"torch\.nn\.(?!modules\.(module|container|sparse)$)")  # sparse has nn.Embedding
MOST_LISTED = 12
GIVEN: ContextVar[str] = ContextVar("GIVEN", default="")
"""The key that the user says is a table's, in ``known_as_table``."""


def is_table_name(key: str) -> bool:
    """Returns whether a tensor is named like a position table: ``position_embeddings.weight``, ``pe``, ..."""
    given = GIVEN.get()
    if given and (key == given or (own_name(key) == own_name(given) and not NAMED_LIKE_TOKENS.search(key))):
        return True
    return bool(NAMED_LIKE_A_TABLE.search(key)) and not NOT_A_TABLE.search(key)


def may_be_table_name(key: str) -> bool:
    """Returns whether a tensor may be a position table if the user says so: its own name is not that of tokens or of a
    layer, and no part of its key speaks of differences."""
    own = own_name(key)
    of_tokens = NAMED_LIKE_TOKENS.search(own) and "position" not in own
    return not (of_tokens or NOT_A_TABLE.search(own) or OF_DIFFERENCES.search(key))


def own_name(key: str) -> str:
    """Returns the last part of a key: the name of the module, for a weight. A number follows the part before it."""
    parts = key.removesuffix(".weight").split(".")
    return ".".join(parts[-2:] if parts[-1].isdigit() else parts[-1:])


@contextmanager
def known_as_table(key: str) -> Iterator[None]:
    """Lets ``is_table_name`` accept a key, and keys that end so, such as those of copies."""
    token = GIVEN.set(key)
    try:
        yield
    finally:
        GIVEN.reset(token)


def table_key(
    tensors: Mapping[str, Any], key: str | None, *, argument: str, known: Collection[str] = (), lone: bool = True
) -> str:
    """Returns the key of the only position table among tensors, or its first key if it has several keys.

    Args:
        key: the tensor's own key, or the path of the module that holds it. None means to look for a table by name.
        argument: the name of the user's argument that sets ``key``, for the error message.
        known: keys that belong to a position table, whatever their names.
        lone: whether the only candidate counts as the table whatever its name, unless it is named like token rows.

    Raises:
        ArgumentError: no table, or several.
    """
    tables = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, Tensor) and is_table(tensor)}
    if key is not None:
        found = [key] if key in tables else [name for name in tables if name.startswith(f"{key}.")]
    else:
        found = [name for name in tables if name == "weight" or name in known or is_table_name(name)]
        found = found or list(tables) * (lone and not any(map(NAMED_LIKE_TOKENS.search, tables)))
    if len({id(tables[name]) for name in found}) == 1:  # one tensor may have several names
        return found[0]
    wanted = "one position table" if key is None else f"a position table at {key!r}"
    listed = [f"{name} {tuple(tables[name].shape)}" for name in found or tables]
    names = ", ".join(listed[:MOST_LISTED]) + f", ... ({len(listed)} in all)" * (len(listed) > MOST_LISTED)
    given = (
        "several tensors could be it" if found else "no tensor has its name" if listed else "no tensor has its shape"
    )
    remedy = f"Name it with {argument}=..." if listed else "A table is a floating tensor (N, D), (1, N, D) or (N, 1, D)"
    raise ArgumentError(f"expected {wanted}; {given}{': ' * bool(listed)}{names}. {remedy}")


def module_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Returns the parameters and buffers that may be tables. Skips torch's own layers, except nn.Embedding.

    A tensor that several modules share is listed under each of its names. A parametrized weight is listed as its
    module reads it.
    """
    tensors: dict[str, Tensor] = {}
    for path, owner in module.named_modules(remove_duplicate=False):
        if not is_layer(owner):
            held = dict(own_tensors(owner))
            held |= {name: getattr(owner, name) for name in getattr(owner, "parametrizations", ())}
            tensors |= {f"{path}.{name}".lstrip("."): tensor for name, tensor in held.items()}
    return tensors


def own_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    yield from module.named_buffers(recurse=False, remove_duplicate=False)


def is_layer(module: nn.Module) -> bool:
    """Returns whether this is a layer of torch itself, other than an embedding."""
    # PyTorch derives the class of a parametrized module from the module's own class.
    kind = type(module).__mro__[1] if is_parametrized(module) else type(module)
    return bool(OF_A_LAYER.match(kind.__module__))


def table_of_state_dict(state_dict: Mapping[str, Any], key: str | None) -> nn.Parameter:
    """Returns the position table of a state dict, trainable unless it is a frozen parameter.

    Raises:
        ArgumentError: no tensor, or several, could be the table.
    """
    if not isinstance(state_dict, Mapping):
        raise ArgumentError(
            f"expected a state dict, names to tensors; got {type(state_dict).__name__}. Pass module.state_dict(), or "
            "the module to from_module"
        )
    table = state_dict[table_key(state_dict, key, argument="key")]
    return table if isinstance(table, nn.Parameter) else nn.Parameter(table)


def table_of_module(module: nn.Module, key: str | None, layout: TableLayout | None) -> tuple[Tensor, TableLayout]:
    """Returns a module's position table and its layout: the given layout, or else the layout inferred from the module.

    Raises:
        ArgumentError: no tensor, or several, could be the table, or its layout cannot be inferred.
    """
    if not isinstance(module, nn.Module):
        raise ArgumentError(f"expected a module; got {type(module).__name__}. Pass a state dict to from_state_dict")
    tensors = module_tensors(module)
    found = key_in(module, tensors, key)
    return tensors[found], layout or layout_in(module, found)


def key_in(module: nn.Module, tensors: Mapping[str, Any], key: str | None) -> str:
    """Returns the key of the position table among the tensors of a module, as ``table_key`` does."""
    # Beside linear layers, the only embedding is more likely that of the tokens.
    layers = (layer for layer in module.modules() if is_layer(layer) and not isinstance(layer, ParametrizationList))
    lone = not any(is_table(tensor) for layer in layers for _, tensor in own_tensors(layer))
    return table_key(tensors, key, argument="key", known=with_layouts(module, tensors), lone=lone)


def with_layouts(module: nn.Module, keys: Iterable[str]) -> set[str]:
    """Returns the keys of tensors whose modules have a ``layout``, as posembed's learned tables do."""
    return {key for key in keys if has_layout(module.get_submodule(parent(key)))}


def parent(path: str) -> str:
    return path.rpartition(".")[0]


def has_layout(module: nn.Module) -> bool:
    """Returns whether a module has a ``layout``, which gives the roles of its table's rows."""
    return isinstance(getattr(module, "layout", None), TableLayout)


def layout_in(module: nn.Module, key: str) -> TableLayout:
    """Returns the layout of the table under ``key``, inferred from the modules around it.

    Raises:
        ArgumentError: the table has a padding row, and nothing shows where its positions begin.
    """
    path = parent(key)
    owner, around = module.get_submodule(path), module.get_submodule(parent(path))
    if has_layout(owner):
        return owner.layout  # type: ignore[return-value]
    if (shown := shown_layout(owner, around if path else None)) is not None:
        return shown
    if (shown := patches_layout(owner, key.rpartition(".")[2])) is not None:
        return shown
    for name, ids in (*owner.named_buffers(recurse=False), *around.named_buffers(recurse=False)):
        if POSITION_IDS.search(name) and not ids.is_floating_point() and ids.numel() and not ids.is_meta:
            return TableLayout(reserved=max(int(ids.flatten()[0]), 0))
    if (padding := getattr(owner, "padding_idx", None)) is not None:
        raise ArgumentError(
            f"{key} has padding_idx={padding}, and nothing shows which row position 0 reads. Pass layout=TableLayout() "
            f"if it is row 0, layout=TableLayout.roberta(pad_id={padding}) if it is row {padding + 1}"
        )
    return TableLayout()


def patches_layout(owner: nn.Module, name: str) -> TableLayout | None:
    """Returns the layout of a table of image patches, from the grid that timm's models keep, or None without a grid."""
    grid = getattr(getattr(owner, "patch_embed", None), "grid_size", None)
    rows = table.shape[-2] if isinstance(table := getattr(owner, name, None), Tensor) and table.dim() > 1 else 0
    if not isinstance(grid, tuple) or len(grid) != 2:
        return None
    others = rows - grid[0] * grid[1]
    tokens = getattr(owner, "num_prefix_tokens", others)  # class, distillation and register tokens
    return TableLayout(prefix=others, grid=grid) if others in (0, tokens) and others >= 0 else None


def shown_layout(owner: nn.Module, around: nn.Module | None) -> TableLayout | None:
    """Returns the layout that the attributes of a table's module show, or None.

    BART and OPT have an ``offset``. RoBERTa's embeddings, in ``around``, count positions from the padding row, and so
    does fairseq's table, as its ``max_positions`` shows. Elsewhere (LXMERT) a ``padding_idx`` only means that this row
    gets no gradient.
    """
    offset, padding = getattr(owner, "offset", None), getattr(owner, "padding_idx", None)
    if type(offset) is int and offset > 0:
        return TableLayout(reserved=offset, pad_row=offset - 1)
    if padding is not None:
        beyond = getattr(owner, "num_embeddings", 0) - padding - 1
        if getattr(around, "padding_idx", None) == padding or getattr(owner, "max_positions", None) == beyond:
            return TableLayout.roberta(padding)
    return None
