"""Fine-tunings collect garbage several times each, and would look at all that was ever imported."""

from __future__ import annotations

import gc
import sys

import pytest

seen = {"modules": 0}


@pytest.fixture(autouse=True)
def _modules_are_no_garbage() -> None:
    if len(sys.modules) > seen["modules"] + 100:
        gc.collect()
        gc.freeze()
        seen["modules"] = len(sys.modules)
