"""Images classified: their patches, their positions on another grid, resuming, and what the runs say together."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from accelerate import Accelerator

from asked import runs_of, shared, summarise
from posembed import LearnedGridEmbedding, PositionEncoding, resize_table
from posembed.errors import ArgumentError, DataError
from posembed.lab.runs import train
from posembed.lab.tasks.classification import ImageClassification, patches
from posembed.lab.tasks.classification_specs import ACCURACY, LOSS, ImageSpec
from posembed.lab.tasks.task import build_encoding
from posembed.nn.encodings import names_for, split_name
from posembed.tables.layout import TableLayout
from together import asked
from tolerance import assert_close

GRID = (4, 4)


def built(spec: ImageSpec, name: str) -> PositionEncoding:
    torch.manual_seed(1)
    return build_encoding(dataclasses.replace(spec, encoding=name), grid=GRID, causal=False).eval()


def rows_of(encoding: PositionEncoding, tokens: int, width: int = 16) -> torch.Tensor:
    return encoding.at_input(torch.zeros(1, tokens, width), torch.arange(tokens))[0]


def test_patches_are_whole_squares_row_by_row() -> None:
    images = torch.arange(2 * 6 * 6.0).view(2, 6, 6)
    cut = patches(images, 6, 2)
    assert cut.shape == (2, 9, 4)
    assert torch.equal(cut[1, 5], images[1, 2:4, 4:6].flatten())
    assert torch.equal(patches(images, 6, 1).squeeze(-1), images.flatten(1))


def test_digits_are_split_by_their_order(image_task: ImageClassification) -> None:
    assert (len(image_task.train), len(image_task.held_out), image_task.size) == (1348, 449, 8)
    assert_close(image_task.train.mean().item(), 0, dtype=torch.float32, scale=image_task.train)
    assert_close(image_task.train.std().item(), 1, dtype=torch.float32, terms=image_task.train.numel())
    assert len(image_task.classes) == 10
    assert "1,348 to train on, the last 449 held out" in image_task.description
    with pytest.raises(DataError, match="unknown images 'cats'"):
        ImageClassification("cats")


def test_resized_images_keep_their_brightness(image_task: ImageClassification) -> None:
    images = image_task.held_out[:5]
    means = images.mean(dim=(1, 2))
    assert_close(patches(images, 16, 4).mean(dim=(1, 2)), means)


def test_what_a_finer_grid_reads(image_spec: ImageSpec) -> None:
    line = built(image_spec, "learned-1d")
    expected = torch.nn.functional.interpolate(line.weight[1:].T[None], size=36, mode="linear")[0].T
    assert_close(rows_of(line.on_grid((6, 6)), 37)[1:], expected)

    grid = built(image_spec, "learned-2d")
    layout = TableLayout.VIT.on_grid(*GRID)
    assert_close(rows_of(grid.on_grid((6, 6)), 37), resize_table(grid.weight, grid=(6, 6), layout=layout))

    # Resizing is linear, so a factorized table resized is the grid of its sums resized.
    both = built(image_spec, "factorized")
    assert isinstance(both, LearnedGridEmbedding)
    assert_close(rows_of(both.on_grid((6, 5)), 31), resize_table(both.rows(), grid=(6, 5), layout=layout))


def test_sinusoids_of_a_grid_twice_as_fine_stand_half_a_cell_to_each_side(image_spec: ImageSpec) -> None:
    """Old cell (r, c) is four new ones around it, so the first pair of each half turns by a quarter each way."""
    encoding = built(image_spec, "sinusoidal-2d")
    old = rows_of(encoding, 17)[1:].view(4, 4, 16) / encoding.scale
    new = rows_of(encoding.on_grid((8, 8)), 65)[1:].view(8, 8, 16) / encoding.scale
    for half, places in ((0, range(4)), (8, range(4))):
        for place in places:
            index = (slice(0, 1), place) if half == 0 else (place, slice(0, 1))
            angle = torch.atan2(old[index][..., half], old[index][..., half + 1])
            finer = (slice(0, 1), 2 * place + 1) if half == 0 else (2 * place + 1, slice(0, 1))
            found = torch.atan2(new[finer][..., half], new[finer][..., half + 1])
            turned = torch.remainder(found - angle + torch.pi, 2 * torch.pi) - torch.pi
            assert_close(turned, torch.full_like(turned, 0.25), depth=4)


def test_two_names_for_one_model_until_the_grid_changes(
    image_task: ImageClassification, image_spec: ImageSpec, accelerator: Accelerator
) -> None:
    results = [
        train.run(dataclasses.replace(image_spec, encoding=name), image_task, accelerator)
        for name in ("learned-1d", "learned-2d")
    ]
    line, grid = (result.measurements for result in results)
    assert line is not None
    assert grid is not None
    assert results[0].losses == results[1].losses
    assert line.by_x(ACCURACY)[8] == grid.by_x(ACCURACY)[8]
    assert line.by_x(LOSS)[8] == grid.by_x(LOSS)[8]
    assert line.by_x(LOSS)[12] != grid.by_x(LOSS)[12]


def test_a_small_vit_learns_and_measures(
    image_task: ImageClassification, image_spec: ImageSpec, accelerator: Accelerator
) -> None:
    spec = dataclasses.replace(image_spec, steps=150, batch=32, warmup=20, learning_rate=1e-2)
    result = train.run(spec, image_task, accelerator)
    found = summarise([result])
    accuracy = found.by_x(found.headline, "learned-2d")
    assert accuracy[8].value > 0.2  # by chance .1
    assert found.axis.x == 12
    assert result.measurements is not None
    right = [each.value for each in result.measurements.values if (each.metric, each.x) == (ACCURACY.name, 12)]
    assert accuracy[12].value == sum(right) / 449 == sum(right) / len(right)


def test_training_on_several_grids(
    image_task: ImageClassification, image_spec: ImageSpec, accelerator: Accelerator
) -> None:
    """Each batch has images of one size, drawn for the step, and the encoding is trained on all of its grids."""
    spec = dataclasses.replace(image_spec, train_sizes=(4, 8, 12), steps=6)
    model = image_task.build(spec)
    sizes = [image_task.draw(spec, model, step)[0].shape[1] for step in range(60)]
    assert set(sizes) == {4, 16, 36}
    assert sizes == [image_task.draw(spec, model, step, slice(0, 2))[0].shape[1] for step in range(60)]
    image_task.loss(model, *image_task.draw(spec, model, sizes.index(36))).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.encoding.parameters())
    for name in names_for("images"):
        result = train.run(dataclasses.replace(spec, encoding=name), image_task, accelerator)
        assert result.failure is None, name
        if name not in ("learned-2d", "factorized") and not asked["whole"]:
            continue
        once = train.run(dataclasses.replace(spec, encoding=name, train_sizes=(8,)), image_task, accelerator)
        plain = train.run(dataclasses.replace(spec, encoding=name, train_sizes=None), image_task, accelerator)
        assert once.measurements == plain.measurements != result.measurements, name


def test_what_images_refuse(image_task: ImageClassification, image_spec: ImageSpec) -> None:
    with pytest.raises(ArgumentError, match="encodes positions in a sequence, but the patches of an image form"):
        runs_of(image_spec, ["learned-1d", "alibi"], 1)
    with pytest.raises(ArgumentError, match="unknown encoding 'rings'; choose from sinusoidal, none, learned-1d"):
        split_name("rings", "images")
    with pytest.raises(ArgumentError, match="images of 9 x 9 pixels cannot be cut into patches of 2 x 2"):
        train.check(shared_images(test_sizes=(9,)), image_task)
    with pytest.raises(ArgumentError, match="images of 7 x 7 pixels cannot be cut into patches of 2 x 2"):
        train.check(shared_images(train_sizes=(6, 7)), image_task)
    with pytest.raises(ArgumentError, match="images of 8 x 8 pixels cannot be cut into patches of 3 x 3"):
        train.check(shared_images(patch=3, test_sizes=(9,)), image_task)
    narrow = dataclasses.replace(shared_images(width=18, heads=2), encoding="sinusoidal-2d")
    with pytest.raises(ArgumentError, match="dim must be a multiple of 4"):
        train.check(narrow, image_task)
    with pytest.raises(ArgumentError, match="patch: expected a whole number of at least 1; got 0"):
        shared("images", patch=0)


def shared_images(**others: object) -> ImageSpec:
    return dataclasses.replace(shared("images", **others), encoding="learned-2d")
