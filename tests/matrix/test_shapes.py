"""The shapes in the signatures hold: the tests of contracts and of values again, with each call's shapes checked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fresh_process import run_python
from posembed.layers.rotary import rotate

HERE = Path(__file__).parent
CHECKED = ["test_contracts.py", "test_values.py", "test_shapes.py"]
CHOSEN = "(contracts and not checked) or test_positions or wrong"


def test_shapes() -> None:
    pytest.importorskip("jaxtyping")
    pytest.importorskip("beartype")
    done = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", "--shapes", *CHECKED, "-k", CHOSEN, cwd=HERE)
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_wrong_shape_is_seen(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--shapes"):
        pytest.skip("needs --shapes; test_shapes runs it")
    from jaxtyping import TypeCheckError

    with pytest.raises(TypeCheckError):
        rotate(torch.ones(2, 3, 4), torch.ones(5, 2), torch.ones(5, 2))
