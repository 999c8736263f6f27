"""The shapes in the signatures hold at every call: the tests of values and contracts, with each shape checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CHECKED = ["test_contracts.py", "test_values.py", "../positions/test_from_layout.py", "../positions/test_samplers.py"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--shapes", *arguments]
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)


def test_shapes() -> None:
    pytest.importorskip("jaxtyping")
    pytest.importorskip("beartype")
    done = run(*CHECKED, "-k", "not bad and not refused and not compile and not export and not checked")
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_wrong_shape_would_be_seen(tmp_path: Path) -> None:
    pytest.importorskip("jaxtyping")
    pytest.importorskip("beartype")
    (tmp_path / "test_wrong.py").write_text(
        "import pytest, torch\n"
        "from jaxtyping import TypeCheckError\n"
        "from posembed.layers.rotary import rotate\n"
        "def test_wrong():\n"
        "    with pytest.raises(TypeCheckError):\n"
        "        rotate(torch.ones(2, 3, 4), torch.ones(5, 2), torch.ones(5, 2))\n"
    )
    done = run(f"--confcutdir={HERE.parent}", "-c", str(HERE.parents[1] / "pyproject.toml"), str(tmp_path), str(HERE))
    assert "1 passed" in done.stdout, done.stdout[-3000:]
