"""T5's relative bias (Raffel et al. 2020, arXiv:1910.10683, section 2.1): one learned number per head and bucket.

Each short distance has its own bucket. Longer distances share buckets of growing width. Beyond a maximum distance, all
distances share the last bucket, so a text longer than the training texts needs no new values.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.errors import ArgumentError
from posembed.layers.base import fill_
from posembed.layers.score_bias import Formula, ScoreBias, wide
from posembed.settings import Count, NotNegative
from posembed.tables.buckets import bucket_of


class T5Bias(ScoreBias):
    """T5's relative position bias, shared by all layers of a model as in T5.

    The bias is added to scores that are divided by sqrt(head width). T5 does not divide; instead, its initial W_q is
    smaller by that factor.

    Args:
        heads: the number of heads H.
        buckets: the number of buckets; 32 in T5.
        max_distance: keys at this distance and beyond share a bucket; 128 in T5.
        bidirectional: True for an encoder; False for a decoder, whose queries see no key after them.
        std: the scale of the normal initial values. T5 uses 1 / sqrt(D), where D is the width of the model.

    The state dict holds ``bucket_weight`` (buckets, H): ``relative_attention_bias.weight`` in transformers.

    Raises:
        ArgumentError: too few buckets, or a max_distance so small that it would have its own bucket.

    Examples:
        >>> from posembed.layers import T5Bias
        >>> T5Bias(heads=4, bidirectional=False)(10).shape  # for a decoder
        torch.Size([4, 10, 10])
    """

    of_distance_alone = True

    def __init__(
        self,
        heads: Count,
        *,
        buckets: Count = 32,
        max_distance: Count = 128,
        bidirectional: bool = True,
        std: NotNegative = 0.02,
    ) -> None:
        super().__init__(heads)
        sides = 2 if bidirectional else 1
        if buckets < 2 * sides or buckets % sides:
            raise ArgumentError(
                f"buckets must be {'even and at least 4' if bidirectional else 'at least 2'}, got {buckets}"
            )
        exact = buckets // sides // 2
        if max_distance <= exact:
            raise ArgumentError(
                f"max_distance must be above the {exact} distances that have a bucket of their own, got {max_distance}"
            )
        self.buckets, self.max_distance, self.bidirectional, self.std = buckets, max_distance, bidirectional, std
        self.causal_only = not bidirectional
        self.bucket_weight = nn.Parameter(torch.empty(buckets, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        fill_(self.bucket_weight, torch.empty(self.buckets, self.heads).normal_(std=self.std))

    def by_distance(self, device: torch.device) -> Tensor:
        """Returns the float32 bias for key minus query = -max_distance .. max_distance: (2 max_distance + 1, H).

        Beyond these distances the bias is constant. Looking it up avoids computing a logarithm for each pair.
        """
        relative = torch.arange(-self.max_distance, self.max_distance + 1, device=device)
        bucket = bucket_of(relative, self.buckets, farthest=self.max_distance, both=self.bidirectional)
        return wide(F.embedding(bucket, self.bucket_weight))

    def formula(self, device: torch.device) -> Formula:
        table = self.by_distance(device)
        furthest = torch.full((), self.max_distance, device=device)  # a number would become a symbol when compiled
        return lambda head, q, k: table[(k - q).clamp(-furthest, furthest) + furthest, head]
