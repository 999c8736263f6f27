"""Which images look alike: the same one in another size or format, and no other one."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from posembed.evaluation.pictures import alike, read_pictures, thumbnail
from together import together


@cache
def photograph(seed: int, side: int = 200) -> Image.Image:
    """An image whose frequencies have the strength 1/f, as in photographs."""
    draw = np.random.default_rng(seed)
    rates = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None])
    rates[0, 0] = np.inf
    waves = draw.normal(size=(3, *rates.shape)) + 1j * draw.normal(size=(3, *rates.shape))
    pixels = np.fft.irfft2(waves / rates, s=(side, side)).transpose(1, 2, 0)
    return Image.fromarray((128 + 50 * (pixels / pixels.std())).clip(0, 255).astype(np.uint8))


@cache
def written_page(seed: int) -> Image.Image:
    """Lines of black bars of random widths on white: pages of a book have the same layout and other words."""
    draw, pixels = random.Random(seed), np.full((280, 200, 3), 255, np.uint8)
    for line in range(20, 260, 8):
        left = 20
        while left < 170:
            width = draw.randint(3, 18)
            pixels[line : line + 4, left : min(left + width, 180)] = 0
            left += width + 3
    return Image.fromarray(pixels)


AGAIN: dict[str, Callable[[Image.Image], Image.Image]] = {
    "JPEG": lambda image: as_jpeg(image, 50),
    "half": lambda image: image.resize((image.width // 2, image.height // 2)),
    "half, JPEG": lambda image: as_jpeg(image.resize((image.width // 2, image.height // 2)), 75),
    "third": lambda image: image.resize((image.width // 3, image.height // 3)),
    "larger": lambda image: as_jpeg(image.resize((3 * image.width, 3 * image.height)), 85),
    "mirrored": lambda image: as_jpeg(ImageOps.mirror(image), 85),
}


def as_jpeg(image: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file)


@together("again", AGAIN, usual=lambda again: again not in ("JPEG", "half"))  # of which "half, JPEG" is both
@together("made", [photograph, written_page])
def test_the_same_image_in_another_size_and_format_looks_alike(
    made: Callable[[int], Image.Image], again: str, tmp_path: Path
) -> None:
    for seed in range(3):
        made(seed).save(tmp_path / f"{seed} a.png")
        AGAIN[again](made(seed)).save(tmp_path / f"{seed} b.png")
    pictures = sorted(read_pictures(tmp_path), key=lambda picture: picture.path.name)
    looks = torch.stack([thumbnail(picture) for picture in pictures])
    for number in range(6):
        assert alike(looks[number], looks).nonzero()[:, 0].tolist() == [number // 2 * 2, number // 2 * 2 + 1]


@pytest.mark.parametrize(
    ("step", "angle", "detail", "expected"),
    [
        (0.0, 0, 0.5, True),
        (0.2, 0, 0.5, True),
        (0.3, 0, 0.5, False),  # brighter by more than a quarter of the contrast
        (0.0, 50, 0.5, True),
        (0.0, 57, 0.5, False),  # other detail, of cosine .54
        (0.0, 90, 0.09, True),  # so little detail that it may be noise
        (0.0, 90, 0.12, False),
    ],
)
def test_where_images_cease_to_look_alike(step: float, angle: int, detail: float, *, expected: bool) -> None:
    """``step`` and ``detail`` are in units of the contrast. Detail, one and other, has no share in the coarse parts."""
    rows, columns = torch.meshgrid(torch.arange(64), torch.arange(64), indexing="ij")
    coarse = (0.3 + rows / 160).expand(3, -1, -1)
    contrast = float(torch.nn.functional.adaptive_avg_pool2d(coarse, 16).std())
    one, other = 1.0 - 2 * (rows % 2), 1.0 - 2 * (columns % 2)
    turned = torch.tensor(angle).deg2rad()
    looks = coarse + contrast * (step + detail * (turned.cos() * one + turned.sin() * other))
    assert alike(coarse + contrast * detail * one, looks[None]).tolist() == [expected]
