"""The lookup in float64, from its formula: one token after another, differentiated by autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from posembed.layers.lookup import Request

TABLES = ("tokens", "positions", "types", "weight", "bias")


def looked_up(request: Request, tables: dict[str, Tensor], keep: Tensor | None = None) -> Tensor:
    """(B, L, D) of these float64 tables, by the ids and settings of the request."""
    r = request
    batch, length, dim = r.shape
    rows = [
        _one(r, tables, b, place)
        if keep is None
        else _one(r, tables, b, place) * keep[b, place].double() / (1 - r.dropout)
        for b in range(batch)
        for place in range(length)
    ]
    empty = sum(table.sum() for table in tables.values()).reshape(1, 1).expand(0, dim)
    return torch.cat([empty, *(row[None] for row in rows)]).view(batch, length, dim)


def _one(r: Request, tables: dict[str, Tensor], b: int, place: int) -> Tensor:
    x = tables["tokens"][r.token_ids[b, place]] * r.scale
    if "positions" in tables:
        shared = r.position_ids is None or r.position_ids.dim() == 1
        ids = torch.arange(r.token_ids.shape[1]) if r.position_ids is None else r.position_ids
        x = x + tables["positions"][ids[place] if shared else ids[b, place]]
    if "types" in tables:
        x = x + tables["types"][0 if r.type_ids is None else r.type_ids[b, place]]
    if r.norm == "layer":
        x = x - x.mean()
    if r.norm != "none":
        x = x / (x.pow(2).mean() + r.eps).sqrt()
        x = x * tables["weight"] if "weight" in tables else x
        x = x + tables["bias"] if "bias" in tables else x
    return x


def with_gradients(request: Request, upstream: Tensor, keep: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """What the lookup gives and the gradient of each table, in float64; zero for the rows that are not trained."""
    tables = {
        name: getattr(request, name).detach().double().requires_grad_()
        for name in TABLES
        if getattr(request, name) is not None
    }
    out = looked_up(request, tables, keep)
    found = torch.autograd.grad(out, list(tables.values()), upstream.double())
    gradients = {name: gradient.clone() for name, gradient in zip(tables, found, strict=True)}
    if request.padding_idx is not None:
        gradients["tokens"][request.padding_idx] = 0
    if request.position_padding_idx is not None:
        gradients["positions"][request.position_padding_idx] = 0
    return out.detach(), gradients


def request_of(
    *,
    batch: int = 3,
    length: int = 7,
    dim: int = 5,
    dtype: torch.dtype = torch.float32,
    position_ids: str = "none",
    type_ids: str = "none",
    norm: str = "layer",
    dropout: float = 0.0,
    padding_idx: int | None = None,
    scale: float = 1.0,
) -> Request:
    """A lookup of random tables by random ids, some of them often. Ids are "none", "shared", "own", "no table"."""

    def rows(*shape: int) -> Tensor:
        return torch.randn(*shape).to(dtype)

    tokens = torch.randint(6, (batch, length))
    tokens[:, ::2] = 2
    ids = {"shared": torch.randint(length + 3, (length,)), "own": torch.randint(length + 3, (batch, length))}
    return Request(
        token_ids=tokens,
        tokens=rows(9, dim),
        positions=None if position_ids == "no table" else rows(length + 3, dim),
        position_ids=ids.get(position_ids),
        types=None if type_ids == "no table" else rows(2, dim),
        type_ids=torch.randint(2, (batch, length)) if type_ids == "own" else None,
        weight=None if norm == "none" else rows(dim),
        bias=rows(dim) if norm == "layer" else None,
        seed=torch.tensor([3]) if dropout else None,
        scale=scale,
        norm=norm,
        eps=1e-5,
        dropout=dropout,
        padding_idx=padding_idx,
        position_padding_idx=padding_idx if position_ids in ids else None,
    )
