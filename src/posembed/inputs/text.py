"""The base of text input layers, which add token, type and position rows, then apply a norm and dropout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from posembed.arguments import ChecksCalls, Float, Integer, Shaped
from posembed.errors import ArgumentError
from posembed.inputs.base import InputLayer
from posembed.layers.base import fill_
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.layers.lookup import Request, lookup
from posembed.positions.checks import check_mask, check_offset, require_integers
from posembed.positions.from_layout import consecutive, require_fit
from posembed.settings import Count, NotNegative
from posembed.tables.layout import PADDING, TableLayout
from posembed.torch_internals import is_as_written, runs_forward_alone

FAIRSEQ_PAD_ID = 1
"""The padding token of every dictionary that fairseq makes."""


class TokenEmbedding(ChecksCalls, nn.Embedding):
    """A table of token rows (vocab_size, dim), drawn from N(0, std^2). The pad token's row is zero and not trained.

    Raises:
        ArgumentError: a size below 1, or a pad_id that is not a token.

    Examples:
        >>> import torch
        >>> from posembed.inputs import TokenEmbedding
        >>> tokens = TokenEmbedding(vocab_size=100, dim=64, pad_id=0)
        >>> tokens(torch.tensor([[5, 6, 0]]))[0, 2].abs().sum().item()
        0.0
    """

    def __init__(self, *, vocab_size: Count, dim: Count, std: NotNegative = 0.02, pad_id: int | None = None) -> None:
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


class TextInput(InputLayer):
    """Computes dropout(norm(scale x token rows + type rows + position rows)) from the parts that a model declares.

    One lookup adds all rows if the modules are unmodified. If a module has a hook, an offloader, a patch or a changed
    class, the modules are called one by one. To add a model, write a subclass with a ``declaration``. Its constructor
    builds the parts from its own arguments and from

        vocab_size, max_len, dim    the numbers of tokens and positions, and the width D of their rows;
        dropout                     the probability of the dropout at the end, in training;
        pad_id                      the token whose row is zero and not trained, or None.

    The constructor raises ArgumentError for an argument that cannot be used.

    Raises:
        ArgumentError: ``forward`` gets ids that are not integers, shapes that do not fit, or types that a model lacks.
        PositionError: ``forward`` gets a position without a row.

    Examples:
        >>> import torch
        >>> from posembed import LearnedPositionalEmbedding
        >>> from posembed.inputs import Declaration, TextInput, TokenEmbedding
        >>> class MyInput(TextInput):
        ...     declaration = Declaration(families=("my_model",), tokens="tokens", positions="positions")
        ...     def __init__(self, *, vocab_size, max_len, dim):
        ...         super().__init__()
        ...         self.tokens = TokenEmbedding(vocab_size=vocab_size, dim=dim)
        ...         self.positions = LearnedPositionalEmbedding(max_len=max_len, dim=dim)
        >>> MyInput(vocab_size=100, max_len=32, dim=16)(torch.randint(100, (2, 20))).shape
        torch.Size([2, 20, 16])
    """

    scale: float = 1.0
    """The factor on the token rows."""

    def forward(
        self,
        token_ids: Integer[Tensor, "B L"],
        *,
        position_ids: Integer[Tensor, "... L"] | None = None,
        offset: int | Tensor = 0,
        mask: Shaped[Tensor, "B K"] | None = None,
        token_type_ids: Integer[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Embeds token_ids (B, L). Returns (B, L, D).

        Args:
            position_ids: (L,), (1, L) or (B, L), integers from 0. None counts the tokens from ``offset`` on, without
                the padding in ``mask``. Without a mask, only models that skip the pad token exclude padding.
            offset: the number of earlier tokens: a number, or (B,).
            mask: (B, L), 1 for a token and 0 for padding; or (B, K) with K > L, if it also covers earlier tokens.
            token_type_ids: (B, L). None means type 0 for every token, if the model has types.

        Raises:
            ArgumentError: ids that are not integers, shapes that do not fit, or types for a model that has none.
            PositionError: a position without a row.
        """
        parts = self.declaration
        tokens, positions = getattr(self, parts.tokens), getattr(self, parts.positions)
        types, norm, dropout, projection = (
            getattr(self, name) if name else None for name in (parts.types, parts.norm, parts.dropout, parts.projection)
        )
        require_integers(token_ids, "token_ids")
        if token_ids.dim() != 2:
            raise ArgumentError(
                f"token_ids must be (B, L); got {tuple(token_ids.shape)}. Add a batch dimension with token_ids[None]"
            )
        token_ids = token_ids.to(torch.int64)
        if token_type_ids is not None:
            if types is None:
                raise ArgumentError("this layer has no token types: leave token_type_ids out")
            require_integers(token_type_ids, "token_type_ids")
            if token_type_ids.shape != token_ids.shape:
                raise ArgumentError(
                    f"token_type_ids must be (B, L)={tuple(token_ids.shape)}; got {tuple(token_type_ids.shape)}"
                )
        position_ids, offset = self._place(token_ids, position_ids, offset, mask)
        plain = projection is None and not isinstance(self.scale, Tensor)
        fused = _fused_dropout(tokens, positions, types, norm, dropout) if plain else None
        if fused is not None:
            rows, row_ids = _position_rows(positions, token_ids, position_ids, offset)
            request = Request(
                token_ids,
                tokens.weight,
                positions=rows,
                position_ids=row_ids,
                types=None if types is None else types.weight,
                type_ids=None if token_type_ids is None else token_type_ids.to(torch.int64),
                weight=None if norm is None else norm.weight,
                bias=norm.bias if isinstance(norm, nn.LayerNorm) else None,
                scale=float(self.scale),
                norm="none" if norm is None else "layer" if isinstance(norm, nn.LayerNorm) else "rms",
                eps=0.0 if norm is None else norm.eps,
                dropout=fused,
                padding_idx=tokens.padding_idx,
                position_padding_idx=None if row_ids is None else positions.layout.pad_row,
                sparse=tokens.sparse,
            )
            x = lookup(request)
        else:
            x = tokens(token_ids)
            x = x if projection is None else projection(x)
            x = x if self.scale == 1 else x * self.scale
            if types is not None:
                x = x + types(torch.zeros_like(token_ids) if token_type_ids is None else token_type_ids.to(torch.int64))
            x = positions(x, position_ids, offset=offset)
            x = x if norm is None else norm(x)
            x = x if dropout is None else dropout(x)
        if parts.zero_padding and (pad_id := self.uncounted_id) is not None:
            present = token_ids.ne(pad_id) if mask is None else mask[:, mask.shape[1] - token_ids.shape[1] :]
            x = x.masked_fill(present[..., None] == 0, 0)
        return x

    @property
    def uncounted_id(self) -> int | None:
        """The padding token that positions skip, or None if they count every token."""
        return self._table.layout.pad_row if self.declaration.family.after_padding else None

    @property
    def _table(self) -> LearnedPositionalEmbedding:
        """The position table, which a user may have wrapped in a module of their own."""
        modules = getattr(self, self.declaration.positions).modules()
        return next(module for module in modules if isinstance(module, LearnedPositionalEmbedding))

    @classmethod
    def layout(cls, pad_id: int | None) -> TableLayout:
        """Returns the layout of the position table, given the padding token."""
        family = cls.declaration.family
        if family.after_padding and pad_id is None:
            raise ArgumentError(
                f"{cls.__name__} counts its rows from the pad token: give pad_id (pad_token_id), 1 in RoBERTa"
            )
        return family.line_in({"pad_token_id": pad_id})

    @classmethod
    def _tensor_names(cls) -> list[str]:
        parts = cls.declaration
        named = [f"{part}.weight" for part in (parts.tokens, parts.positions, parts.types, parts.projection) if part]
        return named + ([f"{parts.norm}.weight", f"{parts.norm}.bias"] if parts.norm else [])

    @classmethod
    def _arguments(cls, config: Mapping[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
        parts, arguments = cls.declaration, super()._arguments(config, tensors)
        vocab_size, token_dim = tensors[f"{parts.tokens}.weight"].shape
        rows, dim = tensors[f"{parts.positions}.weight"].shape
        if parts.types:
            types = tensors.get(f"{parts.types}.weight")
            arguments["token_types"] = 0 if types is None else len(types)
        if parts.norm in parts.optional:
            arguments["norm"] = f"{parts.norm}.weight" in tensors
        if parts.projection:
            arguments["token_dim"] = token_dim
        max_len = cls.layout(arguments.get("pad_id", FAIRSEQ_PAD_ID)).length(rows)
        return {"vocab_size": vocab_size, "max_len": max_len, "dim": dim, **arguments}

    def _place(
        self, token_ids: Tensor, position_ids: Tensor | None, offset: int | Tensor, mask: Tensor | None
    ) -> tuple[Tensor | None, int | Tensor]:
        """Returns the ids and offset for the position table. The ids are None if positions count from the offset."""
        if position_ids is not None:
            if mask is not None:
                raise ArgumentError(
                    "give position_ids or mask, not both: position_ids already say where each token stands "
                    "(posembed.positions.from_mask makes them from a mask)"
                )
            return position_ids, offset
        present = _present(token_ids, offset, mask, self.uncounted_id)
        if present is None:
            return None, offset
        require_fit(len(token_ids), token_ids.shape[1], None, offset)
        earlier = check_offset(offset)
        earlier = earlier[..., None] if isinstance(earlier, Tensor) else earlier
        padding = 0 if self._table.layout.pad_row is None else PADDING
        counted = torch.where(present, present.cumsum(-1) - 1 + earlier, padding)
        return counted[:, counted.shape[1] - token_ids.shape[1] :], 0


def _present(token_ids: Tensor, offset: int | Tensor, mask: Tensor | None, pad_id: int | None) -> Tensor | None:
    """Returns a mask, True for tokens: (B, L), or (B, K) if ``mask`` covers earlier tokens. None means no padding."""
    starts_here = isinstance(offset, int) and offset == 0
    if mask is None:
        if pad_id is None:
            return None
        present = token_ids != pad_id
        # Each sequence needs a token, except when decoding: a finished sequence then continues as padding.
        return check_mask(present) if starts_here else present
    batch, length = token_ids.shape
    if not isinstance(mask, Tensor):
        return check_mask(mask)
    if mask.dim() != 2 or mask.shape[0] != batch or mask.shape[1] < length:
        raise ArgumentError(
            f"mask must be (B, L)=({batch}, {length}), or longer if it covers earlier tokens; got {tuple(mask.shape)}"
        )
    if mask.shape[1] > length and not starts_here:
        raise ArgumentError(
            f"this mask covers {mask.shape[1] - length} earlier tokens, which offset would count again; "
            f"leave offset out, or pass mask[:, -{length}:]"
        )
    return check_mask(mask)


def _position_rows(
    positions: LearnedPositionalEmbedding, token_ids: Tensor, position_ids: Tensor | None, offset: int | Tensor
) -> tuple[Tensor, Tensor | None]:
    """Returns the table (N, D) and each token's row number, or the rows (L, D) of consecutive positions and None."""
    batch, length = token_ids.shape
    require_fit(batch, length, position_ids, offset)
    if position_ids is not None:
        row_ids = positions.row_ids(position_ids).to(torch.int64)
        return positions.weight, row_ids[0] if row_ids.dim() == 2 and len(row_ids) == 1 else row_ids
    if isinstance(offset, Tensor):
        return positions.weight, positions.row_ids(consecutive(length, offset).expand(batch, length))
    return positions.consecutive_rows(length, offset), None


_METHODS = {
    kind: {name: getattr(kind, name) for name in ("forward", "rows", "consecutive_rows") if hasattr(kind, name)}
    for kind in (nn.Embedding, TokenEmbedding, LearnedPositionalEmbedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout)
    if is_as_written(kind, "forward")
}
"""The classes of modules that ``lookup`` can replace, with the methods that define their outputs."""


def _only_computes(module: nn.Module) -> bool:
    """Returns whether calling the module does nothing but what its class defines."""
    kind = type(module)
    return (
        kind in _METHODS
        and runs_forward_alone(module)
        and all(getattr(kind, name) is method for name, method in _METHODS[kind].items())
    )


def _fused_dropout(tokens: Any, positions: Any, types: Any, norm: Any, dropout: Any) -> float | None:
    """Returns the probability of the dropout at the end of one lookup, or None if the modules must be called.

    The modules must be called if a call has effects that a lookup lacks, if an option writes to a table or changes its
    gradient, if ``lookup`` does not support the norm, if widths differ, or if there is a dropout before the end.
    """
    if not all(_only_computes(m) for m in (tokens, positions, types, norm, dropout) if m is not None):
        return None
    if any(table is not None and (table.max_norm is not None or table.scale_grad_by_freq) for table in (tokens, types)):
        return None
    if types is not None and (types.padding_idx is not None or types.sparse):
        return None
    if any(table.weight.shape[1] != tokens.embedding_dim for table in (positions, types) if table is not None):
        return None
    if norm is not None and (norm.normalized_shape != (tokens.embedding_dim,) or norm.eps is None):
        return None
    inner = positions.dropout if positions.training else 0.0
    outer = dropout.p if dropout is not None and dropout.training else 0.0
    return None if inner and (outer or norm is not None) else inner or outer
