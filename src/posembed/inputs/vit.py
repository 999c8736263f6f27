"""The input layers of ViT (Dosovitskiy et al. 2021, 2010.11929) and DeiT (Touvron et al. 2021, 2012.12877)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from posembed.arguments import Float
from posembed.errors import ArgumentError
from posembed.inputs.base import Declaration, InputLayer
from posembed.layers.images.grid import LearnedGridEmbedding
from posembed.settings import Count, Pair, Probability


class ViTInput(InputLayer):
    """A class token and the patches of an image, each plus the row of its position, then dropout.

    Args:
        image_size: height and width of the images in pixels; one number if they are equal.
        patch_size: height and width of a patch in pixels; one number if they are equal.
        dim: the width D.
        channels: the number of channels of the images.
        dropout: the probability of dropout on the result, in training.

    Raises:
        ArgumentError: an argument that cannot be used, such as image sides that are not multiples of the patch sides.

    Examples:
        >>> import torch
        >>> from posembed.inputs import ViTInput
        >>> ViTInput(image_size=224, patch_size=16, dim=64)(torch.randn(2, 3, 224, 224)).shape
        torch.Size([2, 197, 64])
    """

    declaration = Declaration(
        families=("vit",),
        prefix="embeddings.",
        keys={
            "position_embeddings.weight": ("embeddings.position_embeddings",),
            "projection.weight": ("embeddings.patch_embeddings.projection.weight",),
            "projection.bias": ("embeddings.patch_embeddings.projection.bias",),
        },
    )
    special_tokens: ClassVar[tuple[str, ...]] = ("cls_token",)

    def __init__(
        self,
        *,
        image_size: Count | Pair,
        patch_size: Count | Pair,
        dim: Count,
        channels: Count = 3,
        dropout: Probability = 0.0,
    ) -> None:
        super().__init__()
        self.image_size, self.patch_size = (
            (size, size) if isinstance(size, int) else size for size in (image_size, patch_size)
        )
        sides = list(zip(self.image_size, self.patch_size, strict=True))
        if any(side % patch for side, patch in sides):
            raise ArgumentError(
                f"image_size must be whole patches in both directions; got {self.image_size} pixels and patches of "
                f"{self.patch_size}"
            )
        grid = (sides[0][0] // sides[0][1], sides[1][0] // sides[1][1])
        self.projection = nn.Conv2d(channels, dim, kernel_size=self.patch_size, stride=self.patch_size)
        for name in self.special_tokens:
            self.register_parameter(name, nn.Parameter(torch.zeros(1, 1, dim)))
        layout = self.declaration.family.grid
        self.position_embeddings = LearnedGridEmbedding(
            grid=grid, dim=dim, layout=layout, dropout=dropout, init="truncated_normal"
        )

    def reset_parameters(self) -> None:
        """Sets this layer's own parameters, the special tokens, to zero; its modules reset their own."""
        for name in self.special_tokens:
            nn.init.zeros_(getattr(self, name))

    def forward(
        self,
        images: Float[Tensor, "B channels height width"],
    ) -> Float[Tensor, "B L D"]:
        """Embeds images (B, channels, height, width). Returns (B, special tokens + patches, D), patches row by row.

        Raises:
            ArgumentError: images of another size. Images and rows are never resized silently.
        """
        expected = (self.projection.in_channels, *self.image_size)
        if images.dim() != 4 or images.shape[1:] != expected:
            raise ArgumentError(
                f"images must be (B, {', '.join(map(str, expected))}); got {tuple(images.shape)}. Resize the "
                "images, or the table to their grid (posembed.resize_table, posembed resize)"
            )
        patches = self.projection(images).flatten(2).transpose(1, 2)
        special = [getattr(self, name).expand(len(images), -1, -1) for name in self.special_tokens]
        return self.position_embeddings(torch.cat((*special, patches), dim=1))

    @classmethod
    def _tensor_names(cls) -> list[str]:
        return [*cls.special_tokens, *cls.declaration.keys]

    @classmethod
    def _arguments(cls, config: Mapping[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
        tensors["position_embeddings.weight"] = tensors["position_embeddings.weight"].squeeze(0)
        dim, channels, *patch_size = tensors["projection.weight"].shape
        sizes = {"image_size": 224, "patch_size": patch_size, "dim": dim, "channels": channels}
        return {**sizes, **super()._arguments(config, tensors)}


class DeiTInput(ViTInput):
    """ViT's layer with a distillation token between the class token and the patches.

    Raises:
        ArgumentError: as for ``ViTInput``.

    Examples:
        >>> import torch
        >>> from posembed.inputs import DeiTInput
        >>> DeiTInput(image_size=224, patch_size=16, dim=64)(torch.randn(2, 3, 224, 224)).shape
        torch.Size([2, 198, 64])
    """

    declaration = replace(ViTInput.declaration, families=("deit",))
    special_tokens: ClassVar[tuple[str, ...]] = ("cls_token", "distillation_token")
