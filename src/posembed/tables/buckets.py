"""Buckets of distances (T5, arXiv:1910.10683, section 2.1), and the conversion of tables to another number of buckets.

In decoders, all buckets are for keys at or before the query. Half of the buckets hold one distance each, 0, 1, 2, ...;
the other half divide the distances up to ``farthest`` on a logarithmic scale, and the last bucket also holds all larger
distances. Encoders have such buckets twice: the second half of all buckets is for keys after the query.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FARTHEST = 128  # the distance at which the last bucket begins, in T5 and where a config does not say otherwise


def bucket_of(distances: Tensor, buckets: int, *, farthest: int = FARTHEST, both: bool = True) -> Tensor:
    """Returns the bucket (...) of distances key - query (...), as T5's ``_relative_position_bucket`` does.

    both: whether keys after the query have their own buckets; otherwise all keys after the query are in bucket 0.

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
    """Converts the rows (N, D) of N buckets to rows (M, D) of M buckets. A new row is the mean of the old rows over the
    distances in its bucket, or exactly the old row if a new bucket lies within one old bucket.

    A new bucket that holds no distance gets the old row at the same relative index.
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
