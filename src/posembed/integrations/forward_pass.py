"""One encoding in one forward pass of another library's model, with the methods that its attention layers need.

``posembed.nn.Positions`` holds the positions of the tokens. ``ForwardPass`` handles the differences of other libraries:
their layers project queries and keys themselves, cache the keys before position is applied, and have their own mask,
which determines the tokens that each token sees.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.errors import ArgumentError
from posembed.layers.base import PositionEncoding, overrides
from posembed.layers.images.grid import ImageEncoding, LearnedGridEmbedding
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.nn.cache import KeyValueCache
from posembed.nn.positions import Positions, Project
from posembed.positions.checks import check_of
from posembed.positions.from_layout import consecutive

PROJECTIONS = (("q_proj", "k_proj"), ("query", "key"), ("q_lin", "k_lin"), ("c_attn",), ("qkv",))
"""The names of W_q and W_k in attention modules. A single name projects queries, keys and values together."""
HEAD_BY_HEAD = "multi_query"
"""An attribute of GPT-BigCode's attention, whose c_attn gives q, k and v head by head, or one key for all heads."""


UNCOUNTABLE = (
    "a cache keeps no positions, so they are counted by attention_mask, and the given position_ids differ from this "
    "count: leave out position_ids, pass attention_mask as (B, Lk), or pass use_cache=False and no cache"
)
check_counted = check_of(
    "given positions count the tokens of a cache", lambda differ: ~differ.any(), lambda _: ArgumentError(UNCOUNTABLE)
)


Held = TypeVar("Held")


class Current(threading.local, Generic[Held]):
    """What each thread's model is reading, in a dict. torch.compile breaks the graph at a ContextVar, and it loses
    attributes: those set before the compiled frame, as by a hook, and all where the graph breaks for another reason."""

    def __init__(self, name: str) -> None:
        self.held: dict[str, Held | None] = {name: None}


class Earlier(KeyValueCache):
    """The positions and mask of the tokens in another library's cache, (length,) or (B, length). It holds no keys."""

    def __init__(self, length: int, position_ids: Tensor, present: Tensor | None) -> None:
        self._length = self._read = self.counted = length
        self.position_ids, self.present = position_ids, present

    def require_room(self, batch: int, length: int) -> None:
        """Does nothing: the other library's cache allocates its own memory."""


@dataclass(frozen=True)
class Placed:
    """The positions of the tokens of a pass, where they differ from the defaults of ``Positions``.

    position_ids: (B, L), or None for consecutive positions. mask: (B, earlier + L), or None without padding. earlier:
    the tokens in the cache, or None. has_gaps: whether positions differ from the numbers of tokens before them. texts:
    (B, L), the index of each token's text if texts are packed.
    """

    position_ids: Tensor | None
    mask: Tensor | None
    earlier: Earlier | None
    has_gaps: bool
    texts: Tensor | None = None


def place(
    position_ids: Tensor | None,
    mask: Tensor | None,
    *,
    earlier: int,
    length: int,
    device: torch.device,
    packs: bool = False,
    must_count: bool = False,
) -> Placed:
    """Compares given position ids (B, L) and a mask (B, earlier + L) with consecutive positions.

    Position ids that only count the tokens become None, so that a batch shares one bias. Compiled code cannot test
    this, so there ``has_gaps`` is True for all given ids. With ``must_count``, ids that do not count raise an error. A
    cache stores no positions, so its tokens are counted. If ``packs``, a text starts where positions do not increase.

    Raises:
        ArgumentError: the position ids have another length, or do not count the tokens despite ``must_count``.
    """
    looks = not torch.compiler.is_compiling()
    new = None
    if mask is not None:
        mask = mask.to(device)[:, : earlier + length] != 0
        new = mask[:, earlier:]
        mask = mask | ~mask.any(-1, keepdim=True)  # a row without tokens still needs positions, without meaning
        mask = None if looks and bool(mask.all()) else mask
    ranks = consecutive(earlier + length, device=device)
    if mask is not None:
        ranks = torch.where(mask, mask.cumsum(-1) - 1, 0)
    has_gaps = False
    if position_ids is not None:
        position_ids = position_ids.to(device)
        if position_ids.size(-1) != length:
            raise ArgumentError(
                f"position_ids must be (L,)=({length},) or (B, {length}) for this input; got {position_ids.size(-1)} "
                "in a row"
            )
        differ = position_ids != ranks[..., earlier:]
        differ = differ if new is None else differ & new  # those of padding mean nothing
        if must_count:
            position_ids = torch.where(check_counted(differ), position_ids, ranks[..., earlier:])
        has_gaps = not must_count and (not looks or bool(differ.any()))
        if looks and not has_gaps:
            position_ids = None
    if not earlier:
        texts = None
        if packs and has_gaps and mask is None and position_ids is not None:
            starts = position_ids.diff(dim=-1) <= 0
            texts = F.pad(starts, (1, 0)).cumsum(-1) if not looks or bool(starts.any()) else None
        return Placed(position_ids, mask, None, has_gaps, texts)
    before = None if mask is None else mask[:, :earlier]
    return Placed(position_ids, mask, Earlier(earlier, ranks[..., :earlier], before), has_gaps)


class ForwardPass(Positions):
    """One encoding and the tokens of one forward pass of another library's model.

    Args:
        encoding: the encoding.
        batch, length, device: the shape and device of the tokens at the position table.
        causal: whether token i sees only the tokens up to i.
        placed: the positions of the tokens. None means consecutive positions without padding.
        image: whether later layers may add tokens (registers) before the patches; these get the first token's position.
        shares_bias: whether layers may share one bias. False under gradient checkpointing, where each layer runs again
            on its own and must record the same operations.
    """

    base: Any = None
    """The model."""

    slot: Any = None
    """The model's module that returns ``rows_at_input``."""

    outer: ForwardPass | None = None
    """The pass of an outer model, which calls this model in its own forward."""

    separates = False
    """Whether packed texts are kept apart here; otherwise the model's own mask does it."""

    uncountable = False
    """Whether the positions cannot be recovered from a cache, although the attention needs them."""

    carried_by_keyword = True
    """Whether the model passes this object to its attention; otherwise the attention mask carries it."""

    dtype = torch.float32
    """The model's dtype."""

    def __init__(
        self,
        encoding: PositionEncoding,
        batch: int,
        length: int,
        device: torch.device,
        *,
        causal: bool,
        placed: Placed | None = None,
        image: bool = False,
        shares_bias: bool = True,
    ) -> None:
        placed = placed or Placed(None, None, None, False)
        tokens = torch.empty(batch, length, 0, device=device)
        super().__init__(
            encoding, tokens, placed.position_ids, causal=causal, mask=placed.mask, cache=placed.earlier,
            segment_ids=placed.texts,
        )  # fmt: skip
        self.batch, self.image, self.shares_bias = batch, image, shares_bias
        self.seen_as_causal: list[bool] = []
        """Whether the attention was causal, for each layer that has used this pass."""
        self._masks: list[tuple[Tensor | None, tuple[object, ...], Tensor | None]] = []

    def _seen(self, length: int) -> Tensor | None:
        return None  # the model's own mask determines what each token sees

    def rows_at_input(self, width: int, dtype: torch.dtype) -> Tensor:
        """Returns the rows that the encoding adds to the input, (1, L, D) or (B, L, D): zeros for most encodings."""
        if self.q_positions.dim() == 2 and self.q_positions.size(0) != 1:
            batch = self.q_positions.size(0)  # compiled code would be specialized to self.batch
        else:
            batch = self.batch if isinstance(self.text_length, Tensor) else 1
        zeros = torch.zeros((), dtype=dtype, device=self.q_positions.device)
        rows = self.at_input(zeros.expand(batch, self.q_positions.size(-1), width))
        return rows.to(dtype)

    def queries_and_keys(
        self,
        q: Tensor,
        k: Tensor,
        project: Project,
        scaling: float,
        *,
        applied: float = 1.0,
        window: int | None = None,
    ) -> tuple[Tensor, Tensor, float]:
        """Applies position to q (B, H, Lq, d) and k (B, Hk, Lk, d). Returns q, k and the attention scale.

        Args:
            applied: the factor that the model has already multiplied its queries by.
            window: the window of this layer, in addition to the encoding's.
        """
        if applied != 1 and overrides(self.encoding, "before_queries_keys", "at_queries_keys"):
            q, scaling = q / applied, scaling * applied
        q_positions = self._fitted(self.q_positions, q.size(-2))
        k_positions = self._fitted(self.k_positions, k.size(-2))
        for_keys = self.encoding.before_queries_keys(project, k_positions)
        if for_keys is not None:
            whole = q.size(-2) == k.size(-2)
            for_queries = for_keys if whole else self.encoding.before_queries_keys(project, q_positions)
            assert for_queries is not None
            q = q + _as_heads(for_queries.chunk(2, dim=-1)[0], q)
            k = k + _as_heads(for_keys.chunk(2, dim=-1)[1], k)
        width = q.size(-1)
        q, k = self.encoding.at_queries_keys(q, k, q_positions, k_positions, text_length=self.text_length)
        return self.scale(q, window), k, scaling * math.sqrt(width / q.size(-1))

    def mask(
        self, given: Tensor | None, q: Tensor, k: Tensor, project: Project, *, causal: bool, window: int | None = None
    ) -> Tensor | None:
        """Returns one layer's mask for scaled_dot_product_attention, with the encoding's bias and window.

        Args:
            given: the model's own mask, (B, 1, Lq, Lk): booleans, True for tokens that are seen, or floats to add. None
                means that each token sees all tokens, or with ``causal`` only the tokens up to itself.
            window: the window of this layer, in addition to the encoding's.
        """
        here = self.encoding.in_layer(project)
        shared = here is self.encoding and self.shares_bias
        layer = (q.size(-2), k.size(-2), q.dtype, causal, window, torch.is_grad_enabled())
        for known, other, mask in self._masks if shared else ():  # compiled code would be specialized to a dict's keys
            if known is given and other == layer:
                return mask
        mask = self._mask(here, given, q, k, causal, window)
        if shared:
            self._masks.append((given, layer, mask))
        return mask

    def _mask(
        self, here: PositionEncoding, given: Tensor | None, q: Tensor, k: Tensor, causal: bool, window: int | None
    ) -> Tensor | None:
        q_length, k_length = q.size(-2), k.size(-2)
        scores = here.at_scores(self._fitted(self.q_positions, q_length), self._fitted(self.k_positions, k_length))
        near = self._near(q_length, k_length, window)
        if scores is None and near is None:
            return given
        if given is None and causal and q_length > 1:
            columns = torch.arange(k_length, device=q.device)
            first = min(self._length - self.shape[1], k_length - q_length)  # a cache of fixed size has room at its end
            given = columns <= columns[first : first + q_length, None]
        if near is not None and (given is None or given.dtype == torch.bool):
            given, near = near if given is None else given & near, None
        if scores is not None:
            scores = (scores if scores.dim() == 4 else scores.unsqueeze(0)).to(q.dtype)
        lowest = torch.finfo(q.dtype).min  # a row of only -inf, such as padding, would become NaN
        if scores is None or given is None:
            both = given if scores is None else scores
        else:
            both = scores.masked_fill(~given, lowest) if given.dtype == torch.bool else scores + given
        return both if both is None or near is None else both.masked_fill(~near, lowest)

    def _near(self, q_length: int, k_length: int, window: int | None) -> Tensor | None:
        """Returns a mask of the keys in the windows and the text of each query, (1 or B, 1, Lq, Lk); None for all."""
        sizes = [size for size in (window, self.encoding.window) if size is not None]
        window = min([k_length, *sizes])
        near = None
        if window < k_length:
            ranks = self._ranks(self.q_positions.device)
            of_queries = self._fitted(ranks[..., -self.q_positions.size(-1) :], q_length)
            near = of_queries.unsqueeze(-1) - self._fitted(ranks, k_length).unsqueeze(-2) < window
        if self.separates and self.texts is not None:
            same = self.texts.unsqueeze(-1) == self.texts.unsqueeze(-2)
            near = same if near is None else near & same
        return None if near is None else near.view(-1, 1, q_length, k_length)

    def _fitted(self, position_ids: Tensor, length: int) -> Tensor:
        """Extends or shortens positions (L,) or (B, L) to the number of tokens in a layer.

        A cache of fixed size has unused space after the text, which its mask hides; the cache of a window holds only
        the last keys.
        """
        missing = length - position_ids.size(-1)
        if missing == 0:
            return position_ids
        if not self.image:
            last = position_ids[..., -1:].expand(*position_ids.shape[:-1], max(missing, 0))
            return torch.cat((position_ids, last), dim=-1)[..., -length:]
        if missing < 0:
            raise ArgumentError(
                f"a layer has only {length} of this image's {position_ids.size(-1)} tokens, and it is unknown which: "
                "do not drop patches after the position table"
            )
        first = position_ids[..., :1].expand(*position_ids.shape[:-1], missing)
        return torch.cat((first, position_ids), dim=-1)


def image_positions(encoding: PositionEncoding, prefix: int, cells: int, device: torch.device) -> Tensor:
    """Returns the positions (L,) of an image's tokens: ``prefix`` special tokens, then the patches row by row.

    Most encodings have one position before the patches; a table may have another number. Special tokens beyond that
    number share the last of these positions.
    """
    before = 1
    if isinstance(encoding, LearnedGridEmbedding):
        before = encoding.layout.prefix + encoding.registers
    elif isinstance(encoding, ImageEncoding):
        before = encoding.special
    elif isinstance(encoding, LearnedPositionalEmbedding) and 0 <= encoding.max_len - cells <= prefix:
        before = encoding.max_len - cells
    if prefix and not before:
        raise ArgumentError(f"{type(encoding).__name__} has no position for the {prefix} tokens before the patches")
    special = torch.arange(prefix, device=device).clamp(max=max(before - 1, 0))
    return torch.cat((special, before + torch.arange(cells, device=device)))


def own_grid(encoding: PositionEncoding, of_model: tuple[int, int]) -> tuple[int, int]:
    """Returns the grid that an encoding is built for, which a resize changes; the model's if it depends on no grid."""
    return encoding.grid if isinstance(encoding, ImageEncoding) else of_model


def require_grid(encoding: PositionEncoding, of_model: tuple[int, int]) -> None:
    """Raises ArgumentError for an encoding with a grid that is not the model's."""
    if (own := own_grid(encoding, of_model)) != of_model:
        raise ArgumentError(
            f"{type(encoding).__name__} has positions for {own} patches, and the model reads images of {of_model}; "
            f"pass encoding.on_grid({of_model})"
        )


def encoding_on(
    encoding: PositionEncoding,
    grid: tuple[int, int],
    of_model: tuple[int, int],
    *,
    training: bool,
    refused: bool = False,
) -> PositionEncoding:
    """Returns an encoding for images with ``grid`` patches. A copy for another grid than its own cannot be trained.
    refused: whether there may be no copy at all."""
    own = own_grid(encoding, of_model)
    if grid == own:
        return encoding
    changed = encoding.on_grid(grid)
    trains = training and any(parameter.requires_grad for parameter in encoding.parameters())
    if changed is not encoding and (trains or refused):
        raise ArgumentError(
            f"the encoding trains only on images of {own} patches; got {grid}. Resize the images, or call "
            "replace_positions with encoding.on_grid((height, width))"
        )
    return changed


def image_pass(
    encoding: PositionEncoding, batch: int, prefix: int, grid: tuple[int, int], device: torch.device, *, shares: bool
) -> ForwardPass:
    """Returns the pass of images with ``grid`` patches. The encoding must be built for that grid."""
    ids = image_positions(encoding, prefix, math.prod(grid), device)
    placed = Placed(ids, None, None, True)
    return ForwardPass(encoding, batch, len(ids), device, causal=False, placed=placed, image=True, shares_bias=shares)


def projection(module: nn.Module) -> Project:
    """Returns a function that multiplies rows (N, D) by an attention module's W_q and W_k, giving (N, 2 D).

    The function calls the module's projections, which may be quantized or have adapters, and subtracts their biases.
    """

    def project(rows: Tensor) -> Tensor:
        for names in PROJECTIONS:
            if all(hasattr(module, name) for name in names) and not hasattr(module, HEAD_BY_HEAD):
                with_zero = F.pad(rows, (0, 0, 0, 1))
                both = torch.cat([getattr(module, name)(with_zero) for name in names], dim=-1)
                both = both[:-1] - both[-1:]
                return both[:, : 2 * rows.size(-1)] if len(names) == 1 else both
        raise ArgumentError(
            f"{type(module).__name__} has no W_q and W_k under a known name ("
            f"{', '.join('/'.join(names) for names in PROJECTIONS)}), and this encoding adds rows to their input; "
            'choose one that needs no projection, such as "rope"'
        )

    return project


def _as_heads(rows: Tensor, like: Tensor) -> Tensor:
    """Splits rows (L, D) or (B, L, D) into the heads of q or k (B, H, L, d), giving (H, L, d) or (B, H, L, d)."""
    return rows.unflatten(-1, (like.size(1), like.size(-1))).transpose(-2, -3).to(like.dtype)
