"""Which rows are suspected: the real table's marks, nothing in sound tables, and what is planted in them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minilm import minilm_positions
from posembed.tables.fill import initial_table, sinusoidal_table
from posembed.tables.health import (
    dead_rows,
    fresh_rows,
    nearer_cosine,
    norm_over_median,
    outlying_rows,
)
from posembed.tables.rare_rows import local_median, norm_step, rough_end, roughness
from together import together

shapes = settings(max_examples=40, deadline=None, derandomize=True)
FILLS = ["normal", "truncated_normal", "xavier"]


def which(flags: Tensor) -> list[int]:
    return flags.nonzero()[:, 0].tolist()


def smooth_table(n: int = 200, dim: int = 64, noise: float = 0.02) -> Tensor:
    """What training makes: a few slow waves, and noise."""
    torch.manual_seed(0)
    waves = sinusoidal_table(n, 8, base=100.0) @ torch.randn(8, dim)
    return (waves + noise * torch.randn(n, dim)).double()


def test_the_thresholds_stand_clear_of_the_figures_they_were_read_from() -> None:
    """As told beside NORM_CHANGE, COSINE_DROP and FRESH."""
    rows = minilm_positions().double()
    marked = torch.tensor([0, 127, 510, 511])
    others = torch.ones(512, dtype=torch.bool)
    others[marked] = False
    change = norm_over_median(rows) - 1
    assert change[others].abs().max() < 0.14
    assert change[marked].min() > 0.46
    drop = local_median(nearer_cosine(rows)) - nearer_cosine(rows)
    assert drop[others].max() < 0.08
    assert drop[[0, 127, 511]].min() > 0.28


def test_the_nearer_neighbour_of_an_end_row_is_its_only_one() -> None:
    rows = torch.tensor([[3.0, 0.0], [-1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -1.0]]).double()
    assert nearer_cosine(rows).tolist() == [-1.0, 1.0, 1.0, 0.0, -1.0]


@shapes
@given(n=st.integers(1, 300), half=st.integers(1, 100), interleaved=st.booleans())
def test_nothing_is_suspected_of_sinusoids(n: int, half: int, interleaved: bool) -> None:
    rows = sinusoidal_table(n, 2 * half, interleaved=interleaved).double()
    assert not (outlying_rows(rows) | fresh_rows(rows) | dead_rows(rows)).any()


@shapes
@given(n=st.integers(1, 400), dim=st.integers(1, 200), fill=st.sampled_from(FILLS), seed=st.integers(0, 10**6))
def test_a_fresh_table_is_fresh_and_nothing_else_or_too_small_to_tell(n: int, dim: int, fill: str, seed: int) -> None:
    torch.manual_seed(seed)
    rows = initial_table(fill, n, dim).double()
    assert which(fresh_rows(rows)) == (list(range(n)) if n > 16 and dim >= 32 else [])
    assert not outlying_rows(rows).any()


@pytest.mark.parametrize("decay", [1.0, 0.3])
@pytest.mark.parametrize("trained", [64, 150])
def test_rows_that_training_did_not_reach_are_fresh(trained: int, decay: float) -> None:
    rows = smooth_table()
    rows[trained:] = decay * initial_table("normal", 200 - trained, 64).double()
    fresh = which(fresh_rows(rows))
    assert fresh[-1] == 199
    assert abs(fresh[0] - trained) <= 1  # the last trained row stands between trained and fresh neighbours
    assert fresh == list(range(fresh[0], 200))
    assert not outlying_rows(rows)[: trained - 1].any()


def test_a_few_rows_unlike_their_neighbours_are_outlying_and_not_fresh() -> None:
    rows = smooth_table()
    planted = [50, 120, 199]
    rows[planted] = torch.randn(3, 64, dtype=torch.float64) * rows.norm(dim=1).mean() / 8
    assert not fresh_rows(rows).any()
    assert which(outlying_rows(rows)) == planted


@together("factor", [1.6, 0.5])
@together("row", [0, 7, 100, 198, 199])
def test_a_row_of_another_norm_is_outlying(row: int, factor: float) -> None:
    rows = smooth_table()
    rows[row] *= factor
    assert which(outlying_rows(rows)) == [row]


def test_dead_rows_are_zero_or_lost_beside_the_others() -> None:
    rows = smooth_table()
    rows[3] = 0
    rows[4] *= 1e-4
    rows[5] *= 0.1
    assert which(dead_rows(rows)) == [3, 4]
    assert dead_rows(torch.zeros(5, 3)).all()
    assert not dead_rows(torch.ones(1, 3)).any()


def test_local_median_follows_a_drift_and_ignores_a_mark() -> None:
    values = torch.arange(100.0)
    values[40] = 1000
    medians = local_median(values)
    assert medians[20] == 20
    assert medians[40] == 41
    assert medians[:9].tolist() == [8] * 9
    assert medians[-9:].tolist() == [91] * 9


def rare_from(rows: Tensor) -> tuple[int, int]:
    """The first row after a step of the norms, and the first row of a rough end."""
    return norm_step(rows.double())[0], rough_end(rows.double())[0]


@together("factor", [1.15, 0.85, 1.5])
@together("row", [60, 100, 240])
def test_a_step_of_the_norms_is_found_where_it_is(row: int, factor: float) -> None:
    rows = smooth_table(300)
    rows = rows / rows.norm(dim=1, keepdim=True)
    rows[row:] *= factor
    start, change = norm_step(rows)
    assert abs(start - row) <= 1
    assert change == pytest.approx(factor - 1, abs=0.01)


@pytest.mark.parametrize("count", [6, 20, 100])
def test_noisy_rows_at_the_end_are_found(count: int) -> None:
    rows = smooth_table()
    torch.manual_seed(1)
    noise = 3 * roughness(rows).median().item() / (6 * 64) ** 0.5
    rows[-count:] += noise * torch.randn(count, 64, dtype=torch.float64)
    start, times = rough_end(rows)
    assert abs(start - (200 - count)) <= 2
    assert times > 1.5
    assert rough_end(rows.flip(0))[0] == 200  # texts start at position 0
    assert rough_end(rows[: 200 - count])[0] == 200 - count


def test_a_mark_at_the_end_and_a_rough_middle_are_not_a_rough_end() -> None:
    rows = smooth_table()
    rows[-2:] *= 1.9
    rows[80:120] += 0.3 * torch.randn(40, 64, dtype=torch.float64)
    assert rough_end(rows)[0] == 200


@pytest.mark.parametrize("kind", ["fresh", "walk", "waves", "drift", "sinusoids", "grid"])
def test_sound_tables_have_no_rarely_trained_rows(kind: str) -> None:
    torch.manual_seed(0)
    for _ in range(12):
        n, dim = int(torch.randint(33, 500, (1,))), 2 * int(torch.randint(16, 150, (1,)))
        waves = sinusoidal_table(n, 8, base=100.0) @ torch.randn(8, dim) + 0.1 * torch.randn(n, dim)
        side = sinusoidal_table(20, 8, base=30.0) @ torch.randn(8, dim)
        rows = {
            "fresh": lambda n=n, dim=dim: initial_table("normal", n, dim),
            "walk": lambda n=n, dim=dim: torch.randn(n, dim).cumsum(0),
            "waves": lambda waves=waves: waves,
            "drift": lambda waves=waves, n=n: waves * torch.linspace(1, 3, n)[:, None],
            "sinusoids": lambda n=n, dim=dim: sinusoidal_table(n, dim),
            "grid": lambda side=side: (
                (side[:, None] + side.flip(0)[None]).flatten(0, 1) + 0.1 * torch.randn(400, side.size(1))
            ),
        }[kind]()
        assert rare_from(rows) == (len(rows), len(rows)), rows.shape


def test_the_real_table_steps_once() -> None:
    rows = minilm_positions().double()
    assert norm_step(rows)[0] == 126
    for part in (rows[:126], rows[128:510]):
        assert rare_from(part) == (len(part), len(part))


def test_a_mark_hides_no_step_and_small_tables_are_not_judged() -> None:
    assert rare_from(torch.randn(20, 64)) == (20, 20)
    assert rare_from(torch.randn(200, 16)) == (200, 200)
    assert rare_from(torch.ones(200, 64)) == (200, 200)
