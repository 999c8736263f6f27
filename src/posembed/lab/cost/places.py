"""Runs an encoding without a whole model: either by itself, or within one attention layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posembed.lab.cost.results import Shape
from posembed.layers.base import PositionEncoding, reads_content
from posembed.nn import Attention, Positions
from posembed.nn.positions import add_rows

FLOAT = 4  # bytes of a float32


class Made(NamedTuple):
    """The tensors that an encoding creates for the input, for queries and keys, and for scores. A field is empty if the
    encoding does not act there."""

    input: tuple[Tensor, ...]
    queries_keys: tuple[Tensor, ...]
    scores: tuple[Tensor, ...]


class Writes(NamedTuple):
    """The bytes, in float32, of the tensors that an encoding passes to the model. It must write at least these.

    input: the tokens with their rows added (B, L, D), written once per forward pass.
    queries_keys: the queries and keys, written in each layer: 2 B L D numbers if they are rotated or rows are added to
        them, 4 B L D numbers if both happen or if they are widened.
    scores: the bias (H, L, L), written once per forward pass.
    """

    input: int
    queries_keys: int
    scores: int


class Places:
    """An encoding by itself, with random tensors that are laid out as in one ``Attention`` layer. A call runs one step.

    training: whether a step includes the backward pass and uses the position ids of training, which may be random.
    """

    def __init__(
        self, encoding: PositionEncoding, shape: Shape, *, training: bool = False, device: torch.device | None = None
    ) -> None:
        generator = torch.Generator().manual_seed(0)

        def random(*sizes: int) -> Tensor:
            """Draws values at the scale of token rows. They require gradients, like the input of a layer."""
            return torch.randn(*sizes, generator=generator).mul_(0.02).to(device).requires_grad_()

        self.encoding, self.shape, self.training, self.device = encoding.to(device), shape, training, device
        self.generator = generator
        self.x = random(shape.batch, shape.length, shape.width)
        ids = torch.arange(shape.length)
        if training:
            ids = encoding.training_positions(shape.batch, shape.length, generator)
        self.position_ids = ids.to(device)
        self.qkv = random(shape.batch, shape.length, 3 * shape.width)
        # Stands in for W_q and W_k, which project the rows of a rolling table.
        self.projection = random(shape.width, 2 * shape.width)
        self.leaves = [self.x, self.qkv, self.projection]

    def results(self) -> Sequence[Tensor]:
        return [tensor for place in self.made() for tensor in place]

    def __call__(self) -> object:
        """Runs the forward pass and, in training, the backward pass. The results also serve as upstream gradients."""
        with torch.set_grad_enabled(self.training):
            made = [tensor for tensor in self.results() if self.training and tensor.requires_grad]
            if self.training and (loss := self.encoding.auxiliary_loss(self.shape.length, self.generator)) is not None:
                made.append(loss)
        leaves = [tensor for tensor in (*self.leaves, *self.encoding.parameters()) if tensor.requires_grad]
        if not made:
            return None
        return torch.autograd.grad(made, leaves, [tensor.detach() for tensor in made], allow_unused=True)

    def made(self) -> Made:
        def project(rows: Tensor) -> Tensor:
            return rows @ self.projection

        positions = Positions(self.encoding, self.x, self.position_ids, text_length=self.shape.length)
        x = positions.at_input(self.x)
        q, k, _ = plain = self.qkv.split(self.shape.width, dim=-1)
        q, k = summed = add_rows(q, k, positions.rows(project))
        q, k = heads = tuple(t.unflatten(-1, (self.shape.heads, -1)).transpose(1, 2) for t in (q, k))
        turned, bias = positions.turn(q, k), positions.scores(project)
        if reads_content(self.encoding):
            q, k, bias = self.encoding.at_content(*turned, positions.content(positions.of_tokens(x)))
            turned = q, k
        pairs = (*zip(summed, plain, strict=False), *zip(turned, heads, strict=True))
        queries_keys = tuple(new for new, old in pairs if new is not old)
        return Made(() if x is self.x else (x,), queries_keys, () if bias is None else (bias,))


class AttentionWith(Places):
    """An encoding within one attention layer. A step runs the whole layer: projections, scores and output."""

    def __init__(self, encoding: PositionEncoding, attention: Attention, shape: Shape, **settings: Any) -> None:
        super().__init__(encoding, shape, **settings)
        self.attention = attention.to(self.device)
        self.leaves = [self.x, *self.attention.parameters()]
        del self.qkv, self.projection  # the layer has its own

    def results(self) -> Sequence[Tensor]:
        positions = Positions(self.encoding, self.x, self.position_ids)
        return (self.attention(positions.at_input(self.x), positions=positions),)


def writes(encoding: PositionEncoding, shape: Shape) -> Writes:
    """Computes the number of bytes that an encoding writes, by scaling up the sizes of its tensors for two tokens."""
    with torch.no_grad():
        made = Places(encoding, Shape(1, 2, shape.width, shape.heads)).made()
    per_token, per_layer, per_pair = (FLOAT * sum(tensor.numel() for tensor in tensors) for tensors in made)
    tokens = shape.batch * shape.length
    pairs = shape.length**2 * (shape.batch if reads_content(encoding) else 1)
    return Writes(tokens * per_token // 2, tokens * per_layer // 2, pairs * per_pair // 4)
