"""The objective of image models: a large image should have the vector that the original gives it at the old size.

The images need no labels: the original model is the teacher (Hinton et al., arXiv:1503.02531). The loss is 1 - cosine.
At the old size, the model reads the large image in tiles, and the mean of their vectors has the same target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posembed.errors import DataError
from posembed.evaluation.api import device_named
from posembed.evaluation.pictures import (
    PLACES,
    Picture,
    PictureJob,
    Viewer,
    alike,
    batches,
    open_image_model,
    pixels_of,
    read_pictures,
    thumbnail,
)
from posembed.evaluation.plan import Plan, PlannedRow
from posembed.evaluation.ranking import RANKING_VALUES
from posembed.evaluation.runnable import Runnable
from posembed.evaluation.ways import slices
from posembed.measure.jobs import Kept, Progress, Store, silent
from posembed.tuning.apart import left_out_note, set_apart
from posembed.tuning.draws import window_of
from posembed.tuning.objectives import RESIZED, Objective, Setup, vectors_once
from posembed.tuning.texts import FEWEST, MOST_HELD_OUT, MOST_WINDOWS, order

NOT_TUNED = "resized, not fine-tuned"


@dataclass(frozen=True, eq=False)
class Pictures:
    """The images of a folder. training: images to train on. held_out: images to measure on; no training image looks
    like one of these. short: images whose short side is below the new size. alike: the number of images that look like
    a held-out one and are left out."""

    training: tuple[Picture, ...]
    held_out: tuple[Picture, ...]
    short: tuple[Picture, ...]
    alike: int = 0

    @property
    def windows(self) -> tuple[Picture, ...]:
        return self.training

    @property
    def notes(self) -> tuple[str, ...]:
        return left_out_note("Images that look like a held-out image", self.alike)

    @property
    def sha256(self) -> str:
        return "".join(each.sha256[:8] for part in (self.training, self.held_out) for each in part)


def split_pictures(
    folder: str | Path,
    *,
    size: int,
    held_out: float,
    seed: int,
    progress: Progress = silent,
) -> Pictures:
    """Splits the images of a folder whose short side has ``size`` pixels. A hash of the seed and of the file decides
    which images are held out. Images that look like a held-out one are left out. Raises DataError if there are too few,
    or if one of them cannot be decoded."""
    found = read_pictures(folder, progress)
    large = [picture for picture in found if picture.side >= size]
    number = min(max(FEWEST, round(held_out * len(large))), MOST_HELD_OUT, max(0, len(large) - FEWEST))
    ranked = sorted(large, key=lambda picture: order(seed, picture.sha256))[: number + MOST_WINDOWS]
    measured, training = list[int](), list[int]()
    if len(large) >= 2 * FEWEST:
        small = list[Tensor]()
        for picture in ranked:
            small.append(thumbnail(picture))
            progress("looking for equal images", len(small), len(ranked))
        looks = torch.stack(small)
        measured, training = set_apart(len(ranked), number, FEWEST, lambda at: alike(looks[at], looks))
    left_out = len(large) and len(ranked) - len(training) - len(measured)
    if len(training) < FEWEST:
        longest = max(picture.side for picture in found)
        same = f", of which {left_out:,} look like another" if measured else ""
        raise DataError(
            f"expected at least {2 * FEWEST} images whose short side has {size:,} pixels, {FEWEST} to train on and "
            f"{FEWEST} to measure on; {len(large):,} of {len(found):,} images in {folder} do{same}, and the largest "
            f"has {longest:,}; give more images or a smaller size"
        )
    short = tuple(each for each in found if each.side < size)
    trained, held = (tuple(ranked[at] for at in part) for part in (training, measured))
    return Pictures(trained, held, short, left_out)


class Images(Objective):
    """The objective of image models."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.pictures = setup.texts.training
        self.targets: Tensor | None = None
        self.resized: Path | None = None

    @property
    def windows_once(self) -> float:
        """The original reads each image once, at its own size: as much as one of the tiles of the large image."""
        return len(self.pictures) / len(slices(self.settings.length, self.setup.old_length)) ** 2

    def prepare(self, store: Store, progress: Progress) -> None:
        self.resized = store.path / RESIZED
        make = partial(self.vectors_of, self.setup.original, self.pictures, progress)
        self.targets = vectors_once(store, make, number=len(self.pictures))

    def vectors_of(self, runnable: Runnable, pictures: Sequence[Picture], progress: Progress = silent) -> Tensor:
        """Returns the unit vectors (N, D) of whole images, which a checkpoint reads at its own size."""
        viewer, found = Viewer.of(runnable, runnable.model(device_named(self.setup.device)).float()), list[Tensor]()
        with torch.inference_mode():
            for batch in batches(pictures):
                found.append(viewer.vectors(self.pixels(batch)))
                progress("embedding images by the original", sum(map(len, found)), len(pictures))
        return torch.cat(found)

    def pixels(self, pictures: Sequence[Picture]) -> Tensor:
        return torch.stack([pixels_of(picture, self.settings.length) for picture in pictures])

    def loss(self, model: nn.Module, items: Sequence[int], *, length: int, seed: int) -> Tensor:
        numbers = [window_of(item, len(self.pictures), seed) for item in items]
        viewer = Viewer.of(self.setup.original, model)._replace(side=length)
        parts = viewer.views(self.pixels([self.pictures[number] for number in numbers]), "tiles")
        found = F.normalize(parts.mean(dim=1), dim=1)
        # Only the time of a step is measured before the targets are computed.
        targets = torch.ones_like(found) if self.targets is None else self.targets[numbers]
        return (1 - (found * targets).sum(dim=1)).mean()

    def plan(self, tuned: Runnable, original: Runnable, old: Runnable | None, kept: Kept) -> Plan:
        length, side, held_out = self.settings.length, self.setup.old_length, self.setup.texts.held_out
        assert self.resized is not None
        untuned = replace(open_image_model(self.resized), name=original.name)
        queries, scaled = self.setup.texts.sha256, f"scaled to {side}"

        def row(runnable: Runnable, baseline: str, view: str, match: str) -> PlannedRow:
            job = PictureJob(runnable, held_out, length, view)
            return PlannedRow(runnable, baseline, queries, {length: job}, f"{match} ")

        rows = [row(tuned, "", "scaled", "max"), row(untuned, NOT_TUNED, "scaled", "max")]
        for each in [old, original] if old is not None else [original]:
            rows.append(row(each, f"tiles of {side}, max", "tiles", "max"))
            if each is not original:
                rows.append(row(each, scaled, "scaled", "max"))
            rows.append(row(each, self.chunked, "tiles", "mean"))
        rows.append(row(original, scaled, "scaled", "max"))
        number = len(held_out) * len(PLACES)
        notes = (
            f"{number:,} queries and {len(held_out):,} held-out images of {length:,} x {length:,} pixels. The queries "
            f"are details of each image, a third of its side ({', '.join(PLACES)}), mirrored. Each model reads them "
            "at its own size.",
            *self.setup.texts.notes,
            "Tiles: the model of the old size reads the image in parts, and compares a query with the best of them, or "
            "with their mean.",
        )
        where = device_named(self.setup.device)
        owners = [owner for owner in range(len(held_out)) for _ in PLACES]
        return Plan("images", RANKING_VALUES, (length,), number, rows, notes, kept, where, unit="image", owners=owners)

    @property
    def chunked(self) -> str:  # type: ignore[override]
        return f"tiles of {self.setup.old_length}, mean"

    def held_out_vectors(self, runnable: Runnable) -> Tensor:
        return self.vectors_of(runnable, self.setup.texts.held_out)
