"""Any encoding inside timm's VisionTransformer: ``replace_positions``.

timm has no registration for attention functions, so the class of the blocks' attention modules changes to a subclass
that calls the encoding. These modules keep their parameters and names. An encoding that acts only at the input does not
change them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from posembed.checkpoints.sources.timm import is_built_by_timm, record_image_size
from posembed.errors import ArgumentError
from posembed.integrations.forward_pass import (
    Current,
    ForwardPass,
    encoding_on,
    image_pass,
    own_grid,
    projection,
    require_grid,
)
from posembed.integrations.saved import acts_in_attention, encoding_for
from posembed.layers.base import PositionEncoding
from posembed.nn.attend import attend_padded
from posembed.versions import check_version, names_versions

check_version("timm")
with names_versions("timm"):
    from timm.layers import Attention, PatchEmbed
    from timm.models.vision_transformer import VisionTransformer


class Images(NamedTuple):
    """The images that a model reads. grid: (height, width) in patches. tokens: the model's pass, from its position
    table on. outer: the images of the model that calls this model in its own pass."""

    positions: ImagePositions
    grid: tuple[int, int]
    tokens: ForwardPass | None
    outer: Images | None

    def without(self, positions: ImagePositions) -> Images | None:
        outer = self.outer and self.outer.without(positions)
        return outer if self.positions is positions else self._replace(outer=outer)


IMAGES = "images"
CURRENT: Current[Images] = Current(IMAGES)
"""The images that are being read, from the patches to the last block."""


def images_of(positions: ImagePositions) -> Images | None:
    """Returns the images of a model. Images of inner models, whose passes have failed, are skipped."""
    images = CURRENT.held[IMAGES]
    while images is not None and images.positions is not positions:
        images = images.outer
    return images


class ImagePositions(nn.Module):
    """The encoding of a VisionTransformer, under ``positions`` in its state dict.

    Args:
        encoding: the encoding. If it has a grid of its own, that grid counts instead of ``grid``.
        prefix: the number of class and register tokens before the patches.
        grid: (height, width) in patches of the images that the model is built for.
        prefix_has_rows: whether rows are also added to the prefix tokens.
    """

    around: _Around

    def __init__(
        self, encoding: PositionEncoding, *, prefix: int, grid: tuple[int, int], prefix_has_rows: bool
    ) -> None:
        super().__init__()
        self.encoding, self.prefix, self.of_model, self.prefix_has_rows = encoding, prefix, grid, prefix_has_rows

    @property
    def grid(self) -> tuple[int, int]:
        return own_grid(self.encoding, self.of_model)

    @property
    def patch(self) -> tuple[int, int]:
        """(height, width) of a patch in pixels."""
        return tuple(self.around.model.patch_embed.patch_size)

    def belongs_to(self, model: nn.Module) -> bool:
        return model is self.around.model

    @names_versions("timm")
    def record_in_config(self) -> None:
        """Gives the model the image size of the encoding's grid, after a resize."""
        if self.grid != self.of_model:
            self.of_model = self.grid
            image = self.grid[0] * self.patch[0], self.grid[1] * self.patch[1]
            self.around.model.set_input_size(image)
            if is_built_by_timm(self.around.model):
                record_image_size(self.around.model, image)

    def begin(self, x: Tensor, *, runs_again: bool) -> ForwardPass:
        """Starts the pass for x (B, L, D), the tokens of the images that this thread reads.

        ``runs_again``: whether gradient checkpointing will call the layers a second time.
        """
        images = images_of(self)
        if images is None:
            raise ArgumentError(
                "the grid of these images is unknown: call the model, and not in its patch_embed's hooks"
            )
        grid = images.grid
        in_attention = acts_in_attention(self.encoding)
        of_own_grid = runs_again and in_attention  # as of_tokens expects
        encoding = encoding_on(self.encoding, grid, self.grid, training=self.training, refused=of_own_grid)
        tokens = image_pass(encoding, x.size(0), self.prefix, grid, x.device, shares=not runs_again)
        CURRENT.held[IMAGES] = images._replace(tokens=tokens) if in_attention and not runs_again else images.outer
        return tokens

    def of_tokens(self, x: Tensor) -> ForwardPass:
        """Returns the pass of the tokens x (B, L, D) in a layer.

        Gradient checkpointing calls a layer again after the model has returned, on a GPU in another thread. In both
        calls, the number of patches alone determines the pass: ``begin`` refuses images for which it does not.
        """
        images, patches = images_of(self), x.size(1) - self.prefix
        if images is not None and images.tokens is not None:
            if images.tokens.q_positions.size(-1) == x.size(1):
                return images.tokens
        elif patches == math.prod(self.grid) or self.encoding.on_grid((1, patches)) is self.encoding:
            return image_pass(self.encoding, x.size(0), self.prefix, (1, patches), x.device, shares=False)
        raise ArgumentError(
            f"these {x.size(1)} tokens are not those of the images at the position table: do not add or drop tokens "
            "after it, and run the layers within a call of the model"
        )


@dataclass(frozen=True)
class _Around:
    """A reference from an attention module or hook to its VisionTransformer. It does not make the model a submodule."""

    model: Any

    @names_versions("timm")
    def note_grid(self, patch_embed: Any, args: tuple[Any, ...], output: Tensor) -> None:
        positions, (height, width) = self.model.positions, args[0].shape[-2:]
        outer = CURRENT.held[IMAGES]
        outer = outer and outer.without(positions)  # a pass of this model has been interrupted
        CURRENT.held[IMAGES] = Images(positions, tuple(patch_embed.dynamic_feat_size((height, width))), None, outer)

    @names_versions("timm")
    def add_rows(self, patch_drop: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor]:
        positions, x = self.model.positions, args[0]
        rows = positions.begin(x, runs_again=self.model.grad_checkpointing).rows_at_input(x.size(-1), x.dtype)
        if not positions.prefix_has_rows:
            rows = torch.cat((torch.zeros_like(rows[:, : positions.prefix]), rows[:, positions.prefix :]), dim=1)
        return (self.model.pos_drop(x + rows),)

    @names_versions("timm")
    def no_weight_decay(self) -> set[str]:
        """Returns the names of the parameters without weight decay. Like the table that it replaces, the encoding has
        none."""
        names = (f"positions.{name}" for name, _ in self.model.positions.named_parameters())
        return {*type(self.model).no_weight_decay(self.model), *names}

    @names_versions("timm")
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Returns the patterns of the layers that decay the learning rate, with the encoding where the table was."""
        groups = type(self.model).group_matcher(self.model, coarse)
        return groups | {"stem": f"{groups['stem']}|positions"}


class PositionedAttention(Attention):
    """timm's attention, with the encoding of the model that contains it."""

    around: _Around

    @names_versions("timm")
    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        B, L, _ = x.shape
        tokens = self.around.model.positions.of_tokens(x)
        gate = self.gate(x).sigmoid() if self.gate is not None else None
        q, k, v = self.qkv(x).reshape(B, L, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        project = projection(self)
        q, k, scaling = tokens.queries_and_keys(q, k, project, self.scale)
        mask = tokens.mask(attn_mask, q, k, project, causal=is_causal)
        x = attend_padded(
            q, k, v, attn_mask=mask, scale=scaling, dropout_p=self.attn_drop.p if self.training else 0.0,
            is_causal=is_causal and mask is None,
        )  # fmt: skip
        if tokens.shares_bias and self is self.around.model.blocks[-1].attn:
            images = images_of(self.around.model.positions)
            CURRENT.held[IMAGES] = images and images.outer
        x = self.norm(x.transpose(1, 2).reshape(B, L, self.attn_dim))
        if gate is not None:
            x = x * gate
        return self.proj_drop(self.proj(x))


@torch.inference_mode(False)  # or the new parameters could not be trained
@names_versions("timm")
def replace_positions(model: VisionTransformer, encoding: PositionEncoding | str, **sizes: Any) -> VisionTransformer:
    """Replaces the position table of timm's VisionTransformer with an encoding, in place. Returns the model.

    To load saved weights, build the model, call this function, then ``load_state_dict``. Create the optimizer after
    this call; timm's treat the encoding as the table: no weight decay, and the first layer's learning rate. For images
    of another size, call ``posembed.resize_model_``, or timm's ``set_input_size`` if the encoding has no table.

    Args:
        model: a VisionTransformer with a learned table and timm's standard attention.
        encoding: a PositionEncoding, or its name in ``posembed.nn.ENCODINGS``. Encodings for images read the patches as
            a grid, encodings for sequences as a line, row by row. Class and register tokens come before the patches.
        sizes: fields of ``posembed.nn.Sizes`` for an encoding given by its name. max_len defaults to the number of
            patches plus one.

    Raises:
        ArgumentError: the model cannot be changed, or the encoding is unknown or does not fit.

    Examples:
        >>> import torch
        >>> from timm.models.vision_transformer import VisionTransformer
        >>> from posembed.integrations.timm import replace_positions
        >>> model = VisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2, num_classes=10)
        >>> replace_positions(model, "alibi")(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    name = type(model).__name__
    earlier = getattr(model, "positions", None)
    if not isinstance(model, VisionTransformer):
        raise ArgumentError(
            f"expected timm's VisionTransformer, got {name}; other timm models use positions differently"
        )
    if model.pos_embed is None and not isinstance(earlier, ImagePositions):
        raise ArgumentError(f"this {name} has no position table (pos_embed): create it with pos_embed='learn'")
    if not isinstance(model.patch_embed, PatchEmbed) or model.patch_embed.grid_size is None:
        raise ArgumentError(f"this {name} does not split images into patches of one size, or has no img_size")
    if type(model)._pos_embed is not VisionTransformer._pos_embed:
        raise ArgumentError(f"this {name} reads pos_embed itself; create a VisionTransformer")
    if not isinstance(model.patch_drop, nn.Identity):
        raise ArgumentError(f"this {name} drops patches, so positions are lost: create it with patch_drop_rate=0")
    grid = model.patch_embed.grid_size
    blocks = [getattr(block, "attn", None) for block in model.blocks]
    given = {
        "dim": model.embed_dim,
        "heads": getattr(blocks[0], "num_heads", None),
        "max_len": 1 + grid[0] * grid[1],
        "grid": tuple(grid),
        "causal": False,
    }
    built = encoding_for(encoding, given | sizes, table_width=model.embed_dim)
    standard = [module for module in blocks if type(module) in (Attention, PositionedAttention)]
    if acts_in_attention(built) and len(standard) < len(blocks):
        other = next(type(module).__name__ for module in blocks if module not in standard)
        raise ArgumentError(
            f"{type(built).__name__} acts in the attention, but this {name} does not use timm's standard attention "
            f'({other}); choose an encoding that acts at the input, such as "learned-2d"'
        )
    require_grid(built, tuple(grid))
    like = next(model.parameters())
    prefix = model.num_prefix_tokens
    positions = ImagePositions(
        built.to(like.device, like.dtype), prefix=prefix, grid=tuple(grid), prefix_has_rows=not model.no_embed_class
    )
    # Raises an error here, not in the first forward pass, for a table of another size.
    image_pass(built, 1, prefix, tuple(grid), like.device, shares=False).rows_at_input(model.embed_dim, like.dtype)
    model.pos_embed = None
    model.positions = positions.train(model.training)
    positions.around = around = _Around(model)
    model.no_weight_decay, model.group_matcher = around.no_weight_decay, around.group_matcher  # in timm's optimizers
    if earlier is None:
        model.patch_embed.register_forward_hook(around.note_grid)
        model.patch_drop.register_forward_pre_hook(around.add_rows)
    for module in standard:
        assert module is not None
        module.__class__ = PositionedAttention if acts_in_attention(built) else Attention
        module.around = around
    return model
