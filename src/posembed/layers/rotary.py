"""Rotary position embedding (RoPE; Su et al. 2021, arXiv:2104.09864, equation 34).

Pairs of components of q and k are rotated by the angle p * theta_j, theta_j = base^(-2j/d), so that positions change
the product of q and k only through the distance between two tokens. Two pairings are in use: component j with j + d/2
("half_split": GPT-NeoX, Llama in transformers) and 2j with 2j + 1 ("interleaved": the paper, GPT-J).
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from posembed.arguments import Float
from posembed.errors import ArgumentError
from posembed.layers.base import RotationEncoding
from posembed.layers.lookup import PIECE, on_large_pages
from posembed.layers.rotary_scaling import Factor, RotaryScaling
from posembed.positions.checks import as_int64, check_within
from posembed.positions.from_layout import text_lengths
from posembed.settings import Amount, Positive, Whole
from posembed.torch_internals import forward_mode_is_active, is_being_recorded, transforms_are_active

Pairing = Literal["half_split", "interleaved"]


def rotary_frequencies(head_dim: int, *, base: float = 10000.0, device: torch.device | None = None) -> Tensor:
    """Returns theta_j = base^(-2j/d) in radians per position, float32 (head_dim / 2,)."""
    if head_dim < 2 or head_dim % 2:
        raise ArgumentError(
            f"RoPE rotates pairs of components, so head_dim must be even and positive, got {head_dim}; "
            "choose a width and a number of heads that give an even width per head"
        )
    return base ** (-torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)


def pairs_within(length: int, head_dim: int, *, base: float = 10000.0) -> int:
    """Returns the number of pairs that turn at least once within this length: theta_j >= 2 pi / length (HoPE)."""
    return sum(base ** (-2 * j / head_dim) >= 2 * math.pi / length for j in range(head_dim // 2))


def rotate(
    x: Float[Tensor, "... L d"],
    cos: Float[Tensor, "... L half"],
    sin: Float[Tensor, "... L half"],
    pairing: Pairing = "half_split",
) -> Float[Tensor, "... L d"]:
    """Rotates the pairs of x (..., L, d) by angles given as cos and sin (..., L, d/2). The result has x's dtype.

    Leading dimensions broadcast. ``_turned`` defines the result. On a CPU, ``_turned`` is applied to one part of the
    text at a time, and the gradient is the reverse rotation.
    """
    plain = is_being_recorded() or transforms_are_active() or forward_mode_is_active()
    if plain or type(x) is not Tensor or cos.requires_grad or sin.requires_grad or not _turns_in_place(x, cos, sin):
        return _turned(x, cos, sin, pairing)
    if not (torch.is_grad_enabled() and x.requires_grad):
        return _Rotation.forward(x, cos, sin, pairing)
    turned: Tensor = _Rotation.apply(x, cos, sin, pairing)
    return turned


def _turns_in_place(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Returns whether the result has x's shape and every token has its own angles."""
    if cos.shape != sin.shape or cos.shape[-2:] != (x.shape[-2], x.shape[-1] // 2):
        return False
    leading, of_x = cos.shape[:-2], x.shape[:-2]
    return len(leading) <= len(of_x) and all(
        angles in (1, heads) for angles, heads in zip(reversed(leading), reversed(of_x), strict=False)
    )


def _turned(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing, out: Tensor | None = None) -> Tensor:
    half = x.size(-1) // 2
    if pairing == "half_split":
        first, second = slice(None, half), slice(half, None)
        turned = torch.mul(x, torch.cat((cos, cos), dim=-1), out=out)
    else:
        first, second = slice(0, None, 2), slice(1, None, 2)
        turned = torch.mul(x, cos.repeat_interleave(2, dim=-1), out=out)
    # Write into the new product: putting halves together would cost more memory and time than the arithmetic.
    if transforms_are_active():  # vmap has no rule for addcmul_
        turned[..., first].sub_(x[..., second] * sin)
        turned[..., second].add_(x[..., first] * sin)
    else:
        turned[..., first].addcmul_(x[..., second], sin, value=-1)
        turned[..., second].addcmul_(x[..., first], sin)
    return turned.to(x.dtype)


class _Rotation(torch.autograd.Function):
    """``_turned`` with the reverse rotation as its gradient; plain autograd would record each write into a half."""

    @staticmethod
    def forward(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing) -> Tensor:
        length = x.size(-2)
        step = max(1, PIECE * length // max(1, x.numel()))
        if step >= length or not x.is_cpu:
            return _turned(x, cos, sin, pairing)
        turned = on_large_pages(torch.empty_like(x))
        as_wide = torch.promote_types(x.dtype, cos.dtype) == x.dtype
        for start in range(0, length, step):
            part = (..., slice(start, start + step), slice(None))
            if as_wide:
                _turned(x[part], cos[part], sin[part], pairing, out=turned[part])
            else:
                turned[part] = _turned(x[part], cos[part], sin[part], pairing)
        return turned

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Pairing], output: Tensor) -> None:
        _, cos, sin, ctx.pairing = inputs
        ctx.save_for_backward(cos, sin)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return rotate(gradient, cos, -sin, ctx.pairing), None, None, None


class RotaryEmbedding(RotationEncoding):
    """RoPE over the whole width of each head; ``forward(q, k)`` rotates q and k.

    Args:
        head_dim: d, the width of one head; even.
        base: the base of the frequencies; 10,000 in the paper.
        pairing: "half_split" (component j with j + d/2: GPT-NeoX, Llama in transformers) or "interleaved" (2j with
            2j + 1: the paper, GPT-J).
        scaling: the scaling of the frequencies for longer texts, such as ``YarnScaling(original_length=2048)``.
            None means no change.
        pairs: the number of pairs that rotate, from the highest frequency on; the other pairs do not depend on the
            position. None means all d/2. p-RoPE (Barbero et al. 2024, arXiv:2410.06205) rotates ``int(p * d / 2)``, and
            HoPE (Chen et al. 2024, arXiv:2410.21216) ``pairs_within(L, d)`` at a training length of L.

    Angles are computed in float32 whatever the model's dtype: in bfloat16, adjacent positions above 256 coincide.
    Frequencies are not stored, because a buffer would be cast with the model.

    Raises:
        ArgumentError: an odd head_dim, an unknown pairing, more pairs than the head has, or a scaling for another
            number of pairs.

    Examples:
        >>> import torch
        >>> from posembed import RotaryEmbedding
        >>> rope = RotaryEmbedding(head_dim=16)
        >>> q, k = torch.randn(2, 1, 4, 10, 16)  # (B, H, L, d) each
        >>> rotated_q, rotated_k = rope(q, k)
        >>> torch.allclose(rotated_q.norm(dim=-1), q.norm(dim=-1))  # a rotation keeps norms
        True
    """

    def __init__(
        self,
        head_dim: Whole,
        *,
        base: Positive = 10000.0,
        pairing: Pairing = "half_split",
        scaling: RotaryScaling | None = None,
        pairs: Amount | None = None,
    ) -> None:
        super().__init__()
        self.head_dim, self.base, self.pairing, self.scaling, self.pairs = head_dim, base, pairing, scaling, pairs
        frequencies = rotary_frequencies(head_dim, base=base)  # raises here, not in forward, for an odd width
        if pairs is not None and pairs > len(frequencies):
            raise ArgumentError(f"a head of width {head_dim} has {len(frequencies)} pairs; got pairs={pairs}")
        if scaling is not None:
            scaling.scaled(frequencies, base=base, length=torch.ones((), dtype=torch.int64))  # raises here too

    @property
    def turns_are_final(self) -> bool:
        return self.scaling is None  # a scaling may depend on the length of the text

    def cos_sin(self, position_ids: Tensor, *, text_length: int | Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns float32 cosines and sines that broadcast over heads: (L, d/2), or (B, 1, L, d/2) for ids (B, L).

        Only a scaling reads ``text_length``; see ``posembed.positions.from_layout.text_lengths``.
        """
        frequencies = rotary_frequencies(self.head_dim, base=self.base, device=position_ids.device)
        attention_factor: Factor = 1.0
        if self.scaling is not None:
            lengths = text_lengths(position_ids, text_length)
            if isinstance(text_length, int) and not position_ids.is_floating_point():
                position_ids = check_within(as_int64(position_ids, "position_ids"), text_length)
            frequencies, attention_factor = self.scaling.scaled(frequencies, base=self.base, length=lengths)
        if self.pairs is not None:
            frequencies = frequencies.where(
                torch.arange(self.head_dim // 2, device=frequencies.device) < self.pairs, 0.0
            )
        angles = position_ids.unsqueeze(-1).float() * frequencies
        cos, sin = angles.cos(), angles.sin()
        if isinstance(attention_factor, Tensor) or attention_factor != 1:
            cos, sin = cos * attention_factor, sin * attention_factor
        return (cos, sin) if cos.dim() == 2 else (cos.unsqueeze(1), sin.unsqueeze(1))

    def turned(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, text_length: int | Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if k_positions is q_positions:
            cos_sin = self.cos_sin(q_positions, text_length=text_length)
            return rotate(q, *cos_sin, self.pairing), rotate(k, *cos_sin, self.pairing)
        if self.scaling is not None and text_length is None:
            # One text needs the same frequencies for its queries and keys.
            text_length = torch.maximum(text_lengths(q_positions), text_lengths(k_positions))
        turned_q = rotate(q, *self.cos_sin(q_positions, text_length=text_length), self.pairing)
        return turned_q, rotate(k, *self.cos_sin(k_positions, text_length=text_length), self.pairing)
