"""Small labelled images: scikit-learn's digits, which come with the library."""

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
    """Grey images (N, size, size), float32, mean 0 and variance 1 over those to train on; labels (N,), int64."""

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
    """scikit-learn's digits (Alpaydin and Kaynak 1998): 1,797 of 8 x 8 pixels, in the order in which they come.

    The last quarter is held out: neighbours are from the same hand, so that a split drawn at random would test
    on the hands that it trained on.

    Raises:
        DataError: another name.
    """
    if data != "digits":
        raise DataError(f'no images are called {data!r}; there are "digits", of scikit-learn')
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
    """(N, s, s) -> (N, size, size): the same pictures drawn larger or smaller, bilinearly, edges aligned.

    Shrunk with antialiasing.
    """
    if size == images.size(1):
        return images
    return F.interpolate(images.unsqueeze(1), (size, size), mode="bilinear", antialias=True).squeeze(1)


def cut_patches(images: Tensor, patch: int) -> Tensor:
    """(B, H p, W p) -> (B, H W, p * p), the patches row by row, the pixels of each row by row."""
    return images.unfold(1, patch, patch).unfold(2, patch, patch).flatten(3).flatten(1, 2)
