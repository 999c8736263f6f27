from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from minilm import minilm_positions
from posembed.errors import ArgumentError
from posembed.tables.spectrum import fourier_power, table_spectrum
from tolerance import assert_close


def test_all_minilm_l6_v2() -> None:
    spectrum = table_spectrum(minilm_positions())
    assert_close(spectrum.share_of(16), 0.977, places=3)
    assert spectrum.effective_rank == pytest.approx(14.3, abs=0.05)
    assert spectrum.directions_for(0.975) == 16
    assert str(spectrum) == "16 of 384 directions hold 97.7 % of the variance; effective rank 14.3"


@pytest.mark.parametrize("shape", [(40, 7), (7, 40), (9, 9)])
def test_singular_values_are_those_of_the_rows_about_their_mean(shape: tuple[int, int]) -> None:
    table = torch.randn(shape, generator=torch.Generator().manual_seed(0)) + 5
    rows = table.double().numpy()
    expected = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)
    spectrum = table_spectrum(table)
    assert_close(spectrum.singular_values.numpy(), expected)
    power = expected**2 / (expected**2).sum()
    power = power[power > 1e-25]
    assert_close(spectrum.effective_rank, math.exp(-(power * np.log(power)).sum()))


def test_equal_directions_give_their_number_as_effective_rank() -> None:
    spectrum = table_spectrum(torch.cat([torch.eye(6), -torch.eye(6)]))
    assert_close(spectrum.effective_rank, 6)
    assert spectrum.directions_for(0.5) == 3
    assert spectrum.directions_for(1 - 1e-9) == 6
    assert_close(spectrum.share_of(2), 1 / 3)


def test_a_table_of_one_column_has_one_direction() -> None:
    spectrum = table_spectrum(torch.randn(9, 1))
    assert (spectrum.directions_for(), spectrum.directions_for(0.01)) == (1, 1)


def test_a_constant_table_has_no_directions() -> None:
    spectrum = table_spectrum(torch.randn(1, 4, dtype=torch.float64).expand(50, -1))
    assert spectrum.effective_rank == 0
    assert spectrum.directions_for(0.9) == 0
    assert spectrum.share_of(3) == 0
    assert str(spectrum) == "0 of 4 directions hold 0.0 % of the variance; effective rank 0.0"


@pytest.mark.parametrize("n", [63, 64])
def test_fourier_power_sums_to_one_and_finds_the_waves(n: int) -> None:
    place = torch.arange(n, dtype=torch.float64) / n
    waves = torch.stack([torch.cos(2 * torch.pi * k * place + 1) for k in (1, 5, 20)], dim=1)
    power = fourier_power(waves)
    assert power.shape == (n // 2 + 1, 3)
    assert_close(power[[1, 5, 20], [0, 1, 2]], torch.ones(3, dtype=torch.float64))
    noise = torch.randn(n, 4, dtype=torch.float64)
    assert_close(fourier_power(noise).sum(dim=0), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("n", [8, 9])
def test_an_impulse_spreads_over_every_bin(n: int) -> None:
    """Parseval: of n bins of equal power, all but the first, and the last of an even n, come in pairs."""
    impulse = torch.zeros(n, 1, dtype=torch.float64)
    impulse[3] = 1
    expected = torch.full((n // 2 + 1,), 2 / n, dtype=torch.float64)
    expected[0] = 1 / n
    if n % 2 == 0:
        expected[-1] = 1 / n
    assert_close(fourier_power(impulse)[:, 0], expected)


def test_nan_is_refused() -> None:
    with pytest.raises(ArgumentError, match="row 1"):
        table_spectrum(torch.tensor([[1.0], [float("nan")]]))
