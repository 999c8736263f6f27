"""Small labelled images: the digits that come with scikit-learn."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from posembed.errors import DataError

HELD_OUT_SHARE = 0.25


@dataclass(frozen=True)
class Images:
    """Grey images (N, size, size), float32, with mean 0 and variance 1 over the training part; labels (N,), int64."""

    train: Tensor
    train_labels: Tensor
    held_out: Tensor
    held_out_labels: Tensor
    classes: tuple[str, ...]
    description: str
    sha256: str

    @property
    def size(self) -> int:
        return self.train.size(1)


def load_images(data: str = "digits") -> Images:
    """Loads scikit-learn's digits (Alpaydin and Kaynak 1998): 1,797 of 8 x 8 pixels, in their order.

    The last quarter is held out. Neighbours were written by the same hand, so a random split would test on the hands
    of training.

    Raises:
        DataError: another name.
    """
    if data != "digits":
        raise DataError(f'unknown images {data!r}; expected "digits", scikit-learn\'s')
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images).float()
    labels = torch.from_numpy(digits.target).long()
    cut = round(len(images) * (1 - HELD_OUT_SHARE))
    mean, std = images[:cut].mean(), images[:cut].std()
    images = (images - mean) / std
    return Images(
        train=images[:cut],
        train_labels=labels[:cut],
        held_out=images[cut:],
        held_out_labels=labels[cut:],
        classes=tuple(map(str, digits.target_names)),
        description=(
            f"scikit-learn's digits, 8 x 8 pixels: {cut:,} to train on, the last {len(images) - cut:,} held out"
        ),
        sha256=hashlib.sha256(digits.images.tobytes() + digits.target.tobytes()).hexdigest(),
    )


def enlarged(images: Tensor, size: int) -> Tensor:
    """Resizes (N, s, s) to (N, size, size), bilinear with aligned edges; shrinking is antialiased."""
    if size == images.size(1):
        return images
    return F.interpolate(images.unsqueeze(1), (size, size), mode="bilinear", antialias=True).squeeze(1)


def cut_patches(images: Tensor, patch: int) -> Tensor:
    """Cuts (B, H p, W p) into (B, H W, p * p): patches row by row, and the pixels of each row by row."""
    return images.unfold(1, patch, patch).unfold(2, patch, patch).flatten(3).flatten(1, 2)
