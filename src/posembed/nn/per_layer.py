"""Models whose layers have different encodings, such as rotated layers between layers without position.

See Yang et al. 2025 (arXiv:2501.18795) and Puvvada et al. 2025 (arXiv:2504.08719).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posembed.errors import ArgumentError
from posembed.layers.base import PositionEncoding, overrides
from posembed.settings import Amount, Count, Pair


class PerLayer(PositionEncoding):
    """The encodings of a model's layers: layer i has entry i, and the list starts again after its end.

    ``Encoder`` and ``Decoder`` take it, or the list itself, as ``encoding=``. A window or a ``log_length`` (``+logn``)
    applies only in the layers whose encoding has it. Rows that an encoding adds to the input are added once, before the
    first layer.

    Args:
        encodings: one per layer. Layers with the same object share its parameters.

    Raises:
        ArgumentError: no encodings, one that is itself a PerLayer, or two that draw positions in training.

    Examples:
        >>> import torch
        >>> from posembed import RotaryEmbedding
        >>> from posembed.layers import NoPosition
        >>> from posembed.nn import Decoder, PerLayer
        >>> rope = RotaryEmbedding(16)
        >>> decoder = Decoder(dim=64, heads=4, layers=6, encoding=PerLayer([rope, rope, NoPosition()]))
        >>> decoder(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
        >>> Decoder(dim=64, heads=4, layers=6, encoding="rope/rope/none").encoding.in_place(5)
        NoPosition()
    """

    def __init__(self, encodings: Sequence[PositionEncoding]) -> None:
        super().__init__()
        if not encodings or any(
            not isinstance(each, PositionEncoding) or isinstance(each, PerLayer) for each in encodings
        ):
            raise ArgumentError(f"encodings must be one encoding per layer, and none a PerLayer; got {encodings!r}")
        distinct = list(dict.fromkeys(encodings))
        self.distinct = nn.ModuleList(distinct)
        """Each encoding once, so that a state dict holds its values once."""
        self.order = tuple(distinct.index(each) for each in encodings)
        """The index in ``distinct`` of each layer's encoding."""
        if sum(overrides(each, "training_positions") for each in distinct) > 1:
            raise ArgumentError(f"at most one of the encodings may draw positions in training; got {distinct}")

    def in_place(self, layer: int) -> PositionEncoding:
        """Returns the encoding of layer number ``layer``, counted from 0."""
        return self.distinct[self.order[layer % len(self.order)]]  # type: ignore[return-value]

    def training_positions(self, batch: Amount, length: Amount, generator: torch.Generator) -> Tensor:
        """Returns the positions that one of the encodings draws, or else positions that count from 0."""
        drawing: Any = next((each for each in each_of(self) if overrides(each, "training_positions")), super())
        return drawing.training_positions(batch, length, generator)

    def auxiliary_loss(self, length: Count, generator: torch.Generator) -> Tensor | None:
        """Returns the sum of the encodings' losses, or None if none has any."""
        losses = [loss for each in each_of(self) if (loss := each.auxiliary_loss(length, generator)) is not None]
        return torch.stack(losses).sum() if losses else None

    def table(self) -> Tensor | None:
        """Returns the learned rows (N, D) of the first encoding that has any."""
        return next((table for each in self.distinct if (table := each.table()) is not None), None)  # type: ignore[operator]

    def on_grid(self, grid: Pair, *, shared: bool = False) -> PerLayer:
        changed = [each.on_grid(grid, shared=shared) for each in self.distinct]  # type: ignore[operator]
        same = all(new is old for new, old in zip(changed, self.distinct, strict=True))
        return self if same else PerLayer([changed[place] for place in self.order])

    def at_input(self, x: Tensor, position_ids: Tensor, *, text_length: int | Tensor | None = None) -> Tensor:
        for each in self.distinct:
            x = each.at_input(x, position_ids, text_length=text_length)  # type: ignore[operator]
        return x

    def _of_one_layer(self, *args: Any, **kwargs: Any) -> Any:
        raise ArgumentError(
            "a PerLayer differs from layer to layer: pass positions.of_layer(i) to layer i, counted from 0, as Encoder "
            "and Decoder do"
        )

    before_queries_keys = at_queries_keys = in_layer = at_scores = score_mod = of_tokens = at_content = _of_one_layer

    def __repr__(self) -> str:
        return f"{type(self).__name__}([{', '.join(repr(self.in_place(layer)) for layer in range(len(self.order)))}])"


def each_of(encoding: PositionEncoding | None) -> tuple[PositionEncoding, ...]:
    """Returns the different encodings of a model: those in a PerLayer, or else the encoding itself."""
    if isinstance(encoding, PerLayer):
        return tuple(encoding.distinct)  # type: ignore[arg-type]
    return () if encoding is None else (encoding,)
