"""SeqPE: a small Transformer reads the decimal digits of a position (Li et al. 2025, arXiv:2506.13277).

The digits, with zeros in front, and a last token are the input of causal layers. Each digit is the sum of a row for its
value and a row for its decimal place. The last token's output, projected to the model's width, is the position's row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.errors import ArgumentError
from posembed.layers.base import InputEncoding, fill_
from posembed.positions.checks import check_positions
from posembed.positions.samplers import shifted
from posembed.settings import Amount, Count, Probability
from posembed.tables.fill import STD
from posembed.torch_internals import is_being_recorded, transforms_are_active


class SequentialPositionalEmbedding(InputEncoding):
    """SeqPE (arXiv:2506.13277): a small Transformer reads a position's digits and returns the row to add.

    The paper also trains two losses on pairs of positions. In short training they made everything worse, so
    they are not part of this layer; benchmarks/seqpe_losses.py has them.

    Args:
        longest: the number of positions; it decides the number of digits.
        dim: the width D.
        width: the width of the small Transformer. The authors use the model's width, and heads of width 64.
        encoder_heads: the small Transformer's number of heads, a divisor of ``width``.
        layers: the small Transformer's number of layers; 2 in the authors' code.
        scale: the factor on the rows; 1 / temperature in the authors' code.
        shift_rate: the share of the sequences that ``training_positions`` starts at a random position; .1 in the
            authors' code.
        dropout: the probability of dropout on the sum in training.

    Raises:
        ArgumentError: an argument that cannot be used.
        PositionError: in a call, a position of ``longest`` or more.

    Examples:
        >>> import torch
        >>> from posembed.layers import SequentialPositionalEmbedding
        >>> positions = SequentialPositionalEmbedding(longest=20_000, dim=96)
        >>> positions(torch.randn(2, 10, 96), offset=15_000).shape
        torch.Size([2, 10, 96])
    """

    def __init__(
        self,
        *,
        longest: Count,
        dim: Count,
        width: Count = 64,
        encoder_heads: Count = 1,
        layers: Amount = 2,
        scale: float = 1.0,
        shift_rate: Probability = 0.1,
        dropout: Probability = 0.1,
    ) -> None:
        super().__init__(dim, dropout)
        if width % encoder_heads:
            raise ArgumentError(f"width must be a multiple of encoder_heads; got {width} and {encoder_heads}")
        self.longest, self.width, self.encoder_heads = longest, width, encoder_heads
        self.scale, self.shift_rate = scale, shift_rate
        self.digits = len(str(longest - 1))
        self.value_weight = nn.Parameter(torch.empty(10, width))
        self.place_weight = nn.Parameter(torch.empty(self.digits, width))
        self.last_weight = nn.Parameter(torch.empty(width))
        self.encoder = nn.ModuleList(_Layer(width, encoder_heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.output = _Linear(width, dim)
        self.reset_parameters()

    @property
    def layers(self) -> int:
        return len(self.encoder)

    def reset_parameters(self) -> None:
        """Draws new weights from N(0, .02); biases are 0 and norms 1."""
        for weight in (self.value_weight, self.place_weight, self.last_weight):
            fill_(weight, torch.empty(weight.shape).normal_(std=STD))
        for part in self.modules():
            if isinstance(part, _Linear | nn.LayerNorm):
                part.reset_parameters()

    def training_positions(self, batch: Amount, length: Amount, generator: torch.Generator) -> Tensor:
        """Draws ids (B, L), int64, consecutive in each sequence; a share of the sequences starts at a random position.

        Raises:
            PositionError: sequences longer than ``longest``.
        """
        check_positions(torch.tensor(max(length - 1, 0), device="cpu"), self.longest)
        moved = shifted(batch, length, max_shift=self.longest - length, generator=generator)
        stays = torch.rand(batch, 1, generator=generator, device="cpu") >= self.shift_rate
        return torch.where(stays, torch.arange(length, device="cpu"), moved)

    def rows(self, position_ids: Tensor) -> Tensor:
        """Returns the rows (..., D) of position_ids, integers of any shape (...). Encodes equal positions only once.

        Raises:
            PositionError: a position of ``longest`` or more.
        """
        ids = check_positions(position_ids, self.longest)
        plain = type(ids) is Tensor and not ids.is_meta  # a FakeTensor has no values either
        if is_being_recorded() or transforms_are_active() or not plain:
            return self._encoded(ids)  # the number of different positions would decide a shape
        different, which = ids.unique(return_inverse=True)
        return F.embedding(which, self._encoded(different))

    def _encoded(self, ids: Tensor) -> Tensor:
        """Returns the rows (..., D) of ids (...), encoding each id separately."""
        places = 10 ** torch.arange(self.digits - 1, -1, -1, device=ids.device)
        x = F.embedding(ids.unsqueeze(-1) // places % 10, self.value_weight) + self.place_weight
        x = torch.cat((x, self.last_weight.expand(*ids.shape, 1, -1)), dim=-2)
        for layer in self.encoder:
            x = layer(x)
        rows: Tensor = self.output(self.norm(x[..., -1, :]))
        return self.scale * rows

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"


class _Linear(nn.Linear):
    def reset_parameters(self) -> None:
        fill_(self.weight, torch.empty(self.weight.shape).normal_(std=STD))
        fill_(self.bias, torch.zeros(self.bias.shape))


class _Layer(nn.Module):
    """A layer of GPT-2: causal attention, then a feed-forward network with a GELU, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_input, self.attention_output = _Linear(width, 3 * width), _Linear(width, width)
        self.hidden, self.output = _Linear(width, 4 * width), _Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(-2, -3)
            for part in self.attention_input(self.attention_norm(x)).chunk(3, dim=-1)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        y = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
        x = x + self.attention_output(y.transpose(-2, -3).flatten(-2))
        return x + self.output(F.gelu(self.hidden(self.mlp_norm(x)), approximate="tanh"))
