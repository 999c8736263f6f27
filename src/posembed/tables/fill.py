"""Initial values of a table: pure functions from (length, dim) to a new float32 tensor."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posembed.arguments import checks_arguments
from posembed.calls import unknown
from posembed.errors import ArgumentError
from posembed.settings import Amount, Count, Positive
from posembed.tables.layout import TableLayout

STD = 0.02
"""The default standard deviation of random initial values, as in BERT, and of token rows in most models."""

SCALED = ("normal", "truncated_normal", "sinusoidal")
"""The initial values that ``std`` scales."""


def sinusoids(positions: Tensor, dim: int, *, base: float = 10000.0, interleaved: bool = True) -> Tensor:
    """Returns the sinusoids (..., dim), float32, of positions of any shape (...) (Vaswani et al. 2017, section 3.5).

    Interleaved is the paper's layout: column 2i is sin(p / base^(2i/dim)) and column 2i+1 its cosine. Otherwise
    the layout is fairseq's and tensor2tensor's: sines in the first half, cosines in the second, with frequencies
    base^(-i/(dim/2 - 1)), the last of which is exactly 1 / base. Every row has norm sqrt(dim / 2). Values are computed
    in float64.

    Raises:
        ArgumentError: an odd dim.
    """
    check_even(dim)
    pair = torch.arange(dim // 2, dtype=torch.float64, device=positions.device)
    exponents = pair / (dim / 2) if interleaved else pair / max(dim // 2 - 1, 1)
    angles = positions.to(torch.float64).unsqueeze(-1) * base**-exponents
    halves = (angles.sin(), angles.cos())
    rows = torch.stack(halves, dim=-1).flatten(-2) if interleaved else torch.cat(halves, dim=-1)
    return rows.to(torch.float32)


def check_even(dim: int) -> None:
    """Raises ArgumentError for an odd dim, which would leave a sine without its cosine."""
    if dim < 2 or dim % 2:
        raise ArgumentError(f"sines and cosines come in pairs: dim must be even; got {dim}")


@checks_arguments
def sinusoidal_table(length: Amount, dim: Count, *, base: Positive = 10000.0, interleaved: bool = True) -> Tensor:
    """Returns sinusoids of positions 0 .. length - 1, (length, dim). Sines and cosines alternate if ``interleaved``.

    Raises:
        ArgumentError: an odd dim, or a base that is not positive.

    Examples:
        >>> from posembed.tables import sinusoidal_table
        >>> sinusoidal_table(length=512, dim=64).shape
        torch.Size([512, 64])
    """
    return sinusoids(torch.arange(length), dim, base=base, interleaved=interleaved)


def initial_table(init: str, length: int, dim: int, *, std: float | None = None) -> Tensor:
    """Returns a new table (length, dim) with the named initial values; ``std`` scales the first three.

    "normal"            N(0, std^2), by default with std .02, as in BERT. GPT-2's code uses .01; .5 drowns the tokens
    "truncated_normal"  the same, truncated at two standard deviations, as in BERT and ViT
    "sinusoidal"        ``sinusoidal_table``, by default with amplitude 1, a root mean square of sqrt(1/2); ``std`` sets
                        another root mean square. For tokens of scale .02 give std=.02, or the rows drown them
    "xavier"            U(-a, a) with a = sqrt(6 / (length + dim)) (Glorot and Bengio, 2010)
    "zero"              zeros: the model starts without position information and must learn it
    """
    if std is not None and init not in SCALED:
        raise ArgumentError(f"std is the scale of {', '.join(SCALED)} initial values; leave it out for {init!r}")
    table, scale = torch.empty(length, dim, dtype=torch.float32), STD if std is None else std
    match init:
        case "normal":
            return table.normal_(std=scale)
        case "truncated_normal":
            return torch.nn.init.trunc_normal_(table, std=scale, a=-2 * scale, b=2 * scale)
        case "sinusoidal":
            return sinusoidal_table(length, dim) * (1.0 if std is None else std * math.sqrt(2))
        case "xavier":
            return torch.nn.init.xavier_uniform_(table)
        case "zero":
            return table.zero_()
        case "given":  # a layer's name for a table that its caller gave
            raise ArgumentError("this table was given and cannot be drawn again; load it with load_state_dict")
    raise unknown("init", init, (*SCALED, "xavier", "zero"), also=", or a tensor")


def initial_rows(init: str | Tensor, layout: TableLayout, length: int, dim: int, *, std: float | None = None) -> Tensor:
    """Returns a table (N, dim) for ``length`` positions in this layout: new values by name, or the given table.

    By name, reserved rows, which no position reads, are zero; the others are filled as one sequence.
    """
    rows = layout.rows(length)
    if isinstance(init, str):
        values = initial_table(init, rows - layout.reserved, dim, std=std)
        return torch.cat((torch.zeros(layout.reserved, dim, dtype=torch.float32), values))
    if std is not None:
        raise ArgumentError(f"std is the scale of {', '.join(SCALED)} initial values; leave it out for a given table")
    if tuple(init.shape) != (rows, dim) or not init.is_floating_point():
        raise ArgumentError(
            f"the given table must be {(rows, dim)} floats, for {length} positions in {layout}; "
            f"got {tuple(init.shape)} of {init.dtype}"
        )
    if not init.is_meta and not init.isfinite().all():
        row, column = (~init.isfinite()).nonzero()[0].tolist()
        raise ArgumentError(
            f"the given table must be finite; got {init[row, column].item()} in row {row}. Train or load it again"
        )
    return init.detach()


def root_mean_square(values: Tensor) -> float:
    """Returns the root mean square of a tensor of any shape, computed in float32."""
    return float(values.detach().float().square().mean().sqrt())
