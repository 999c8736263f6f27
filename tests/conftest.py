from __future__ import annotations

import os

if "PYTEST_XDIST_WORKER_COUNT" in os.environ:  # workers share the cores; each taking all would have them wait
    share = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share //= int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(share, 1)))  # read as torch is imported, here and in children

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Each test draws the same numbers, whichever ran before it."""
    torch.manual_seed(0)
