"""The sum of token rows and position rows, shared by all text input layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posembed.errors import ArgumentError
from posembed.kernels import Norm, lookup
from posembed.layers.learned import LearnedPositionalEmbedding, require_at_least_one
from posembed.layers.parameters import fill_
from posembed.positions.checks import check_mask, check_offset, require_integers
from posembed.positions.from_layout import consecutive, require_fit
from posembed.tables.layout import PADDING
from posembed.torch_internals import is_as_written, runs_forward_alone


class TokenEmbedding(nn.Embedding):
    """Token rows (V, D) drawn from N(0, std). The pad token's row is zero and not trained."""

    def __init__(self, vocab_size: int, dim: int, *, std: float = 0.02, pad_id: int | None = None) -> None:
        require_at_least_one(vocab_size=vocab_size, dim=dim)
        if pad_id is not None and not 0 <= pad_id < vocab_size:
            raise ArgumentError(f"pad_id must be a token, 0 .. {vocab_size - 1}, or None; got {pad_id}")
        self.std = std  # read by reset_parameters, which nn.Embedding calls
        super().__init__(vocab_size, dim, padding_idx=pad_id)

    def reset_parameters(self) -> None:
        """Draws a new table, whole or sharded."""
        rows = torch.empty(self.num_embeddings, self.embedding_dim).normal_(std=self.std)
        if self.padding_idx is not None:
            rows[self.padding_idx] = 0
        fill_(self.weight, rows)


def embed(
    token_ids: Tensor,
    tokens: nn.Embedding,
    positions: LearnedPositionalEmbedding,
    position_ids: Tensor | None = None,
    *,
    offset: int | Tensor = 0,
    mask: Tensor | None = None,
    pad_id: int | None = None,
    scale: float = 1.0,
    token_types: nn.Embedding | None = None,
    token_type_ids: Tensor | None = None,
    norm: nn.Module | None = None,
    dropout: nn.Module | None = None,
) -> Tensor:
    """Returns dropout(norm(scale x token rows + type rows + position rows)) for token_ids (B, L): (B, L, D).

    This is one lookup (``posembed.kernels``) if calling each module would only run its own forward. With a hook,
    an offloader, a patch or a subclass the modules are called one by one.

    Args:
        position_ids, offset, mask, pad_id: as in ``add_positions``.
        token_type_ids: (B, L). None means type 0 for every token, if the model has types.

    Raises:
        ArgumentError: ids that are not integers, shapes that do not fit, or types for a model without.
        PositionError: a position without a row.
    """
    token_ids = checked_token_ids(token_ids)
    if token_type_ids is not None:
        _require_types(token_types, token_type_ids, token_ids)
    place = _place(positions, token_ids, position_ids, offset=offset, mask=mask, pad_id=pad_id)
    modules = [m for m in (tokens, positions, token_types, norm, dropout) if m is not None]
    plain = all(map(_only_computes, modules)) and _are_plain(tokens, token_types, norm)
    final_dropout = _probability(positions, norm, dropout) if plain else None
    if final_dropout is not None:
        rows, row_ids = _position_rows(positions, token_ids, *place)
        return lookup(
            token_ids,
            tokens.weight,
            positions=rows,
            position_ids=row_ids,
            types=None if token_types is None else token_types.weight,
            type_ids=token_type_ids,
            scale=scale,
            norm=Norm.of(norm) if isinstance(norm, (nn.LayerNorm, nn.RMSNorm)) else None,
            dropout=final_dropout,
            padding_idx=tokens.padding_idx,
            position_padding_idx=None if row_ids is None else positions.layout.pad_row,
            sparse=tokens.sparse,
        )
    x = tokens(token_ids)
    if scale != 1:
        x = x * scale
    if token_types is not None:
        x = x + token_types(torch.zeros_like(token_ids) if token_type_ids is None else token_type_ids.to(torch.int64))
    position_ids, offset = place
    x = positions(x, position_ids, offset=offset)
    x = x if norm is None else norm(x)
    return x if dropout is None else dropout(x)


def add_positions(
    x: Tensor,
    positions: LearnedPositionalEmbedding,
    token_ids: Tensor,
    position_ids: Tensor | None = None,
    *,
    offset: int | Tensor = 0,
    mask: Tensor | None = None,
    pad_id: int | None = None,
) -> Tensor:
    """Adds position rows to x (B, L, D), made from token_ids (B, L), then applies the table's dropout.

    Without ``position_ids`` it counts tokens from ``offset``: those in ``mask``, or else those that are not
    ``pad_id``, or else all. Padding reads the table's row for padding, or position 0 if there is none.
    """
    ids, start = _place(positions, token_ids, position_ids, offset=offset, mask=mask, pad_id=pad_id)
    return positions(x, ids, offset=start)


def checked_token_ids(token_ids: Tensor) -> Tensor:
    """Returns token_ids (B, L), any integer dtype, as int64. Raises ArgumentError for anything else."""
    require_integers(token_ids, "token_ids")
    if token_ids.dim() != 2:
        raise ArgumentError(f"token_ids must be (B, L); got {tuple(token_ids.shape)}. Add the batch by token_ids[None]")
    return token_ids.to(torch.int64)


def _present(token_ids: Tensor, offset: int | Tensor, mask: Tensor | None, pad_id: int | None) -> Tensor | None:
    """Marks tokens as True: bool (B, L), or (B, K) if the mask covers earlier tokens; None means all tokens."""
    starts_here = isinstance(offset, int) and offset == 0
    if mask is None:
        if pad_id is None:
            return None
        present = token_ids != pad_id
        # A sequence needs a token, but a finished one in a batch that is still decoding continues as padding.
        return check_mask(present) if starts_here else present
    batch, length = token_ids.shape
    if not isinstance(mask, Tensor):
        return check_mask(mask)
    if mask.dim() != 2 or mask.shape[0] != batch or mask.shape[1] < length:
        raise ArgumentError(
            f"mask must be (B, L)=({batch}, {length}), or longer where it covers earlier tokens; "
            f"got {tuple(mask.shape)}"
        )
    if mask.shape[1] > length and not starts_here:
        raise ArgumentError(
            f"this mask covers {mask.shape[1] - length} earlier tokens, which offset would count again; "
            f"leave offset out, or pass mask[:, -{length}:]"
        )
    return check_mask(mask)


def _require_types(token_types: nn.Embedding | None, token_type_ids: Tensor, token_ids: Tensor) -> None:
    if token_types is None:
        raise ArgumentError("this layer has no token types: leave token_type_ids out")
    require_integers(token_type_ids, "token_type_ids")
    if token_type_ids.shape != token_ids.shape:
        raise ArgumentError(
            f"token_type_ids must be (B, L)={tuple(token_ids.shape)} as token_ids are; "
            f"got {tuple(token_type_ids.shape)}"
        )


def _place(
    positions: LearnedPositionalEmbedding,
    token_ids: Tensor,
    position_ids: Tensor | None,
    *,
    offset: int | Tensor,
    mask: Tensor | None,
    pad_id: int | None,
) -> tuple[Tensor | None, int | Tensor]:
    """Returns the positions as ``positions`` takes them: ids, or None and the offset to count from."""
    if position_ids is not None:
        if mask is not None:
            raise ArgumentError(
                "give position_ids or mask, not both: position_ids already say where each token stands "
                "(posembed.positions.from_mask makes them from a mask)"
            )
        return position_ids, offset
    present = _present(token_ids, offset, mask, pad_id)
    if present is None:
        return None, offset
    earlier = check_offset(offset)
    if isinstance(earlier, Tensor) and earlier.dim():
        if earlier.shape[0] != len(token_ids):
            raise ArgumentError(
                f"offset must be a number or (B,)=({len(token_ids)},) for these tokens; got {tuple(earlier.shape)}"
            )
        earlier = earlier[:, None]
    padding = 0 if _table(positions).layout.pad_row is None else PADDING
    counted = torch.where(present, present.cumsum(-1) - 1 + earlier, padding)
    return counted[:, counted.shape[1] - token_ids.shape[1] :], 0


def _position_rows(
    positions: LearnedPositionalEmbedding, token_ids: Tensor, position_ids: Tensor | None, offset: int | Tensor
) -> tuple[Tensor, Tensor | None]:
    """Returns the table (N, D) and each token's row number, or rows of consecutive positions (L, D) and None."""
    batch, length = token_ids.shape
    require_fit(batch, length, position_ids, offset)
    if position_ids is not None:
        return positions.weight, positions.row_ids(position_ids)
    if isinstance(offset, Tensor):
        return positions.weight, positions.row_ids(consecutive(length, offset).expand(batch, length))
    return positions.consecutive_rows(length, offset), None


_METHODS = {
    kind: {name: getattr(kind, name) for name in ("forward", "rows", "consecutive_rows") if hasattr(kind, name)}
    for kind in (nn.Embedding, TokenEmbedding, LearnedPositionalEmbedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout)
    if is_as_written(kind, "forward")
}
"""The modules that ``lookup`` can replace, with the methods that define them."""


def _only_computes(module: nn.Module) -> bool:
    """Returns whether calling the module does nothing but what its class defines."""
    kind = type(module)
    return (
        kind in _METHODS
        and runs_forward_alone(module)
        and all(getattr(kind, name) is method for name, method in _METHODS[kind].items())
    )


def _are_plain(tokens: nn.Embedding, token_types: nn.Embedding | None, norm: nn.Module | None) -> bool:
    """Returns whether no option writes to a table, changes its gradient, or makes a norm another than lookup's."""
    tables = [tokens] if token_types is None else [tokens, token_types]
    if any(table.max_norm is not None or table.scale_grad_by_freq for table in tables):
        return False
    if token_types is not None and (token_types.padding_idx is not None or token_types.sparse):
        return False
    return not isinstance(norm, (nn.LayerNorm, nn.RMSNorm)) or (
        norm.normalized_shape == (tokens.embedding_dim,) and norm.eps is not None
    )


def _probability(
    positions: LearnedPositionalEmbedding, norm: nn.Module | None, dropout: nn.Module | None
) -> float | None:
    """Returns the probability of the dropout at the end, or None if another dropout precedes it."""
    inner = positions.dropout if positions.training else 0.0
    outer = dropout.p if isinstance(dropout, nn.Dropout) and dropout.training else 0.0
    if inner and (outer or norm is not None):
        return None
    return inner or outer


def _table(positions: nn.Module) -> LearnedPositionalEmbedding:
    """Returns the position table, which a user may have wrapped in a module of their own."""
    return next(module for module in positions.modules() if isinstance(module, LearnedPositionalEmbedding))
