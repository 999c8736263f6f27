"""Comparisons of two tables and linear shifts, against explicit definitions in float64."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

import posembed
from posembed.tables import compare
from posembed.tables.compare import compare_tables, linear_shift
from posembed.tables.fill import sinusoidal_table
from tiny_models import IMAGE, tiny_model
from together import together
from tolerance import assert_close

MEASURES = ("procrustes_distance", "cka", "shared_subspace")
SHAPES = [(64, 16), (16, 64), (33, 33), (5, 2), (40, 1)]


def table(n: int, d: int) -> Tensor:
    """Rows with directions of different strength."""
    return torch.randn(n, d, dtype=torch.float64) @ torch.diag(0.9 ** torch.arange(d, dtype=torch.float64))


def rotation(d: int) -> Tensor:
    return torch.linalg.qr(torch.randn(d, d, dtype=torch.float64))[0]


def centred(rows: Tensor) -> np.ndarray:
    found = (rows - rows.mean(dim=0)).numpy()
    return found / np.linalg.norm(found)


def explicit(a: Tensor, b: Tensor) -> tuple[float, float, float]:
    """The three measures from rotations, Gram matrices and angles between subspaces."""
    x, y = centred(a), centred(b)
    wide = max(x.shape[1], y.shape[1])
    x, y = (np.pad(z, ((0, 0), (0, wide - z.shape[1]))) for z in (x, y))
    turned, _ = scipy.linalg.orthogonal_procrustes(x, y)
    grams = x @ x.T, y @ y.T
    cka = (grams[0] * grams[1]).sum() / np.linalg.norm(grams[0]) / np.linalg.norm(grams[1])
    spans = []
    for z in (x, y):
        left, values, _ = np.linalg.svd(z)
        spans.append(left[:, : int((np.cumsum(values**2) < 0.9).sum()) + 1])
    shared = np.mean(np.cos(scipy.linalg.subspace_angles(*spans)) ** 2)
    return np.linalg.norm(x @ turned - y) ** 2 / 2, cka, shared


@together("n", [64, 12, 5])
@together(("d", "e"), [(16, 16), (3, 20), (40, 7)])
def test_the_measures_are_what_their_formulas_say(n: int, d: int, e: int) -> None:
    a, b = table(n, d), table(n, e)
    b[:, :3] += a[:, :3]
    found = compare_tables(a, b)
    assert_close([getattr(found, name) for name in MEASURES], explicit(a, b))
    swapped = compare_tables(b, a)
    assert_close([getattr(swapped, name) for name in MEASURES], explicit(a, b))


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_a_rotated_scaled_and_moved_table_is_the_same_table(n: int, d: int) -> None:
    a = table(n, d)
    for b in (a, 3 * a @ rotation(d) + 5, torch.cat((a @ rotation(d), torch.zeros(n, 4)), dim=1), a.unsqueeze(0)):
        found = compare_tables(a, b)
        assert_close(found.procrustes_distance, 0, scale=1)
        assert_close(found.cka, 1)
        assert_close(found.shared_subspace, 1)


def test_the_floor_is_the_mean_over_all_orders_of_the_rows() -> None:
    a, b = table(5, 3), table(5, 4)
    every = [compare_tables(a, b[list(order)]) for order in itertools.permutations(range(5))]
    floor = compare_tables(a, b).floor
    for name in ("cka", "shared_subspace"):
        mean = math.fsum(getattr(one, name) for one in every) / len(every)
        assert_close(getattr(floor, name), mean)
    distances = [one.procrustes_distance for one in every]
    assert floor.procrustes_distance == pytest.approx(
        sum(distances) / len(distances), abs=3 * np.std(distances) / 8**0.5
    )


def test_tables_that_cannot_be_compared() -> None:
    a = torch.randn(8, 4)
    with pytest.raises(posembed.errors.ArgumentError, match=r"got 8 and 7 rows.*table\[:7\]"):
        posembed.tables.compare_tables(a, a[:7])
    with pytest.raises(posembed.errors.ArgumentError, match="all rows are equal"):
        compare_tables(a, torch.ones(8, 4))
    with pytest.raises(posembed.errors.ArgumentError, match="3 rows or more"):
        compare_tables(a[:2], a[:2])
    with pytest.raises(posembed.errors.ArgumentError, match="without NaN and infinity"):
        compare_tables(a, a.clone().fill_(math.nan))


SIZES = [(128, 64), (64, 64), (24, 6), (40, 2)]


@together("n, d, k", [(512, 768, 1), *((n, d, k) for n, d in SIZES for k in (1, 3, -5, 0))])
def test_a_shift_of_sinusoids_is_linear(n: int, d: int, k: int) -> None:
    assert linear_shift(sinusoidal_table(n, d), k) == pytest.approx(1, abs=1e-4)  # the penalty


def refitted(x: Tensor, y: Tensor, penalty: float) -> float:
    """R^2 of an affine ridge regression that is fitted again for each row, without it."""
    scale = torch.linalg.svdvals(x - x.mean(dim=0))[0] ** 2
    wrong = 0.0
    for row in range(len(x)):
        others = torch.arange(len(x)) != row
        inputs = torch.cat((x[others], torch.ones(int(others.sum()), 1)), dim=1)
        shrink = torch.cat((torch.eye(x.size(1)) * math.sqrt(penalty * scale), torch.zeros(x.size(1), 1)), dim=1)
        targets = torch.cat((y[others], torch.zeros(x.size(1), y.size(1))))
        weights = torch.linalg.lstsq(torch.cat((inputs, shrink.double())), targets.double(), driver="gelsd").solution
        wrong += (torch.cat((x[row], torch.ones(1))) @ weights - y[row]).square().sum().item()
    return 1 - wrong / (y - y.mean(dim=0)).square().sum().item()


@pytest.mark.parametrize(("n", "d", "k"), [(20, 4, 1), (14, 30, 2), (16, 6, -3)])
def test_each_row_is_predicted_by_the_others(n: int, d: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = table(n, d).cumsum(dim=0)
    x, y = (rows[:-k], rows[k:]) if k > 0 else (rows[-k:], rows[:k])
    for penalty in (1e-6, 1e-2, 1.0):
        monkeypatch.setattr(compare, "PENALTIES", [penalty])
        assert_close(linear_shift(rows, k), max(refitted(x, y, penalty), 0), dtype=torch.float32, scale=1)


def test_shifts_that_cannot_be_measured() -> None:
    assert math.isnan(linear_shift(torch.ones(8, 4), 1))
    with pytest.raises(posembed.errors.ArgumentError, match="7 rows or more; got 6"):
        linear_shift(torch.randn(6, 4), 4)
    with pytest.raises(posembed.errors.ArgumentError, match=r"k: expected a whole number; got 1\.5"):
        linear_shift(torch.randn(6, 4), 1.5)  # type: ignore[arg-type]


SCALES = [1e300, 1e160, 1e-160, 1e-310]


@together(("n", "d"), SHAPES)
@together("scale", SCALES)
def test_the_scale_of_a_table_does_not_matter(n: int, d: int, scale: float) -> None:
    a, b = table(n, d), table(n, 7)
    expected, found = compare_tables(a, b), compare_tables(a * scale, b)
    size = max(1, 5e-324 / scale / torch.finfo(torch.float64).eps)  # tiny numbers have fewer digits
    for name in MEASURES:
        assert_close(getattr(found, name), getattr(expected, name), scale=size)
        assert_close(getattr(found.floor, name), getattr(expected.floor, name), scale=size)
    rows = a.cumsum(dim=0)
    assert_close(linear_shift(rows * scale, 1), linear_shift(rows, 1), scale=size)


@together("far", [1e4, -1e6, 1e9])
@together(("n", "d"), [*SHAPES, (64, 384)])
def test_the_distance_of_a_table_from_the_origin_does_not_matter(n: int, d: int, far: float) -> None:
    """The moved rows are rounded; compared are the same rounded rows, moved back without another rounding."""
    a = table(n, d).cumsum(dim=0) if n > d else table(n, d)
    moved = a + far
    assert_close(linear_shift(moved, 1), linear_shift(moved - far, 1), scale=abs(far))
    for name in MEASURES:
        assert_close(getattr(compare_tables(moved, a), name), getattr(compare_tables(a, a), name), scale=abs(far))


@pytest.mark.parametrize("far", [0.1, 1e8, 1e300])
def test_equal_rows_are_equal_anywhere(far: float) -> None:
    assert math.isnan(linear_shift(torch.full((9, 4), far, dtype=torch.float64), 1))
    with pytest.raises(posembed.errors.ArgumentError, match="all rows are equal"):
        compare_tables(torch.full((9, 4), far, dtype=torch.float64), torch.randn(9, 4))
    moved = sinusoidal_table(64, 16).double() + min(far, 1e8)
    assert linear_shift(moved, 1) == pytest.approx(1, abs=1e-4)  # the penalty


@together("seed", range(4))
@together(("n", "d"), SHAPES)
def test_every_measure_lies_between_0_and_1(n: int, d: int, seed: int) -> None:
    torch.manual_seed(seed)
    a = table(n, d)
    for b in (a, a @ rotation(d), 3 * a, table(n, 5)):
        found = compare_tables(a, b)
        for one in (found, found.floor):
            assert all(0 <= getattr(one, name) <= 1 for name in MEASURES), one
        assert 0 <= linear_shift(b, 1) <= 1


ROWS = torch.randn(12, 8, generator=torch.Generator().manual_seed(1))


@together(
    "source",
    [
        ROWS.numpy(),
        ROWS.double().numpy(),
        ROWS.numpy()[::-1][::-1],
        torch.nn.Parameter(ROWS),
        ROWS.to_sparse(),
        torch.nn.Embedding.from_pretrained(ROWS),
        torch.nn.ModuleDict({"pos_emb": torch.nn.Embedding.from_pretrained(ROWS), "head": torch.nn.Linear(8, 2)}),
        posembed.LearnedPositionalEmbedding(max_len=12, dim=8, init=ROWS),
        posembed.LearnedPositionalEmbedding(
            max_len=12, dim=8, init=torch.cat((torch.ones(2, 8), ROWS)), layout=posembed.tables.TableLayout.roberta()
        ),
    ],
)
def test_what_the_plots_accept_is_measured(source: Any) -> None:
    other = torch.randn(12, 5)
    assert compare_tables(source, other) == compare_tables(ROWS, other)
    assert compare_tables(other, source) == compare_tables(other, ROWS)
    for k in (2, np.int64(2), torch.tensor(2), np.uint8(2)):
        assert linear_shift(source, k) == linear_shift(ROWS, 2)


@together(
    ("source", "said"),
    [
        ("folder/of/a/model", r"got str\. Pass rows: posembed\.inspect_checkpoint"),
        (Path("model.safetensors"), "inspect_checkpoint"),
        ([[1.0, 2.0]], "got list"),
        (None, "got NoneType"),
        (np.ones((4, 2), dtype=int), "an array of floats"),
        (torch.ones(4, 2, device="meta"), "on the meta device"),
        (posembed.Alibi(2), "Alibi has no table of learned rows"),
        (np.ma.array(np.ones((4, 2)), mask=np.eye(4, 2)), "without NaN and infinity"),
    ],
)
def test_what_is_no_table_is_refused(source: Any, said: str) -> None:
    for measure in (lambda: compare_tables(source, ROWS), lambda: linear_shift(source, 1)):
        with pytest.raises(posembed.errors.ArgumentError, match=said):
            measure()


def test_a_model_of_transformers_is_read_from_its_checkpoint() -> None:
    for model in (tiny_model("vit", IMAGE), torch.nn.Sequential(tiny_model("vit", IMAGE))):
        with pytest.raises(posembed.errors.ArgumentError, match="got a model of transformers"):
            compare_tables(model, ROWS)


def test_the_default_device_does_not_matter() -> None:
    expected = compare_tables(ROWS, ROWS.flip(0)), linear_shift(ROWS, 1)
    torch.set_default_device("meta")
    try:
        assert (compare_tables(ROWS, ROWS.flip(0)), linear_shift(ROWS, 1)) == expected
    finally:
        torch.set_default_device(None)
