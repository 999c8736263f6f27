"""Buckets of distances (T5, arXiv:1910.10683, section 2.1), and tables with another number of them.

Half of the buckets hold one distance each, 0, 1, 2, ...; the other half share the distances up to the farthest one on a
logarithmic scale, and everything beyond is in the last. In encoders, the first half of all buckets is for keys at or
before the query, and the second half for keys behind it; in decoders, all are for keys at or before the query.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FARTHEST = 128  # the distance at which the last bucket begins, in T5 and where a config does not say otherwise


def bucket_of(distances: Tensor, buckets: int, *, farthest: int = FARTHEST, both: bool = True) -> Tensor:
    """Returns the bucket (...) of distances key - query (...), as T5's ``_relative_position_bucket`` does.

    both: whether keys behind the query have buckets of their own; otherwise they are all in bucket 0.

    Examples:
        >>> import torch
        >>> bucket_of(torch.tensor([-200, -9, -1, 0, 1, 9, 200]), 32).tolist()
        [15, 8, 1, 0, 17, 24, 31]
    """
    side = buckets // 2 if both else buckets
    behind = (distances > 0).long() * side if both else torch.zeros_like(distances)
    away = distances.abs() if both else distances.clamp(max=0).neg()
    single = max(side // 2, 1)
    ratio = math.log(farthest / single) if farthest > single else math.inf
    # In the order of T5's code, since another rounding would move the edges of buckets.
    shared = single + (torch.log(away.clamp(min=1).float() / single) / ratio * (side - single)).long()
    return behind + torch.where(away < single, away, shared.clamp(max=side - 1))


def rebucket(rows: Tensor, buckets: int, *, farthest: int = FARTHEST, both: bool = True) -> Tensor:
    """Returns rows (M, D) of M buckets from those (N, D) of N buckets: each is the mean, over its distances, of the old
    rows that the model reads for them. Where a new bucket lies within an old one, it gets exactly its row.

    A bucket without a distance gets the row of the old bucket at the same share of its side.
    """
    far = max(2 * farthest, buckets)  # each near distance may have a bucket, even beyond the farthest
    distances = torch.arange(-far, far + 1 if both else 1)
    old = bucket_of(distances, len(rows), farthest=farthest, both=both)
    new = bucket_of(distances, buckets, farthest=farthest, both=both)
    alike = (torch.arange(buckets) * len(rows) // buckets).clamp(max=len(rows) - 1)
    result = rows[alike].clone()
    for bucket in new.unique().tolist():
        here = old[new == bucket]
        result[bucket] = rows[here[0]] if bool((here == here[0]).all()) else rows[here].mean(dim=0)
    return result
