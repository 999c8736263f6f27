"""Where the tokens of one forward pass stand and which of them each one sees; and the cache of earlier tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from posembed.calls import ChecksCalls
from posembed.errors import ArgumentError
from posembed.layers.base import PositionEncoding
from posembed.nn.attend import SMALLEST_FLEX_HEAD, Bias, FlexBias, causal_mask, flex_bias, scale_by_log_length
from posembed.positions.checks import check_mask
from posembed.positions.from_layout import consecutive, given_or_consecutive

Project = Callable[[Tensor], Tensor]
"""(N, D) -> (N, 2 D): the products with a layer's W_q and W_k side by side."""


class KeyValueCache:
    """The keys and values of the tokens that a decoder has read: two tensors (layers, B, H, max_len, D/H).

    ``new_cache`` of an Attention, a DecoderLayer or a Decoder creates one from a tensor for the keys. Keys are
    stored before they are turned by position, so that encodings whose turns depend on the length of the text
    decode correctly too. A cache holds no gradients: decode under ``torch.no_grad()``.
    """

    def __init__(self, keys: Tensor) -> None:
        self.keys, self.values = keys, torch.empty_like(keys)
        self.length = 0
        """The number of tokens read."""
        self.position_ids: Tensor | None = None
        """Their positions, (length,) or (B, length)."""
        self.present: Tensor | None = None
        """True for a token, False for padding, (B, length). None means no padding."""

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Stores the new tokens' k and v (B, H, L, D/H). Returns those of all tokens, (B, H, length + L, D/H)."""
        if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
            raise ArgumentError("a cache holds no gradients: call the model under torch.no_grad(), or without a cache")
        end = self.length + k.size(-2)
        if layer >= len(self.keys) or self.keys[0, :, :, :0].shape != k[:, :, :0].shape or end > self.keys.size(-2):
            layers, batch, heads, max_len, head_dim = self.keys.shape
            raise ArgumentError(
                f"this cache is for {layers} layers and keys ({batch}, {heads}, up to {max_len}, {head_dim}); got "
                f"keys ({k.size(0)}, {k.size(1)}, {end}, {k.size(-1)}) for layer {layer + 1}. Make one with "
                "model.new_cache(batch, max_len)"
            )
        self.keys[layer, :, :, self.length : end] = k
        self.values[layer, :, :, self.length : end] = v
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


class Positions(ChecksCalls):
    """One encoding and the tokens of one forward pass: all that the layers of a model share.

    A model creates it once per call. Every use of an encoding's methods is here, in the order of a forward pass:
    ``at_input`` once, then in each layer ``rows``, ``extend``, ``turn``, ``scale`` and ``bias``.

    Args:
        x: the tokens (B, L, D), of which only the shape and the device are read.
        causal: token i sees the tokens up to i, and of these the encoding's window. False means all see all.
        position_ids, offset, mask, text_length, cache: as in ``Attention``'s forward. ``commit`` adds the tokens to
            the cache, after the last layer.

    Raises:
        ArgumentError: ids, offsets or masks that do not fit the tokens.
    """

    def __init__(
        self,
        encoding: PositionEncoding,
        x: Tensor,
        position_ids: Tensor | None = None,
        *,
        offset: int | Tensor = 0,
        causal: bool = True,
        mask: Tensor | None = None,
        text_length: int | Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> None:
        batch, length = x.shape[:2]
        earlier = 0 if cache is None else cache.length
        if cache is not None and (not causal or isinstance(offset, Tensor) or offset):
            raise ArgumentError("a cache is for causal attention, and counts the earlier tokens: leave offset out")
        self.encoding, self.causal, self.cache = encoding, causal, cache
        self.present = present = _present(mask, batch, length, cache)
        self._length = earlier + length
        if position_ids is None and present is not None:
            position_ids = torch.where(present, self._ranks(), 0)[:, earlier:]
            position_ids = position_ids + (offset[..., None] if isinstance(offset, Tensor) else offset)
            offset = 0
        self.q_positions = given_or_consecutive(
            position_ids, earlier if cache is not None and position_ids is None else offset,
            batch=batch, length=length, device=x.device,
        )  # fmt: skip
        self.k_positions = self.q_positions
        if cache is not None and cache.position_ids is not None:
            self.k_positions = _joined(cache.position_ids, self.q_positions)
        if text_length is None and present is not None and self.k_positions.dim() == 1:
            text_length = present.sum(dim=-1)
        self.text_length = text_length
        self.is_causal = causal and present is None and not earlier
        """Whether each token sees those up to it, and its window of them: what ``attend`` knows without a mask."""
        self.visible = None if self.is_causal else self._visible(length)
        self._layer = 0
        self._shared: tuple[Bias | None] | None = None

    def at_input(self, x: Tensor) -> Tensor:
        """Adds position to the input: x (B, L, D) -> (B, L, D)."""
        return self.encoding.at_input(x, self.q_positions, text_length=self.text_length)

    def rows(self, project: Project) -> Tensor | None:
        """Returns what the encoding's rows add to queries and keys, side by side: (L, 2 D), (B, L, 2 D) or None."""
        return self.encoding.before_queries_keys(project, self.q_positions)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Returns k and v (B, H, L, D/H) after those of the cache. The layers of a model call it in their order."""
        if self.cache is None:
            return k, v
        self._layer += 1
        return self.cache.write(self._layer - 1, k, v)

    def turn(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Applies position to q (B, H, Lq, D/H) and k (B, H, Lk, D/H)."""
        return self.encoding.at_queries_keys(q, k, self.q_positions, self.k_positions, text_length=self.text_length)

    def scale(self, q: Tensor) -> Tensor:
        """Multiplies the queries of long texts, if the encoding asks for it by ``log_length``."""
        trained = self.encoding.log_length
        if trained is None:
            return q
        ranks = self._ranks()
        seen = 1 + (ranks[..., ranks.size(-1) - q.size(-2) :] if self.causal else ranks[..., -1:])
        return scale_by_log_length(q, seen, trained, self.encoding.window)

    def scores(self, project: Project) -> Tensor | None:
        """Returns one layer's bias on the scores, which hides nothing: (H, Lq, Lk) or (B, H, Lq, Lk), or None."""
        return self.encoding.in_layer(project).at_scores(self.q_positions, self.k_positions)

    def bias(self, project: Project, head_dim: int, *, dense: bool = False) -> Bias | None:
        """Returns one layer's bias, which hides what a token does not see: what ``attend`` takes.

        On a GPU a causal text without padding and cache gets a FlexBias, unless it must be dense.
        """
        here = self.encoding.in_layer(project)
        if here is self.encoding and self._shared is not None and not (dense and isinstance(self._shared[0], FlexBias)):
            return self._shared[0]
        return self._bias_of(here, head_dim, dense)

    def share_bias(self, head_dim: int) -> None:
        """Computes the bias that all layers have in common, so that it is not computed in each."""
        self._shared = (self._bias_of(self.encoding, head_dim, dense=False),)

    def _bias_of(self, encoding: PositionEncoding, head_dim: int, dense: bool) -> Bias | None:
        if self.is_causal and self.q_positions.is_cuda and head_dim >= SMALLEST_FLEX_HEAD and not dense:
            flex = flex_bias(encoding, self.q_positions)
            if flex is not None:
                return flex
        scores = encoding.at_scores(self.q_positions, self.k_positions)
        visible = self.visible
        if scores is None:
            return visible
        if self.is_causal:
            visible = causal_mask(scores.size(-1), self.encoding.window, scores.device)
        return scores if visible is None else scores.masked_fill(~visible, float("-inf"))

    def _ranks(self) -> Tensor:
        """Returns each token's place among the tokens of its sequence, without padding: (Lk,) or (B, Lk)."""
        if self.present is None:
            return consecutive(self._length, device=self.q_positions.device)
        return self.present.cumsum(-1) - 1

    def _visible(self, length: int) -> Tensor | None:
        """Returns which keys the last ``length`` tokens see, boolean: (Lq, Lk), (B, 1, Lq, Lk) or (B, 1, 1, Lk).

        Padding is seen by no token but itself, so that no softmax is empty. None means that all see all.
        """
        present, window = self.present, self.encoding.window
        if not self.causal:
            return None if present is None else present[:, None, None, :]
        if present is None and length == 1 and (window is None or window >= self._length):
            return None
        ranks = self._ranks()
        distance = ranks[..., self._length - length :].unsqueeze(-1) - ranks.unsqueeze(-2)
        visible = distance >= 0 if window is None else (distance >= 0) & (distance < window)
        if present is None:
            return visible
        itself = torch.eye(self._length, dtype=torch.bool, device=present.device)[self._length - length :]
        return ((visible & present[:, None, :]) | itself).unsqueeze(1)

    def commit(self) -> None:
        """Adds these tokens to the cache, after the last layer. A pass that fails leaves the cache as it was."""
        if self.cache is not None:
            self.cache.length += self.q_positions.size(-1)
            self.cache.position_ids, self.cache.present = self.k_positions, self.present


def add_rows(q: Tensor, k: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    """Adds ``Positions.rows`` to q and k (B, L, D); returns the same q and k if there are none."""
    return (q, k) if rows is None else (q + rows[..., : q.size(-1)], k + rows[..., q.size(-1) :])


def _present(mask: Tensor | None, batch: int, length: int, cache: KeyValueCache | None) -> Tensor | None:
    """Returns a boolean (B, earlier + L), False for padding; None for no padding at all."""
    earlier, before = (0, None) if cache is None else (cache.length, cache.present)
    if mask is None:
        return None if before is None else torch.cat((before, before.new_ones(batch, length)), dim=1)
    if not isinstance(mask, Tensor) or mask.dim() != 2 or mask.size(0) != batch:
        raise ArgumentError(f"mask must be a tensor (B, L)=({batch}, {length}), 1 for a token and 0 for padding")
    if mask.size(1) not in (length, earlier + length):
        raise ArgumentError(
            f"mask must be (B, L)=({batch}, {length}), or with the cache's {earlier} tokens before them; got "
            f"{tuple(mask.shape)}"
        )
    if mask.size(1) == length and earlier:
        before = mask.new_ones(batch, earlier) if before is None else before.to(mask.dtype)
        mask = torch.cat((before, mask), dim=1)
    return check_mask(mask)


def _joined(earlier: Tensor, new: Tensor) -> Tensor:
    """Joins positions (L,), (1, L) or (B, L) along the text."""
    if earlier.dim() != new.dim() or earlier.shape[:-1] != new.shape[:-1]:
        batch = max(ids.size(0) if ids.dim() == 2 else 1 for ids in (earlier, new))
        earlier, new = earlier.expand(batch, -1), new.expand(batch, -1)
    return torch.cat((earlier, new), dim=-1)
