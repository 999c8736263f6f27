"""The definition of a lookup in plain PyTorch, which the other implementations speed up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.errors import ArgumentError

STEPS = 1 << 16
"""Dropout probabilities are multiples of 1 / STEPS: each element gets 16 of the 64 random bits of a draw."""


@dataclass(frozen=True)
class Norm:
    """The norm of a lookup, which divides each sum of rows by its own scale.

    Args:
        kind: "layer", which also centers (Ba et al. 2016, 1607.06450), or "rms" (Zhang and Sennrich 2019, 1910.07467).
        weight, bias: (D,) or None. A norm of kind "rms" has no bias.
        eps: added to the variance, or to the mean square.
    """

    kind: Literal["layer", "rms"]
    weight: Tensor | None = None
    bias: Tensor | None = None
    eps: float = 1e-5

    @classmethod
    def of(cls, module: nn.LayerNorm | nn.RMSNorm) -> Norm:
        """Makes a Norm with the settings of a PyTorch norm module."""
        if isinstance(module, nn.LayerNorm):
            return cls("layer", module.weight, module.bias, module.eps)
        if not isinstance(module, nn.RMSNorm) or module.eps is None:
            raise ArgumentError(f"Norm.of needs an nn.LayerNorm, or an nn.RMSNorm with an eps; got {module}")
        return cls("rms", module.weight, None, module.eps)


@dataclass(frozen=True, eq=False)
class Request:
    """One lookup: tables, ids and settings, as in the arguments of ``kernels.lookup``.

    ``position_ids`` are (L,) if all sequences share them. ``seed`` is int64 of shape (1,), or None without dropout.
    """

    token_ids: Tensor
    tokens: Tensor
    positions: Tensor | None = None
    position_ids: Tensor | None = None
    types: Tensor | None = None
    type_ids: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None
    seed: Tensor | None = None
    scale: float = 1.0
    norm: str = "none"
    eps: float = 0.0
    dropout: float = 0.0
    padding_idx: int | None = None
    position_padding_idx: int | None = None
    sparse: bool = False

    @property
    def tables(self) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """The inputs of a lookup that have gradients: tokens, positions, types, weight and bias."""
        return self.tokens, self.positions, self.types, self.weight, self.bias

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the result, to which the tables' dtypes are promoted."""
        dtype = self.tokens.dtype
        for table in (self.positions, self.types):
            dtype = dtype if table is None else torch.promote_types(dtype, table.dtype)
        return dtype

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the result, (B, L, D)."""
        return (*self.token_ids.shape, self.tokens.shape[1])

    def part(self, batch: slice, length: slice) -> Request:
        """Returns the part of the lookup for a slice of the batch and a slice of the length."""
        positions, position_ids, type_ids = self.positions, self.position_ids, self.type_ids
        if position_ids is not None:
            position_ids = position_ids[length] if position_ids.dim() == 1 else position_ids[batch, length]
        elif positions is not None:
            positions = positions[length]
        return replace(
            self,
            token_ids=self.token_ids[batch, length],
            positions=positions,
            position_ids=position_ids,
            type_ids=None if type_ids is None else type_ids[batch, length],
        )


def sum_of_rows(r: Request) -> Tensor:
    """Computes scale x token rows + type rows + position rows: (B, L, D)."""
    x = F.embedding(r.token_ids, r.tokens, padding_idx=r.padding_idx, sparse=r.sparse)
    if r.scale != 1:
        x = x * r.scale
    if r.types is not None:
        x = x + (r.types[0] if r.type_ids is None else F.embedding(r.type_ids, r.types))
    if r.positions is not None:
        if r.position_ids is None:
            x = x + r.positions[: x.shape[1]]
        else:
            x = x + F.embedding(r.position_ids, r.positions, padding_idx=r.position_padding_idx)
    return x


def normalized(x: Tensor, request: Request) -> Tensor:
    """Normalizes x (B, L, D) in x's dtype, computed in float32 or wider."""
    if request.norm == "layer":
        return F.layer_norm(x, x.shape[-1:], request.weight, request.bias, request.eps)
    if request.norm == "rms":
        return F.rms_norm(x, x.shape[-1:], request.weight, request.eps)
    return x


def generator_of(seed: Tensor) -> torch.Generator:
    """Makes a generator that starts from a seed, int64 (1,)."""
    return torch.Generator(seed.device).manual_seed(int(seed))


def draw_keep(generator: torch.Generator, shape: tuple[int, int, int], dropout: float, dtype: torch.dtype) -> Tensor:
    """Draws the next mask (B, L, D): 1 for a kept element, 0 for a dropped one. (A bool mask would be far slower.)

    Rows are drawn in order, so the mask of each part of a lookup is that part of the whole mask.
    """
    *rows, dim = shape
    keep = torch.empty(shape, dtype=dtype, device=generator.device)
    draws = torch.empty((*rows, -(-dim // 4)), dtype=torch.int64, device=generator.device)
    draws.random_(-(1 << 63), None, generator=generator)  # all 64 bits
    if dropout == 1:
        return keep.zero_()
    return torch.ge(draws.view(torch.int16)[..., :dim], round(dropout * STEPS) - STEPS // 2, out=keep)


def drop(x: Tensor, keep: Tensor, dropout: float) -> Tensor:
    """Zeroes x where ``keep`` is 0 and divides it by 1 - dropout elsewhere. ``keep`` has x's shape and dtype."""
    return x * keep * (0.0 if dropout == 1 else 1 / (1 - dropout))


def plain(request: Request, keep: Tensor | None = None) -> Tensor:
    """Computes the whole lookup, (B, L, D). Without ``keep``, dropout draws from PyTorch's own generator."""
    x = normalized(sum_of_rows(request), request)
    if keep is not None:
        return drop(x, keep, request.dropout)
    return F.dropout(x, request.dropout)
