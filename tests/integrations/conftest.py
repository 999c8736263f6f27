from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _small(one_thread: None) -> None:
    """Every test here runs in one thread."""
