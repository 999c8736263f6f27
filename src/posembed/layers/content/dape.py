"""DAPE, data-adaptive positional encoding (Zheng et al. 2024, arXiv:2405.14722, section 3): a small network reads the
scores and a bias of all heads together.

    score = A + B + f(A, B), with A = q k / sqrt(d), and B the bias of another encoding, such as KERPLE

For each query and key, f maps the 2 H numbers of the heads to H, with one hidden layer and LeakyReLU. As in the
authors' code, each layer has its own f and its own B, and f starts as nn.Linear does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.errors import ArgumentError
from posembed.layers.base import Content, PositionEncoding, fill_
from posembed.layers.content.cope import contents
from posembed.layers.score_bias import ScoreBias, wide
from posembed.layers.tupe import is_bias_alone
from posembed.settings import Count


class Dape(PositionEncoding):
    """DAPE (arXiv:2405.14722) for decoders: a small network reads the scores and a bias of all heads together.

    Args:
        bias: the score bias that the network reads, such as ``KerpleLog(heads)``.
        width: the width of the hidden layer, whose activations are (B, L, L, width); 32 in the paper.

    The state dict holds ``hidden_weight`` (width, 2 H), with columns for the H scores, then the H biases,
    ``hidden_bias`` (width,), ``output_weight`` (H, width), ``output_bias`` (H,), and the values of ``bias``.

    Raises:
        ArgumentError: a width below 1, or a bias that does more than add to the scores.

    Examples:
        >>> import torch
        >>> from posembed.layers import Dape, KerpleLog
        >>> from posembed.nn import Decoder
        >>> decoder = Decoder(dim=64, heads=4, layers=2, encoding="dape")  # each layer has its own network
        >>> decoder(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
        >>> Dape(KerpleLog(4))
        Dape(KerpleLog(4), width=32)
    """

    causal_only = True
    per_layer = True

    def __init__(self, bias: ScoreBias, *, width: Count = 32) -> None:
        super().__init__()
        if not is_bias_alone(bias):
            raise ArgumentError(
                f"bias must act on the scores alone and have no window or log_length, such as KerpleLog(heads); got "
                f"{bias!r}. Set a window on the Dape"
            )
        self.bias, self.heads, self.width = bias, bias.heads, width
        # Not nn.Linear: ``at_content`` would not call them, so their hooks would not run.
        self.hidden_weight = nn.Parameter(torch.empty(width, 2 * self.heads))
        self.hidden_bias = nn.Parameter(torch.empty(width))
        self.output_weight = nn.Parameter(torch.empty(self.heads, width))
        self.output_bias = nn.Parameter(torch.empty(self.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the network's weights as nn.Linear does. The bias keeps its values."""
        for weight, bias in ((self.hidden_weight, self.hidden_bias), (self.output_weight, self.output_bias)):
            most = weight.size(1) ** -0.5
            for parameter in (weight, bias):
                fill_(parameter, torch.empty(parameter.shape).uniform_(-most, most))

    def at_content(self, q: Tensor, k: Tensor, content: Content) -> tuple[Tensor, Tensor, Tensor]:
        scores, bias = contents(q, k), self.bias.at_scores(content.q_positions, content.k_positions)
        both = torch.cat((scores, bias.to(scores.dtype).expand_as(scores)), dim=1).movedim(1, -1)
        hidden = F.leaky_relu(F.linear(both, wide(self.hidden_weight), wide(self.hidden_bias)))
        return q, k, bias + F.linear(hidden, wide(self.output_weight), wide(self.output_bias)).movedim(-1, 1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"  # in which the bias is an argument
