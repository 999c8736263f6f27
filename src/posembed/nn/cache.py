"""The keys and values that a decoder keeps for the tokens it has read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from posembed.arguments import ChecksCalls, Float, checked
from posembed.errors import ArgumentError
from posembed.settings import Amount

if TYPE_CHECKING:
    from posembed.nn.memory import Memory


NO_GRADIENTS = "a cache holds no gradients: call the model under torch.no_grad(), or without a cache"


class KeyValueCache(ChecksCalls):
    """The keys and values of the tokens that a decoder has read: tensors (layers, B, key heads, max_len, head width).

    ``new_cache`` of an Attention, a DecoderLayer or a Decoder creates a cache. Keys are stored after the rotation by
    their positions if no later token changes that rotation (``RotationEncoding.turns_are_final``). Otherwise they are
    stored before the rotation, and rotated in each step. A cache holds no gradients: decode under ``torch.no_grad()``.
    ``reorder`` selects sequences, with all that the cache keeps of them.

    Raises:
        ArgumentError: more tokens or another batch size than the cache was made for, keys of another model, keys with
            gradients, or a ``length`` beyond the tokens read.

    Examples:
        >>> import torch
        >>> from posembed.nn import Decoder
        >>> decoder, x = Decoder(dim=64, heads=4, layers=2, encoding="rope").eval(), torch.randn(2, 10, 64)
        >>> with torch.no_grad():
        ...     cache = decoder.new_cache(batch=2, max_len=10)
        ...     steps = [decoder(x[:, i : i + 1], cache=cache) for i in range(10)]
        ...     torch.allclose(torch.cat(steps, dim=1), decoder(x), atol=1e-5)
        True
    """

    counted = 0
    """The number of tokens at the start whose positions were counted, up to the first call with ``position_ids``."""
    orders = 0
    """How often the sequences were reordered."""
    memory: Memory | None = None
    """The Memory that layers with cross-attention attend to, with its keys and values, or None."""

    def __init__(self, keys: Float[Tensor, "layers B H N d"]) -> None:
        self._keys = keys
        with torch.inference_mode(False):
            self._values = torch.empty_like(keys)
        self._length = self._read = 0
        self.position_ids: Tensor | None = None
        """The positions of these tokens, (length,) or (B, length)."""
        self.of_tokens: dict[int, Tensor] = {}
        """The values that an encoding keeps for each token, (B, max_len, S), by the number of the layer."""
        self.present: Tensor | None = None
        """True for a token, False for padding, (B, length). None means no padding."""

    @property
    def keys(self) -> Tensor:
        return self._keys

    @property
    def values(self) -> Tensor:
        return self._values

    @property
    def length(self) -> int:
        """The number of tokens read. Set a smaller number to forget the last tokens."""
        return self._length

    @length.setter
    def length(self, length: int) -> None:
        length = checked("length", length, Amount)
        if length > self._read:
            raise ArgumentError(
                f"this cache has read {self._read} tokens; expected a length from 0 to that, got {length}"
            )
        self._length = length

    def reorder(self, index: Tensor) -> None:
        """Keeps the sequences that an index (B',) of rows names, in its order: those of a beam search, or the texts
        that have not ended. Rows may repeat. If the next call is given a memory, it must be that of these rows.

        Raises:
            ArgumentError: no integers (B',), or a row that the cache does not have.
        """
        index = checked_rows(index, self.keys.size(1))
        with torch.inference_mode(False), torch.no_grad():
            memory = None if self.memory is None else self.memory.reordered(index)
            self._keys, self._values = (self._of_rows(kept, 1, index) for kept in (self.keys, self.values))
            self.of_tokens = {layer: self._of_rows(kept, 0, index) for layer, kept in self.of_tokens.items()}
            self.position_ids = ids_of(self.position_ids, index)
            self.present = None if self.present is None else self.present[index]
        self.memory, self.orders = memory, self.orders + 1

    def _of_rows(self, kept: Tensor, dim: int, index: Tensor) -> Tensor:
        """Selects rows along a dimension. Copies only the tokens read, in the last dimension but one."""
        rows = kept[..., : self._read, :].index_select(dim, index)
        new = kept.new_empty(*rows.shape[:-2], *kept.shape[-2:])
        new[..., : self._read, :] = rows
        return new

    @property
    def max_len(self) -> int:
        """The number of tokens that the cache can hold for each sequence, padding included."""
        return self.keys.size(-2)

    def require_room(self, batch: int, length: int) -> None:
        """Raises ArgumentError unless ``length`` more tokens of ``batch`` sequences fit."""
        if batch != self.keys.size(1):
            raise ArgumentError(
                f"this cache is for {self.keys.size(1)} sequences, and x has {batch}; make one with "
                f"new_cache(batch={batch}, max_len={self.max_len})"
            )
        if self.length + length > self.max_len:
            raise ArgumentError(
                f"this cache holds max_len={self.max_len} tokens; it has read {self.length}, and x has {length} more. "
                f"Make a larger one with new_cache(batch={batch}, max_len=...), at least {self.length + length}"
            )

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Stores the new tokens' k and v (B, Hk, L, D/H). Returns k and v of all tokens, (B, Hk, length + L, D/H)."""
        if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
            raise ArgumentError(NO_GRADIENTS)
        layers, _, heads, _, head_dim = self.keys.shape
        if layer >= layers or (k.size(1), k.size(-1)) != (heads, head_dim):
            raise ArgumentError(
                f"this cache was made for another model: it has layers={layers}, key heads={heads} and "
                f"head_dim={head_dim}; got {k.size(1)} key heads of width {k.size(-1)} in layer number {layer + 1}. "
                "Make one with this model's new_cache(batch, max_len)"
            )
        if k.dtype != self.keys.dtype and not torch.is_autocast_enabled(k.device.type):
            raise ArgumentError(
                f"this cache holds {self.keys.dtype}, and the model computes {k.dtype}; make one with "
                f"new_cache(..., dtype={k.dtype}), or convert the model"
            )
        self._read = self.length  # the tokens after these are overwritten
        end = self.length + k.size(-2)
        self.keys[layer, :, :, self.length : end] = k
        self.values[layer, :, :, self.length : end] = v
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def write_values(self, layer: int, values: Tensor) -> Tensor:
        """Stores an encoding's values for the new tokens (B, L, S). Returns those for all tokens, (B, length + L,
        S)."""
        if torch.is_grad_enabled() and values.requires_grad:
            raise ArgumentError(NO_GRADIENTS)
        if not self.length:
            with torch.inference_mode(False):  # as other tokens may be read outside of it
                self.of_tokens[layer] = values.new_empty(values.size(0), self.max_len, values.size(-1))
        kept = self.of_tokens.get(layer)
        if kept is None or kept.size(-1) != values.size(-1):
            raise ArgumentError(
                "the tokens in this cache were read with another encoding; make a new cache with new_cache(batch, "
                "max_len), and read them again"
            )
        self._read = self.length
        end = self.length + values.size(1)
        kept[:, self.length : end] = values
        return kept[:, :end]

    def add(self, length: int, position_ids: Tensor, present: Tensor | None, *, counted: bool) -> None:
        """Adds ``length`` tokens, which every layer has written, given the positions and padding of all tokens."""
        self.counted = min(self.counted, self.length) + length * (counted and self.counted >= self.length)
        self._length = self._read = self.length + length
        self.position_ids, self.present = position_ids, present


def checked_rows(index: Tensor, batch: int) -> Tensor:
    """Returns the index (B',) of rows of a batch as int64. Raises ArgumentError for anything else."""
    whole = isinstance(index, Tensor) and not (index.dtype == torch.bool or index.is_floating_point())
    if not whole or index.is_complex() or index.dim() != 1 or not index.numel():
        of_mask = "of a mask, pass mask.nonzero().flatten()"
        raise ArgumentError(f"index: expected integers (B',), the rows to keep; {of_mask}; got {index!r:.80}")
    index = index.long()
    least, most = int(index.min()), int(index.max())
    if least < 0 or most >= batch:
        raise ArgumentError(f"index: expected rows from 0 to {batch - 1}; got {least if least < 0 else most}")
    return index


def ids_of(position_ids: Tensor | None, index: Tensor) -> Tensor | None:
    """Selects rows of ids (B, L). Ids (L,) or (1, L) hold for all rows."""
    shared = position_ids is None or position_ids.dim() < 2 or position_ids.size(0) == 1
    return position_ids if shared or position_ids is None else position_ids[index]
