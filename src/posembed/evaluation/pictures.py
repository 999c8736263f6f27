"""Images of a folder, the vectors that an image model computes for them, and how well details find their image.

Lengths are sides in pixels. Every image is read as a square: its short side is resized, and the middle is kept. To add
a way to read an image that is larger than the model's own side, add an entry to ``VIEWS``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posembed.errors import CheckpointError, DataError
from posembed.evaluation.counts import Tick
from posembed.evaluation.ranking import ranking_values, top
from posembed.evaluation.runnable import Runnable
from posembed.evaluation.ways import Index, slices
from posembed.modelfiles.checkpoint import open_checkpoint

VERSION = 1
"""Increase this number whenever the same job would give different counts, so that old and new counts never mix."""
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm")
SETTINGS = "preprocessor_config.json"
IMAGES_AT_ONCE = 8
DETAIL = 1 / 3
"""The side of a detail, relative to that of its image."""
PLACES = {"top left": 0.0, "centre": 0.5, "bottom right": 1.0}
"""Where the details of an image are, along both sides."""


class Picture(NamedTuple):
    """An image file. side: the shorter side in pixels. sha256: of the file."""

    path: Path
    side: int
    sha256: str


def read_pictures(folder: str | Path) -> list[Picture]:
    """Lists the images of a folder, at any depth. Equal files count once. Raises DataError if there is none."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: expected a folder of images; found {'a file' if folder.exists() else 'nothing'}")
    found: dict[str, Picture] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in SUFFIXES and path.is_file():
            with opened(path) as image:
                side = min(image.size)
            picture = Picture(path, side, hashlib.sha256(path.read_bytes()).hexdigest())
            found.setdefault(picture.sha256, picture)
    if not found:
        raise DataError(f"{folder}: expected images ({', '.join(SUFFIXES)}); it holds none")
    return list(found.values())


def opened(path: Path) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(path)
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: cannot be read as an image ({error}); remove it or convert it") from error


def pixels_of(picture: Picture, side: int) -> Tensor:
    """Returns the middle of an image as float32 values from 0 to 1: (3, side, side)."""
    from PIL import Image

    with opened(picture.path) as image:
        try:
            whole = image.convert("RGB")
        except OSError as error:
            raise DataError(f"{picture.path}: cannot be read as an image ({error}); remove it") from error
    share = side / min(whole.size)
    width, height = (max(side, round(share * each)) for each in whole.size)
    whole = whole.resize((width, height), Image.Resampling.BICUBIC)
    left, upper = (width - side) // 2, (height - side) // 2
    whole = whole.crop((left, upper, left + side, upper + side))
    values = torch.frombuffer(bytearray(whole.tobytes()), dtype=torch.uint8)
    return values.view(side, side, 3).permute(2, 0, 1).float() / 255


def scaled(pixels: Tensor, side: int) -> Tensor:
    """Resizes squares (B, 3, S, S) to (B, 3, side, side), as with PIL's bicubic filter."""
    if pixels.shape[-1] == side:
        return pixels
    return F.interpolate(pixels, size=(side, side), mode="bicubic", antialias=True).clamp(0, 1)


def tiles(pixels: Tensor, side: int) -> Tensor:
    """Cuts squares (B, 3, S, S) into the fewest tiles of a side that cover them: (B, T, 3, side, side). Tiles at the
    far edges overlap those before them if ``side`` does not divide S."""
    parts = slices(pixels.shape[-1], side)
    return torch.stack([pixels[..., down, right] for down in parts for right in parts], dim=1)


VIEWS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "scaled": lambda pixels, side: scaled(pixels, side)[:, None],
    "tiles": tiles,
}
"""Functions from images (B, 3, S, S) and a model's side to what it reads: (B, T, 3, side, side)."""


def details(pixels: Tensor) -> Tensor:
    """Returns three parts of each square (B, 3, S, S), mirrored so that no pixels are the same: (B, 3, 3, S/3, S/3)."""
    side = max(1, round(DETAIL * pixels.shape[-1]))
    starts = [round(share * (pixels.shape[-1] - side)) for share in PLACES.values()]
    parts = [pixels[..., start : start + side, start : start + side] for start in starts]
    return torch.stack(parts, dim=1).flip(-1)


class Viewer(NamedTuple):
    """An image model that embeds squares. mean, std: of its preprocessing. side: the side that it takes."""

    model: nn.Module
    mean: tuple[float, ...]
    std: tuple[float, ...]
    side: int

    @classmethod
    def of(cls, runnable: Runnable, model: nn.Module) -> Viewer:
        settings = runnable.checkpoint.settings(SETTINGS)
        mean, std = (tuple(settings.get(name, (0.5, 0.5, 0.5))) for name in ("image_mean", "image_std"))
        assert runnable.length is not None
        return cls(model, mean, std, runnable.length)

    def vectors(self, pixels: Tensor) -> Tensor:
        """Returns unit vectors (B, D), on the CPU, of squares (B, 3, S, S) from 0 to 1. Differentiable."""
        mean, std = (torch.tensor(each)[:, None, None] for each in (self.mean, self.std))
        device = next(self.model.parameters()).device
        return F.normalize(features(self.model, ((scaled(pixels, self.side) - mean) / std).to(device)), dim=1).cpu()

    def views(self, pixels: Tensor, view: str) -> Tensor:
        """Returns unit vectors (B, T, D) of the parts of images (B, 3, S, S). view: a key of ``VIEWS``."""
        parts = VIEWS[view](pixels, self.side)
        return self.vectors(parts.flatten(0, 1)).unflatten(0, parts.shape[:2])


def features(model: Any, pixels: Tensor) -> Tensor:
    """Returns what an image model says about normalized pixels (B, 3, S, S): the projected vector of CLIP and SigLIP,
    the pooled one of their vision models, and the first token of others (B, D)."""
    if hasattr(model, "get_image_features"):
        found = model.get_image_features(pixel_values=pixels)
        return (found if isinstance(found, Tensor) else found.pooler_output).float()
    found = model(pixel_values=pixels)
    if getattr(found, "image_embeds", None) is not None:
        return found.image_embeds.float()
    # A ViT's pooler is often missing from the files, or was trained for another task.
    if getattr(found, "pooler_output", None) is not None and not hasattr(model, "pooler"):
        return found.pooler_output.float()
    return found.last_hidden_state[:, 0].float()


def open_image_model(source: str | Path) -> Runnable:
    """Opens an image model of transformers. Raises CheckpointError if it is none, or if its images are not square."""
    checkpoint = open_checkpoint(source)
    config = checkpoint.config
    if checkpoint.folder is None or config is None or "model_type" not in config:
        raise CheckpointError(f"{source}: expected a folder of transformers, with config.json; weights cannot be run")
    vision = config.get("vision_config", config)
    side = vision.get("image_size")
    side = side[0] if isinstance(side, list) and len(side) == 2 and side[0] == side[1] else side
    if type(side) is not int or "patch_size" not in vision:
        raise CheckpointError(
            f"{source}: expected an image model that cuts square images into patches (image_size and patch_size in "
            f"config.json), such as ViT, CLIP, SigLIP or DINOv2; got {config['model_type']} with image_size {side}"
        )
    if not (checkpoint.root / SETTINGS).exists():
        expected = f"expected {SETTINGS} next to the weights"
        raise CheckpointError(f"{source}: {expected}; save the model's own image processor into that folder")
    return Runnable(str(source), checkpoint, "images", side, None, side, None)


@dataclass(frozen=True)
class PictureJob:
    """One run of an image model over images and their details. size: the side of the images. view: a key of ``VIEWS``.

    Every model reads details at its own side.
    """

    runnable: Runnable
    pictures: tuple[Picture, ...]
    size: int
    view: str

    @cached_property
    def key(self) -> str:
        """A hash of everything that the counts depend on."""
        shas = [picture.sha256 for picture in self.pictures]
        parts = [VERSION, self.runnable.sha256, shas, self.size, self.view, self.runnable.length]
        return f"pictures-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}"

    @property
    def tokens(self) -> int:
        return len(self.pictures)

    @property
    def at_once(self) -> int:
        return self.runnable.length or self.size

    @property
    def about(self) -> Mapping[str, Any]:
        return {"size": self.size, "view": self.view}

    def count(self, model: nn.Module, tick: Tick) -> dict[str, Tensor]:
        """Returns the values of each detail's ranking of the images, by the best of their parts ("max") and by the
        mean of them: (3 N,) each."""
        viewer, queries, found = Viewer.of(self.runnable, model), list[Tensor](), list[Tensor]()
        for batch in batches(self.pictures):
            pixels = torch.stack([pixels_of(picture, self.size) for picture in batch])
            queries.append(viewer.vectors(details(pixels).flatten(0, 1)))
            found.append(viewer.views(pixels, self.view))
            tick(len(batch))
        names = [str(number) for number in reversed(range(len(self.pictures)))]
        parts = torch.cat(found).flip(0)
        values: dict[str, list[float]] = {}
        for match, vectors in (("max", parts), ("mean", F.normalize(parts.mean(dim=1, keepdim=True), dim=2))):
            owners = torch.arange(len(names)).repeat_interleave(vectors.shape[1])
            scores = Index(vectors.flatten(0, 1), owners, len(names)).scores(torch.cat(queries))
            for number, ranked in enumerate(top(scores)):
                judged = {str(number // len(PLACES)): 1}
                for measure, value in ranking_values([names[column] for column in ranked], judged).items():
                    values.setdefault(f"{match} {measure}", []).append(value if scores.isfinite().all() else torch.nan)
        return {name: torch.tensor(each, dtype=torch.float64) for name, each in values.items()}


def batches(pictures: Sequence[Picture]) -> Iterable[Sequence[Picture]]:
    return (pictures[start : start + IMAGES_AT_ONCE] for start in range(0, len(pictures), IMAGES_AT_ONCE))
