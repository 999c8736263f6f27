"""Images of a folder, the vectors that an image model computes for them, and how well details find their image.

Lengths are sides in pixels. Every image is read as a square: its short side is resized, and the middle is kept. To add
a way to read an image that is larger than the model's own side, add an entry to ``VIEWS``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posembed.checkpoints.sources.model_types import open_model
from posembed.errors import CheckpointError, DataError
from posembed.evaluation.counts import Counts, Tick
from posembed.evaluation.ranking import query_counts, values_of
from posembed.evaluation.runnable import Runnable
from posembed.evaluation.ways import Index, slices
from posembed.files import files_below, reason
from posembed.measure.jobs import Progress, silent
from posembed.modelfiles.checkpoint import Checkpoint

VERSION = 2
"""Increase this number whenever the same job would give different counts, so that old and new counts never mix."""
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm")
SETTINGS, SHARED_SETTINGS = "preprocessor_config.json", "processor_config.json"
"""The file with the settings of an image processor, and the file with those of several processors, as in CLIP."""
FAMILIES = (
    *("vit", "deit", "vit_msn", "dinov2", "dinov2_with_registers"),
    *("clip", "clip_vision_model", "metaclip_2", "altclip", "siglip", "siglip_vision_model"),
)
"""Model types whose output for a whole image is known. In others, the first token can be a patch, or untrained."""
SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N", "I")
THUMBNAIL, COARSE = 64, 16
ALIKE, SAME_DETAIL, LITTLE_DETAIL = 0.25, 0.6, 0.1
"""Images look alike if their coarse thumbnails differ by less than ``ALIKE`` times the contrast, and the cosine of
their details is above ``SAME_DETAIL``; details below ``LITTLE_DETAIL`` times the contrast are not compared. Pages of
one layout look alike except for their details. Photographs of 200 pixels, saved again as JPEG (quality 50 or more) or
at a half or a third of their size, differ by at most .10, and their details have a cosine of at least .98."""
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


def read_pictures(folder: str | Path, progress: Progress = silent) -> list[Picture]:
    """Lists the images of a folder, at any depth. Equal files count once. Raises DataError if there is none."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: expected a folder of images; found {'a file' if folder.exists() else 'nothing'}")
    found: dict[str, Picture] = {}
    paths = [path for path in sorted(files_below(folder)) if path.suffix.lower() in SUFFIXES]
    for number, path in enumerate(paths, start=1):
        with read(path) as image:
            side = min(image.size)
        picture = Picture(path, side, hashlib.sha256(path.read_bytes()).hexdigest())
        found.setdefault(picture.sha256, picture)
        progress("reading images", number, len(paths))
    if not found:
        raise DataError(f"{folder}: expected images ({', '.join(SUFFIXES)}); it holds none")
    return list(found.values())


@contextmanager
def read(path: Path) -> Iterator[Any]:
    """Opens an image file. Raises DataError if it cannot be opened, or decoded in the block."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            yield image
    except DataError:
        raise
    except Exception as error:  # each decoder raises its own errors
        raise DataError(f"{path}: cannot be read as an image ({reason(error)}); remove it or convert it") from error


def upright(picture: Picture, *, least: int | None = None) -> Any:
    """Returns an image in RGB as people see it: rotated as its EXIF orientation says, from 8 or 16 bits. least: a side
    in pixels that is enough, so that large JPEG files are read faster."""
    from PIL import Image, ImageOps

    with read(picture.path) as image:
        if least is not None:
            image.draft("RGB", (least, least))
        whole = ImageOps.exif_transpose(image)
        if whole.mode in SIXTEEN_BITS or whole.mode == "F":
            values = np.asarray(whole)
            narrow = 0 < values.max() < 1 << 8  # of 8 bits in a wider type, or a dark image of 16
            if whole.mode == "F" or values.min() < 0 or values.max() >= 1 << 16 or narrow:
                raise DataError(
                    f"{picture.path}: expected an image of 8 or 16 bits; its values ({values.dtype}, {values.min():g} "
                    f"to {values.max():g}) do not show which; convert it or remove it"
                )
            whole = Image.fromarray((values >> 8).astype(np.uint8))
        # Pillow warns if a palette with transparency becomes RGB at once.
        return (whole.convert("RGBA") if whole.mode == "P" else whole).convert("RGB")


def pixels_of(picture: Picture, side: int) -> Tensor:
    """Returns the middle of an image as float32 values from 0 to 1: (3, side, side)."""
    from PIL import Image

    whole = upright(picture)
    share = side / min(whole.size)
    width, height = (max(side, round(share * each)) for each in whole.size)
    whole = whole.resize((width, height), Image.Resampling.BICUBIC)
    left, upper = (width - side) // 2, (height - side) // 2
    return pixel_values(whole.crop((left, upper, left + side, upper + side)))


def pixel_values(image: Any) -> Tensor:
    """Returns an image in RGB as float32 values from 0 to 1: (3, height, width)."""
    values = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return values.view(image.height, image.width, 3).permute(2, 0, 1).float() / 255


def thumbnail(picture: Picture) -> Tensor:
    """Returns a small version of a whole image, from 0 to 1: (3, 64, 64)."""
    from PIL import Image

    whole = upright(picture, least=4 * THUMBNAIL)
    return pixel_values(whole.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS))


def alike(one: Tensor, others: Tensor) -> Tensor:
    """Returns which thumbnails (N, 3, S, S) show the same image as ``one`` (3, S, S), bool (N,). The image may be
    mirrored, or saved again in another format or size."""
    coarse, detail = coarse_and_detail(others)
    contrast = coarse.flatten(1).std(dim=1).clamp(min=2 / 255)
    found = torch.zeros(len(others), dtype=torch.bool)
    for its_coarse, its_detail in (coarse_and_detail(each[None]) for each in (one, one.flip(-1))):
        near = (coarse - its_coarse).square().mean(dim=(1, 2, 3)).sqrt() < ALIKE * contrast
        same = F.cosine_similarity(detail, its_detail) > SAME_DETAIL
        least = torch.minimum(detail.std(dim=1), its_detail.std(dim=1))
        found |= near & (same | (least < LITTLE_DETAIL * contrast))
    return found


def coarse_and_detail(thumbnails: Tensor) -> tuple[Tensor, Tensor]:
    """Splits thumbnails (N, 3, S, S) into smaller thumbnails (N, 3, s, s) and the detail of the brightness that these
    lack (N, S * S)."""
    coarse = F.adaptive_avg_pool2d(thumbnails, COARSE)
    blurred = F.interpolate(coarse, size=thumbnails.shape[-2:], mode="bilinear")
    return coarse, (thumbnails - blurred).mean(dim=1).flatten(1)


def scaled(pixels: Tensor, side: int) -> Tensor:
    """Resizes squares (B, 3, S, S) to (B, 3, side, side), as with PIL's bicubic filter."""
    if pixels.shape[-1] == side:
        return pixels
    return F.interpolate(pixels, size=(side, side), mode="bicubic", antialias=True).clamp(0, 1)


def tiles(pixels: Tensor, side: int) -> Tensor:
    """Cuts squares (B, 3, S, S) into the fewest tiles of this side that cover them: (B, T, 3, side, side). Tiles at the
    far edges overlap those before them if ``side`` does not divide S."""
    parts = slices(pixels.shape[-1], side)
    return torch.stack([pixels[..., down, right] for down in parts for right in parts], dim=1)


VIEWS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "scaled": lambda pixels, side: scaled(pixels, side)[:, None],
    "tiles": tiles,
}
"""Functions from images (B, 3, S, S) and a model's side to the T parts that the model reads: (B, T, 3, side, side)."""


def details(pixels: Tensor) -> Tensor:
    """Returns three parts of each square (B, 3, S, S), mirrored so that no pixels are the same: (B, 3, 3, S/3, S/3)."""
    side = max(1, round(DETAIL * pixels.shape[-1]))
    starts = [round(share * (pixels.shape[-1] - side)) for share in PLACES.values()]
    parts = [pixels[..., start : start + side, start : start + side] for start in starts]
    return torch.stack(parts, dim=1).flip(-1)


class Viewer(NamedTuple):
    """A model that embeds square images. scale, mean, std: of its preprocessing, which multiplies values from 0 to 1 by
    the scale, and then normalizes them. side: the side of the squares that the model takes, in pixels."""

    model: nn.Module
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    side: int

    @classmethod
    def of(cls, runnable: Runnable, model: nn.Module) -> Viewer:
        assert runnable.length is not None
        return cls(model, *preprocessing(runnable.checkpoint), runnable.length)

    def vectors(self, pixels: Tensor) -> Tensor:
        """Returns unit vectors (B, D), on the CPU, of squares (B, 3, S, S) from 0 to 1. Differentiable."""
        mean, std = (torch.tensor(each)[:, None, None] for each in (self.mean, self.std))
        device, fed = next(self.model.parameters()).device, (self.scale * scaled(pixels, self.side) - mean) / std
        return F.normalize(features(self.model, fed.to(device)), dim=1).cpu()

    def views(self, pixels: Tensor, view: str) -> Tensor:
        """Returns unit vectors (B, T, D) of the parts of images (B, 3, S, S). view: a key of ``VIEWS``."""
        parts = VIEWS[view](pixels, self.side)
        return self.vectors(parts.flatten(0, 1)).unflatten(0, parts.shape[:2])


def preprocessing(checkpoint: Checkpoint) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    """Returns the scale, the mean and the standard deviation of a checkpoint's image processor. Raises CheckpointError
    if its settings are missing."""
    settings = checkpoint.settings(SHARED_SETTINGS).get("image_processor") or checkpoint.settings(SETTINGS)
    remedy = "save the model's own image processor into that folder"
    if not settings:
        expected = f"expected {SETTINGS} (or {SHARED_SETTINGS}) next to the weights"
        raise CheckpointError(f"{checkpoint.root}: {expected}; {remedy}")
    try:
        scale = 255.0 * (settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale", True) else 1.0)
        if not settings.get("do_normalize", True):
            return scale, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
        mean, std = (np.broadcast_to(settings[name], 3).astype(float) for name in ("image_mean", "image_std"))
        if not np.isfinite([mean, std]).all() or not (std > 0).all():
            raise ValueError("not finite")
    except (KeyError, TypeError, ValueError) as error:
        expected = "rescale_factor, image_mean and image_std, three numbers each, and no zeros in image_std"
        raise CheckpointError(f"{checkpoint.root}: expected numbers in {SETTINGS}: {expected}; {remedy}") from error
    return scale, tuple(mean.tolist()), tuple(std.tolist())


def features(model: Any, pixels: Tensor) -> Tensor:
    """Returns an image model's vectors (B, D) for normalized pixels (B, 3, S, S): the projected vector of CLIP and
    SigLIP, the pooled vector of their vision models, and the first token of others."""
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


def open_image_model(source: str | Path, *, model_type: str | None = None) -> Runnable:
    """Opens an image model of transformers. Raises CheckpointError for other models and images that are not square."""
    checkpoint = open_model(source, model_type)
    config = checkpoint.config
    if checkpoint.folder is None or config is None or "model_type" not in config:
        raise CheckpointError(f"{source}: expected a folder of transformers, with config.json; weights cannot be run")
    vision = config.get("vision_config", config)
    kind, side = config["model_type"], vision.get("image_size")
    side = side[0] if isinstance(side, list) and len(side) == 2 and side[0] == side[1] else side
    if type(side) is not int or "patch_size" not in vision or kind not in FAMILIES:
        raise CheckpointError(
            f"{source}: expected an image model that cuts square images into patches (image_size and patch_size in "
            f"config.json): {', '.join(FAMILIES)}; got {kind} with image_size {side}; resize it with posembed resize "
            "and fine-tune it with your own code"
        )
    preprocessing(checkpoint)
    return Runnable(str(source), checkpoint, "images", side, None, side, None)


@dataclass(frozen=True)
class PictureJob:
    """One run of an image model over images and their details. size: image side in pixels. view: a key of ``VIEWS``.

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

    def count(self, model: nn.Module, tick: Tick) -> Counts:
        """Returns the values of each detail's ranking of the images, by the best of their parts ("max") and by the
        mean of them: (3 N,) each."""
        viewer, asked, found = Viewer.of(self.runnable, model), list[Tensor](), list[Tensor]()
        for batch in batches(self.pictures):
            pixels = torch.stack([pixels_of(picture, self.size) for picture in batch])
            asked.append(viewer.vectors(details(pixels).flatten(0, 1)))
            found.append(viewer.views(pixels, self.view))
            tick(len(batch))
        names = [str(number) for number in reversed(range(len(self.pictures)))]
        judged = [{str(number): 1} for number in range(len(names)) for _ in PLACES]
        parts, counts = torch.cat(found).flip(0), dict[str, tuple[Tensor, Tensor]]()
        for match, vectors in (("max", parts), ("mean", F.normalize(parts.mean(dim=1, keepdim=True), dim=2))):
            owners = torch.arange(len(names)).repeat_interleave(vectors.shape[1])
            scores = Index(vectors.flatten(0, 1), owners, len(names)).scores(torch.cat(asked))
            finite = bool(scores.isfinite().all())
            counts |= query_counts(values_of(scores, names, judged), match, finite=finite)
        return counts


def batches(pictures: Sequence[Picture]) -> Iterable[Sequence[Picture]]:
    return (pictures[start : start + IMAGES_AT_ONCE] for start in range(0, len(pictures), IMAGES_AT_ONCE))
