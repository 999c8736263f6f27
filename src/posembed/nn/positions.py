"""The positions of the tokens in one forward pass, and the tokens that each token sees.

Texts may be padded, packed or continued from a cache.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.arguments import ChecksCalls, Shaped
from posembed.errors import ArgumentError
from posembed.layers.base import Content, PositionEncoding, RotationEncoding, reads_content
from posembed.layers.images.grid import ImageEncoding
from posembed.layers.score_bias import in_full_precision
from posembed.nn.attend import SMALLEST_FLEX_HEAD, Bias, attend, causal_mask, flex_bias, scale_by_log_length
from posembed.nn.cache import KeyValueCache
from posembed.nn.per_layer import PerLayer, each_of
from posembed.nn.toeplitz import diagonals_if_faster, toeplitz_bias
from posembed.nn.token_layout import joined, own_lengths, packed_texts, present_tokens
from posembed.positions.checks import check_image_tokens, wrong_image
from posembed.positions.from_layout import changes_of_segment, consecutive, from_segment_ids, given_or_consecutive
from posembed.torch_internals import is_being_recorded, transforms_are_active

if TYPE_CHECKING:
    from posembed.nn.memory import Memory

Project = Callable[[Tensor], Tensor]
"""Maps (N, D) to (N, 2 D): the products with a layer's W_q and W_k side by side, with shared key heads repeated."""


class Positions(ChecksCalls, in_a_pass=True):
    """An encoding and the positions and masks of the tokens in one forward pass, shared by the layers of a model.

    A model creates a Positions object in each call. Its methods call the encoding, in the order of a forward pass:
    ``at_input`` once, then in each layer ``of_tokens``, ``rows``, ``turn_and_extend``, ``scale`` and ``attend``. If the
    layers' encodings differ (``PerLayer``), layer i calls the methods of ``of_layer(i)``.

    Args:
        encoding: the encoding of all layers, or a PerLayer.
        x: the tokens (B, L, D). Only their shape, dtype and device are used.
        causal: True lets token i see the tokens up to i, within the encoding's window; False lets it see all tokens.
        position_ids, offset, mask, segment_ids, cu_seqlens, text_length, cache: as in ``Attention``'s forward.
            After the last layer, ``commit`` adds the tokens to the cache.
        memory: the outputs of an encoder, for layers with cross-attention. After the first call with a cache
            it may be None: that call's memory is read again.

    Raises:
        ArgumentError: ids, offsets, masks or segments that do not fit the tokens, or a cache without room for them.

    Examples:
        >>> import torch
        >>> from posembed import RotaryEmbedding
        >>> from posembed.nn import Attention, Positions
        >>> x, layers = torch.randn(2, 10, 64), [Attention(dim=64, heads=4) for _ in range(2)]
        >>> positions = Positions(RotaryEmbedding(16), x)
        >>> x = positions.at_input(x)
        >>> for layer in layers:
        ...     x = x + layer(x, positions=positions)
        >>> x.shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        encoding: PositionEncoding,
        x: Shaped[Tensor, "B L D"],
        position_ids: Tensor | None = None,
        *,
        offset: int | Tensor = 0,
        causal: bool = True,
        mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        text_length: int | Tensor | None = None,
        cache: KeyValueCache | None = None,
        memory: Memory | None = None,
    ) -> None:
        require_encoding(encoding)
        keep_loaded(encoding)
        batch, length = x.shape[:2]
        earlier, shifted = 0, isinstance(offset, Tensor) or bool(offset)
        if cache is not None:
            if not isinstance(cache, KeyValueCache):
                raise ArgumentError(f"cache must come from new_cache(batch, max_len); got a {type(cache).__name__}")
            if not causal or shifted:
                raise ArgumentError("a cache needs a causal model and counts earlier tokens itself; omit offset")
            cache.require_room(batch, length)
            earlier, self._orders = cache.length, cache.orders
        self.encoding, self.causal, self.cache = encoding, causal, cache
        self.memory = self._checked_memory(memory, batch)
        self.texts = texts = packed_texts(segment_ids, cu_seqlens, batch, length)
        """The index of each token's text in its row, (B, L) or (1, L), if texts are packed."""
        if texts is not None and (mask is not None or cache is not None or shifted):
            raise ArgumentError(
                "packed sequences count their own tokens and have no padding, offset or cache: leave mask, offset and "
                "cache out, and give padding at the end a segment of its own"
            )
        if texts is not None and self.memory is not None:
            raise ArgumentError(
                "packed sequences cannot attend to a memory, which does not say where their sources are; pad them "
                "instead, one target in each row, and pass mask"
            )
        self.present = present = present_tokens(mask, batch, length, cache)
        self.shape, self._length = x.shape[:2], earlier + length
        """(B, L) of the new tokens, and the length of the whole text with the cache's tokens."""
        self.fit: tuple[int, int, int] | None = None
        """The width, heads and key/value heads of a model that the encoding is known to fit."""
        self._counted = counted = position_ids is None
        if counted and cache is not None and cache.counted < earlier:
            raise ArgumentError(
                "the tokens in this cache have given position_ids, from which the next ones do not follow; pass the "
                "position_ids of the new tokens too"
            )
        if counted and texts is not None:
            position_ids = from_segment_ids(texts)
        elif counted and present is not None:
            first = given_or_consecutive(None, offset, batch=batch, length=1, device=x.device)
            position_ids, offset = first + torch.where(present, self._ranks(x.device), 0)[:, earlier:], 0
        self.q_positions = given_or_consecutive(
            position_ids, earlier if cache is not None and position_ids is None else offset,
            batch=batch, length=length, device=x.device,
        )  # fmt: skip
        for each in each_of(encoding):
            if counted and not shifted and not causal and isinstance(each, ImageEncoding):
                self._require_images(each.image_tokens)
        self.k_positions = self.q_positions
        if cache is not None and cache.position_ids is not None:
            self.k_positions = joined(cache.position_ids[..., :earlier], self.q_positions)
        if text_length is None and texts is not None:
            text_length = own_lengths(self.q_positions.long(), texts)
        elif text_length is None and present is not None and not counted and present.size(-1):
            text_length = 1 + torch.where(present, self.k_positions.long(), 0).amax(dim=-1)
        self.text_length = text_length
        self._whole = present is None and texts is None and not earlier
        """Whether each row is one whole text."""
        self.is_causal = causal and self._whole
        """Whether each token sees all tokens up to it, within the window, so that ``attend`` needs no mask."""
        self._alone: list[Positions] | None = None
        """For packed texts on a CPU: the Positions of each text. Attention is applied to one text after the other."""
        recorded = is_being_recorded() or transforms_are_active() or type(x) is not Tensor
        if texts is not None and texts.numel() and x.is_cpu and not recorded:
            self._alone = self._each_alone(x, texts, None if counted else self.q_positions)
        self._visible = None if self.is_causal or self._alone is not None else self._seen(length)
        self._layer: int | None = None
        """The number of the layer that these Positions are for; None if all layers use them, one after the other."""
        self._layers_read = [0]
        """How many layers have read the tokens, shared by the Positions of all layers."""
        self._views: dict[PositionEncoding, Positions] = {}
        self._shared: tuple[Bias | None] | None = None
        self.across = None if self.memory is None else self.memory.seen_from(self)
        """The Positions of cross-attention: these tokens as queries, and the memory's as keys."""

    def of_layer(self, layer: int) -> Positions:
        """Returns the Positions for layer number ``layer``, counted from 0: this object, unless it has a PerLayer."""
        if not isinstance(self.encoding, PerLayer):
            return self
        view = copy.copy(self._with(self.encoding.in_place(layer)))
        view._layer = layer
        return view

    def _with(self, encoding: PositionEncoding) -> Positions:
        """Returns these Positions with one of the encodings of a PerLayer, or themselves without a PerLayer."""
        if encoding is self.encoding:
            return self
        if encoding not in self._views:
            view = self._views[encoding] = copy.copy(self)
            view.encoding, view._views = encoding, {}
            if self._alone is not None:
                view._alone = [text._with(encoding) for text in self._alone]
            elif encoding.window is not None and not view.is_causal:
                view._visible = view._seen(self.q_positions.size(-1))
        return self._views[encoding]

    def at_input(self, x: Tensor) -> Tensor:
        """Adds position information to the input: x (B, L, D) -> (B, L, D)."""
        return self.encoding.at_input(x, self.q_positions, text_length=self.text_length)

    def of_tokens(self, x: Tensor) -> Tensor | None:
        """Returns what the encoding needs of each token for ``attend``, cached tokens first: (B, Lk, S), or None.

        ``x`` (B, L, D) is the input of a layer's attention. The result is 0 at padding.
        """
        values = self.encoding.of_tokens(x)
        if values is None:
            return None
        if self.present is not None:
            values = values.masked_fill(~self.present[:, self.present.size(1) - x.size(1) :, None], 0)
        return values if self.cache is None else self.cache.write_values(self._this_layer, values)

    def content(self, of_tokens: Tensor | None) -> Content:
        """Returns what the encoding's ``at_content`` reads, given the result of this object's ``of_tokens``."""
        return Content(of_tokens, self.q_positions, self.k_positions, self._seen_now, self._before)

    def rows(self, project: Project) -> Tensor | None:
        """Returns the projected rows for queries and keys, side by side: (L, 2 D), (B, L, 2 D) or None."""
        return self.encoding.before_queries_keys(project, self.q_positions)

    def turn(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Applies positions to q (B, H, Lq, D/H) and k (B, Hk, Lk, D/H)."""
        return self.encoding.at_queries_keys(q, k, self.q_positions, self.k_positions, text_length=self.text_length)

    @property
    def _this_layer(self) -> int:
        return self._layers_read[0] if self._layer is None else self._layer

    def turn_and_extend(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Applies positions to q and k (B, H, L, D/H) and puts the tokens of the cache before k and v.

        The layers of a model must call this method in their order.
        """
        if self.cache is None:
            return *self.turn(q, k), v
        layer = self._this_layer
        self._layers_read[0] = layer + 1
        if not (isinstance(self.encoding, RotationEncoding) and self.encoding.turns_are_final):
            k, v = self.cache.write(layer, k, v)
            return *self.turn(q, k), v
        q, k = self.encoding.at_queries_keys(q, k, self.q_positions, self.q_positions, text_length=self.text_length)
        return q, *self.cache.write(layer, k, v)

    def scale(self, q: Tensor, window: int | None = None) -> Tensor:
        """Scales the queries that see more than ``log_length`` tokens, if the encoding has a ``log_length``.

        ``window`` is another window of this layer, in tokens. The smaller of ``window`` and the encoding's applies.
        """
        trained = self.encoding.log_length
        if trained is None:
            return q
        ranks = self._ranks(q.device)
        if self.causal:
            seen = 1 + ranks[..., ranks.size(-1) - q.size(-2) :]
        else:
            seen = 1 + ranks[..., -1:] if self.texts is None else own_lengths(ranks, self.texts)
        encoding = self.encoding
        if window is None or (encoding.window is not None and encoding.window < window):
            window = encoding.window
        return scale_by_log_length(q, seen, trained, window)

    def scores(self, project: Project) -> Tensor | None:
        """Returns one layer's bias on the scores, without a mask: (H, Lq, Lk) or (B, H, Lq, Lk), or None."""
        return self.encoding.in_layer(project).at_scores(self.q_positions, self.k_positions)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, project: Project, of_tokens: Tensor | None = None, *, dense: bool = False
    ) -> Tensor:
        """Attends with one layer's bias from q (B, H, Lq, d') to k (B, Hk, Lk, d') and v (B, Hk, Lk, d): (B, H, Lq, d).

        On a CPU, attention is applied to each packed text in turn, so that time and memory depend only on the texts'
        own lengths. Elsewhere a mask hides the texts from each other.

        Args:
            of_tokens: the result of this object's ``of_tokens``.
            dense: True avoids FlexAttention, which takes no wide values, and reads all packed texts at once.
        """
        here = self.encoding.in_layer(project)
        if self._alone is None or dense:
            bias = None if reads_content(here) else self._bias_in(here, v.size(-1), dense=dense)
            return self._attend(here, q, k, v, of_tokens, bias)
        lengths = [text._length for text in self._alone]
        parts = [t.transpose(1, 2).flatten(0, 1).split(lengths) for t in (q, k, v)]  # (L, H, d) of each text
        values = [None] * len(lengths) if of_tokens is None else of_tokens.flatten(0, 1).split(lengths)
        biases = (
            {}
            if reads_content(here)
            else {text: text._bias_in(here, v.size(-1)) for text in dict.fromkeys(self._alone)}
        )
        outputs = []
        for text, own, *of_text in zip(self._alone, values, *parts, strict=True):
            q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in of_text)
            y = text._attend(here, q, k, v, None if own is None else own.unsqueeze(0), biases.get(text))
            outputs.append(y.squeeze(0).transpose(0, 1))
        return torch.cat(outputs).unflatten(0, self.shape).transpose(1, 2)

    def _attend(
        self, here: PositionEncoding, q: Tensor, k: Tensor, v: Tensor, of_tokens: Tensor | None, bias: Bias | None
    ) -> Tensor:
        """Attends with ``here``, the encoding in one layer, and its bias, which depends on positions alone."""
        if not reads_content(here):
            return attend(q, k, v, bias, causal=self.is_causal, window=self.encoding.window)
        with in_full_precision(q.device):
            q, k, scores = here.at_content(q, k, self.content(of_tokens))
            if scores is not None:
                scores = self._masked(scores)
            elif not self.is_causal:
                scores = self._seen_now()
            y = attend(q, k.to(q.dtype), v.to(q.dtype), scores, causal=self.is_causal, window=self.encoding.window)
        return y.to(v.dtype)

    def bias(self, project: Project, head_dim: int, *, dense: bool = False) -> Bias | None:
        """Returns one layer's bias for ``attend``. Each query's hidden keys are masked out.

        On a GPU the bias is a FlexBias if there is neither padding nor a cache, unless ``dense`` is True.
        """
        return self._bias_in(self.encoding.in_layer(project), head_dim, dense=dense)

    def share_bias(self, head_dim: int) -> None:
        """Computes the bias that all layers share, once for all of them."""
        if self.across is not None:
            self.across.share_bias(head_dim)
        for each in each_of(self.encoding):
            here = self._with(each)
            for text in dict.fromkeys(here._alone or [here]):
                if not reads_content(each):
                    text._shared = (text._bias_of(each, head_dim, dense=False),)

    def _bias_in(self, here: PositionEncoding, head_dim: int, *, dense: bool = False) -> Bias | None:
        """Returns the bias of ``here``, the encoding in one layer: the shared bias if all layers have the same."""
        if here is self.encoding and self._shared is not None:
            bias = self._shared[0]
            if bias is None or isinstance(bias, Tensor) or not dense:
                return bias
        return self._bias_of(here, head_dim, dense)

    def _bias_of(self, encoding: PositionEncoding, head_dim: int, dense: bool) -> Bias | None:
        unpadded = (self._whole or self.texts is not None) and self.q_positions is self.k_positions
        if unpadded and self.q_positions.is_cuda and head_dim >= SMALLEST_FLEX_HEAD and not dense:
            flex = flex_bias(encoding, self.q_positions, causal=self.causal, texts=self.texts)
            if flex is not None:
                return flex
        diagonals = diagonals_if_faster(encoding, self.q_positions) if unpadded and self._whole and not dense else None
        scores = encoding.at_scores(self.q_positions, self.k_positions) if diagonals is None else diagonals
        if scores is None:
            return None if self.is_causal else self._seen_now()
        if scores.device != self.q_positions.device:  # attention would take a bias without values from "meta"
            raise ArgumentError(
                f"the bias of {type(self.encoding).__name__} is on {scores.device} and the tokens are on "
                f"{self.q_positions.device}: move the encoding to their device, or let offloading load the model as a "
                'whole (accelerate: preload_module_classes=["Decoder"])'
            )
        if diagonals is not None:
            return toeplitz_bias(diagonals, causal=self.causal, window=self.encoding.window)
        return self._masked(scores)

    def _masked(self, scores: Tensor) -> Tensor:
        """Hides the tokens that a token does not see in scores (H, Lq, Lk) or (B, H, Lq, Lk)."""
        visible = self._seen_now()
        return scores if visible is None else scores.masked_fill(~visible, float("-inf"))

    def _seen_now(self) -> Tensor | None:
        """Returns a boolean mask of the keys that each query sees, as ``_seen`` does; None means all."""
        if self.is_causal:
            return causal_mask(self.q_positions.size(-1), self.encoding.window, self.q_positions.device)
        return self._visible if self._alone is None else self._seen(self.q_positions.size(-1))

    def _each_alone(self, x: Tensor, texts: Tensor, position_ids: Tensor | None) -> list[Positions]:
        """Returns the Positions of each packed text. Texts of equal length share an object unless ids are given."""
        rows = torch.arange(len(x), device=x.device).unsqueeze(1) * x.size(1)
        lengths = (texts + rows).flatten().unique_consecutive(return_counts=True)[1].tolist()

        def alone(length: int, ids: Tensor | None = None) -> Positions:
            return Positions(self.encoding, x[:1, :length], ids, causal=self.causal)

        if position_ids is None:
            by_length = {length: alone(length) for length in set(lengths)}
            return [by_length[length] for length in lengths]
        given = position_ids.expand(x.shape[:2]).flatten().split(lengths)
        return [alone(length, ids) for length, ids in zip(lengths, given, strict=True)]

    def _checked_memory(self, memory: Memory | None, batch: int) -> Memory | None:
        """Returns the memory to attend to: the cache's memory if there is one. Checks that ``memory`` fits."""
        if not isinstance(memory, ChecksCalls | None):
            raise ArgumentError(f"memory: expected a Memory, such as Memory(x); got a {type(memory).__name__}")
        if memory is not None and memory.x.size(0) != batch:
            raise ArgumentError(
                f"the memory has {memory.x.size(0)} sources and x has {batch} targets; give each target its source, "
                "repeated where targets share one"
            )
        if self.cache is None:
            return memory
        kept = self.cache.memory if self.cache.length else None
        if kept is None:
            return None if memory is None else memory.for_cache()
        if memory is None:
            return kept
        if not kept.is_same(memory):
            raise ArgumentError(
                "the tokens in this cache have read another memory, memory_mask, positions or encoding of the memory; "
                "pass the same ones in each step (after cache.reorder, those of its rows), or leave them out after the "
                "first"
            )
        return kept

    def _require_images(self, tokens: int) -> None:
        """Raises ArgumentError unless each row or packed text has the number of tokens of a whole image."""
        if self.present is None and self.texts is None:
            if self.shape[1] != tokens:
                raise wrong_image(self.shape[1], tokens)
            return
        if self.texts is not None:
            counts = own_lengths(self.q_positions, self.texts)
        else:
            assert self.present is not None
            counts = self.present.sum(dim=-1, keepdim=True)
        # A sum of zeros, which keeps the check in a compiled graph.
        self.q_positions = self.q_positions + (check_image_tokens(counts, tokens) - tokens)

    def _ranks(self, device: torch.device) -> Tensor:
        """Returns each token's index in its text, not counting padding: (Lk,) or (B, Lk)."""
        if self.texts is not None:
            return from_segment_ids(self.texts)
        if self.present is not None:
            return self.present.cumsum(-1) - 1
        return consecutive(self._length, device=device)

    def _before(self) -> Tensor | None:
        """Returns ``Content.before``."""
        index = consecutive(self._length, device=self.q_positions.device)
        if self.texts is not None:
            return torch.where(changes_of_segment(self.texts), -1, index - 1)
        if self.present is None:
            return None
        return F.pad(torch.where(self.present, index, -1).cummax(-1).values, (1, 0), value=-1)[:, :-1]

    def _seen(self, length: int) -> Tensor | None:
        """Returns a boolean mask of the keys that the last ``length`` tokens see: (Lq, Lk), (B, 1, Lq or 1, Lk).

        Padding is masked out, except that under causal attention a padding token sees itself, so that no softmax is
        empty. None means no mask.
        """
        present, window = self.present, self.encoding.window
        same = None if self.texts is None else self.texts.unsqueeze(-1) == self.texts.unsqueeze(-2)
        if not self.causal:
            if same is not None:
                return same.unsqueeze(1)
            return None if present is None else present[:, None, None, :]
        if present is None and length == 1 and (window is None or window >= self._length):
            return None
        ranks = self._ranks(self.q_positions.device)
        distance = ranks[..., self._length - length :].unsqueeze(-1) - ranks.unsqueeze(-2)
        visible = distance >= 0 if window is None else (distance >= 0) & (distance < window)
        if same is not None:
            return (visible & same).unsqueeze(1)
        if present is None:
            return visible
        keys = consecutive(self._length, device=present.device)
        itself = keys == keys[self._length - length :].unsqueeze(-1)
        return ((visible & present[:, None, :]) | itself).unsqueeze(1)

    def commit(self) -> None:
        """Adds the tokens of this pass to the cache, after the last layer. A failed pass leaves the cache as it was.

        Raises:
            ArgumentError: not every layer of the cache has read the tokens, or they were added before.
        """
        if self.cache is None:
            return
        length, layers = self.q_positions.size(-1), self.cache.keys.size(0)
        if self.cache.orders != self._orders:
            raise ArgumentError("the cache was reordered during this pass; do so before Positions, or after commit")
        if self._layers_read[0] != layers or self.cache.length + length != self._length:
            raise ArgumentError(
                f"commit adds the tokens of one pass to the cache once, after all its layers={layers} have read them; "
                f"{self._layers_read[0]} have, and the cache holds {self.cache.length} tokens instead of "
                f"{self._length - length}. Make new Positions in each forward pass"
            )
        self.cache.add(length, self.k_positions, self.present, counted=self._counted)
        self.cache.memory = self.memory


def require_encoding(encoding: object) -> None:
    """Raises ArgumentError for anything but a PositionEncoding or a module that wraps one."""
    if not isinstance(encoding, nn.Module) or not hasattr(encoding, "at_input"):
        raise ArgumentError(
            'encoding must be a PositionEncoding, such as RotaryEmbedding(head_dim) or encoding_by_name("rope", '
            f"sizes); got {encoding!r}"
        )


def keep_loaded(encoding: nn.Module) -> None:
    """Loads the weights of an encoding that accelerate offloads, for good: accelerate loads them only for a call of the
    module, but attention reads them without one."""
    for module in encoding.modules():
        hook = getattr(module, "_hf_hook", None)
        if hook is not None and any(parameter.is_meta for parameter in module.parameters(recurse=False)):
            hook.pre_forward(module)
            hook.offload = False


def add_rows(q: Tensor, k: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    """Adds ``Positions.rows`` to q and k (B, L, D); returns the same q and k if there are no rows."""
    return (q, k) if rows is None else (q + rows[..., : q.size(-1)], k + rows[..., q.size(-1) :])
