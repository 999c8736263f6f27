"""Which tokens are padding, read from a model's own mask of pairs of tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from posembed.errors import ArgumentError
from posembed.positions.checks import check_of

HIDDEN = -9e3
"""Floats below this value in a mask hide a key: many models add -10,000, which bfloat16 rounds to -9,984. Values nearer
to 0, such as a bias, may be added to a key that is seen."""
check_visible = check_of(
    "a mask of pairs shows the tokens in a cache",
    lambda hidden: ~hidden.any(),
    lambda _: ArgumentError(
        "attention_mask (B, 1, Lq, Lk) hides tokens in the cache, which may be padding without a position or tokens "
        "with one: pass the position_ids of the new tokens, which tell whether hidden tokens count, or a mask (B, Lk)"
    ),
)


def check_shape(mask: Tensor, batch: int, length: int, earlier: int) -> None:
    shape, keys = tuple(mask.shape), earlier + length
    pairs = len(shape) == 4 and shape[2] == length
    if (len(shape) != 2 and not pairs) or shape[0] not in (1, batch) or shape[-1] < keys:
        raise ArgumentError(
            f"attention_mask must be ({batch}, {keys}) or ({batch}, 1, {length}, {keys}), for the {earlier} tokens in "
            f"the cache and the {length} new ones; got {shape}"
        )


def present_in(mask: Tensor, earlier: int, causal: bool, position_ids: Tensor | None, *, of_mask: bool) -> Tensor:
    """Returns the tokens (B, Lk) that are not padding, from the model's mask (B, 1 or H, Lq, Lk).

    These are the tokens that one reference token sees, preferably one that sees other tokens but not all: the last one
    in a decoder, and the one that sees fewest in an encoder. All other tokens must see the same tokens (in a decoder,
    only those up to themselves), or be padding that sees itself, everything or nothing. If they do not, as in packed
    texts, all tokens count. A decoder's token after the reference that sees only itself may start a block, and counts.
    A hidden token in the cache may be padding or not; only position_ids (B, Lq) show this. In a model without them
    (``of_mask``), the first tokens in the cache that no token sees are left padding.

    Raises:
        ArgumentError: the mask is neither booleans nor floats; it hides tokens in the cache without position_ids.
    """
    if mask.dtype != torch.bool and not mask.is_floating_point():
        what = "booleans, True for keys that are seen, or floats to add to the scores"
        raise ArgumentError(f"attention_mask (B, 1, Lq, Lk) must be {what}; got {mask.dtype}. Pass mask.bool()")
    if mask.dtype != torch.bool:
        mask = mask > HIDDEN
    seen = mask.any(1)
    keys = torch.arange(seen.size(2), device=mask.device)
    queries = keys[earlier : earlier + seen.size(1)]
    sees, itself = seen.any(-1, keepdim=True), keys == queries[:, None]
    alone = ~(seen & ~itself).any(-1, keepdim=True)
    lacks = (~seen & (keys <= queries[:, None])).any(-1, keepdim=True) if causal else ~seen.all(-1, keepdim=True)
    ahead = (seen & (keys > queries[:, None])).any(-1, keepdim=True) & causal  # only padding sees later keys
    kind = sees.long() + (sees & ~ahead) * (1 + (~alone).long() + (~alone & lacks))
    fewer = 0 if causal else len(keys) - seen.sum(-1, keepdim=True)
    rank = ((kind * (len(keys) + 1) + fewer) * (len(keys) + 1) + queries[:, None]).argmax(1)
    last = seen.take_along_dim(rank[..., None], 1)
    if not causal:  # padding that sees itself is seen by no other
        last = last & ((seen & ~itself).any(1, keepdim=True) | ~itself[rank] | alone.take_along_dim(rank[..., None], 1))
    expected = last & (keys <= queries[:, None]) if causal and len(queries) > 1 else last
    padding = ~last[:, 0, earlier : earlier + len(queries)]  # a token that sees everything or nothing is no padding
    plain = ((seen == expected) | itself).all(-1) | padding & (alone[..., 0] | seen.all(-1))
    present = last[:, 0] | ~plain.all(-1, keepdim=True)
    if causal:
        present = present | (itself & sees & alone & (queries > queries[rank])[..., None]).any(1)
    if not earlier:
        return present
    if position_ids is None:
        hidden = ~seen[..., :earlier]
        left = hidden.all(1).long().cumprod(-1).bool() if of_mask else torch.zeros_like(hidden[:, 0])
        wrong = check_visible(hidden & ~left[:, None])
        return torch.cat((~(left | wrong.any(1)), present[:, earlier:]), dim=-1)
    return present | ((position_ids[:, :1] == earlier) & (keys < earlier))
