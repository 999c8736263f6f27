"""The shapes in the signatures hold: the tests of contracts and of values again, with each call's shapes checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from posembed.layers.rotary import rotate

HERE = Path(__file__).parent
CHECKED = ["test_contracts.py", "test_values.py", "test_shapes.py"]
CHOSEN = "(contracts and not checked) or 2x5x8 or 1x7x16 or wrong"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--shapes", *arguments]
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)


def test_shapes() -> None:
    pytest.importorskip("jaxtyping")
    pytest.importorskip("beartype")
    done = run(*CHECKED, "-k", CHOSEN)
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_wrong_shape_is_seen(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--shapes"):
        pytest.skip("needs --shapes; test_shapes runs it")
    from jaxtyping import TypeCheckError

    with pytest.raises(TypeCheckError):
        rotate(torch.ones(2, 3, 4), torch.ones(5, 2), torch.ones(5, 2))
