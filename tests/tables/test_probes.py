from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import KFold, cross_val_predict

from minilm import minilm_positions
from posembed.errors import ArgumentError
from posembed.tables.fill import initial_table, sinusoidal_table
from posembed.tables.probes import order_error, position_error
from tolerance import assert_close


def test_a_ramp_is_read_exactly() -> None:
    torch.manual_seed(0)
    table = torch.randn(1, 8) * torch.arange(60.0)[:, None] + torch.randn(1, 8)
    assert position_error(table) < 1e-3
    assert order_error(table) < 0.02


def test_sinusoids_are_read_to_a_fraction_of_a_position() -> None:
    table = sinusoidal_table(256, 64)
    assert position_error(table) < 0.5
    assert order_error(table) < 0.05


@pytest.mark.parametrize(("n", "dim"), [(256, 16), (256, 200), (64, 384)])
def test_random_rows_are_read_no_better_than_by_a_guess(n: int, dim: int) -> None:
    torch.manual_seed(0)
    table = initial_table("normal", n, dim)
    assert position_error(table) == pytest.approx(n / 4, rel=0.15)
    assert order_error(table) == pytest.approx(0.5, abs=0.12)


def test_the_scale_of_the_table_does_not_matter() -> None:
    table = sinusoidal_table(64, 16)
    assert position_error(1e-4 * table) == pytest.approx(position_error(table), rel=1e-2)
    assert order_error(1e-4 * table) == pytest.approx(order_error(table), abs=1e-3)


def test_all_minilm_l6_v2() -> None:
    table = minilm_positions()
    assert position_error(table) == pytest.approx(15, abs=1)
    assert order_error(table) == pytest.approx(0.035, abs=0.01)


def test_a_table_of_zeros_says_nothing() -> None:
    assert position_error(torch.zeros(40, 4)) == pytest.approx(10, rel=0.1)
    assert order_error(torch.zeros(40, 4)) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(("n", "dim"), [(10, 3), (64, 32), (83, 100), (300, 24)])
def test_the_probes_are_those_of_scikit_learn(n: int, dim: int) -> None:
    torch.manual_seed(n)
    table = torch.randn(n, dim).cumsum(0) / 4 + torch.randn(n, dim)
    rows = table.double().numpy() / table.double().square().mean().sqrt().item()
    folds, generator = KFold(n_splits=5, shuffle=True, random_state=0), np.random.default_rng(0)
    read = cross_val_predict(RidgeCV(np.logspace(-6, 6, 13)), rows, np.arange(n), cv=folds)
    assert_close(position_error(table), np.abs(read - np.arange(n)).mean(), scale=float(n))  # it reads positions to n

    def pairs(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        i, j = generator.choice(positions, (2, 4096))
        i, j = i[i != j], j[i != j]
        return np.hstack([rows[i], rows[j]]), j > i

    errors = []
    for seen, held_out in folds.split(rows):
        reader = LogisticRegression(max_iter=1000).fit(*pairs(seen))
        errors.append(1 - reader.score(*pairs(held_out)))
    assert order_error(table) == pytest.approx(np.mean(errors), abs=1e-3)


def test_too_few_rows_are_refused() -> None:
    for probe in (position_error, order_error):
        with pytest.raises(ArgumentError, match="10 rows or more; got 9"):
            probe(torch.randn(9, 4))
