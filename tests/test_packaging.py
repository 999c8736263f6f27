"""What a user installs: the versions that pyproject.toml allows, and a wheel with no source tree beside it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.utils import canonicalize_name
from packaging.version import Version

from posembed.cli import app

ROOT = Path(__file__).parents[1]
NOT_AT_ITS_FLOOR = {"torch"}  # constraints-oldest.txt says why


def versions(file: str, operator: str) -> dict[str, Version]:
    """The versions that a file compares names with, by this operator: ``numpy>=1.26``, ``ray[client]>=2.30``."""
    found = re.findall(rf"([\w.-]+)(?:\[[\w,]+\])?{operator}([\d.]+)", (ROOT / file).read_text(encoding="utf-8"))
    return {canonicalize_name(name): Version(version) for name, version in found}


def test_the_oldest_versions_are_the_declared_ones() -> None:
    declared, oldest = versions("pyproject.toml", ">="), versions("constraints-oldest.txt", "==")
    assert "numpy" in declared
    assert "ray" in declared
    assert set(declared) <= set(oldest)
    assert {name for name in declared if declared[name] != oldest[name]} == NOT_AT_ITS_FLOOR
    assert all(declared[name] <= oldest[name] for name in NOT_AT_ITS_FLOOR)


def test_workflows_call_targets_and_commands_that_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    python = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    steps = []
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        jobs = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"]
        assert all(job["timeout-minutes"] and job["runs-on"] for job in jobs.values())
        for job in jobs.values():
            steps += [step["run"] for step in job["steps"] if "run" in step]
            for version in job.get("strategy", {}).get("matrix", {}).get("python", ()):
                assert Version(version) >= Version(re.findall(r'requires-python = ">=([\d.]+)"', python)[0])
    called = {name for step in steps for name in re.findall(r"^make ([\w-]+)", step, re.MULTILINE)}
    assert {"check", "docs", "test-newest", "test-all"} <= called <= targets
    commands = {name for step in steps for name in re.findall(r"^posembed ([\w-]+)", step, re.MULTILINE)}
    assert {"inspect", "resize", "check"} <= commands <= set(app.commands)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    source = ROOT / "src"
    files = {path.relative_to(source).as_posix() for path in (source / "posembed").rglob("*") if path.is_file()}
    files = {file for file in files if "__pycache__" not in file}
    data = ("evidence.json", "candidates.json")
    assert {"posembed/py.typed", "posembed/report/page.html", *(f"posembed/lab/advice/{name}" for name in data)} < files
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == files


COMMANDS = [
    "--help",
    "encodings",
    "advise --length 512 --longest 4096",
    "compare lengths --preset quick --encodings learned --out runs --seeds 1 --steps 2 --batch 2 --layers 1 "
    "--width 8 --heads 2 --train-length 16 --test-lengths 16 --test-tokens 64 --data text.txt",
    "report runs",
]
RUN = """
import sys
import posembed
from posembed.cli import main
print(posembed.__file__)
for command in sys.argv[1:]:
    sys.argv = ["posembed", *command.split()]
    try:
        main()
    except SystemExit as done:
        assert not done.code, command
"""


def test_commands_of_the_wheel_run_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    (empty / "text.txt").write_text("a line of text that comes again and again\n" * 100, encoding="utf-8")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN, *COMMANDS],
        cwd=empty,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(site))
    assert (empty / "runs" / "report.html").exists()
