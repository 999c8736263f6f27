from __future__ import annotations

from collections.abc import Iterator

import matplotlib
import pytest
from matplotlib import pyplot as plt


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Figures are drawn into memory, and none outlives its test."""
    matplotlib.use("agg")
    yield
    plt.close("all")
