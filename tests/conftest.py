from __future__ import annotations

import functools
import gc
import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path

if "PYTEST_XDIST_WORKER_COUNT" in os.environ:  # workers share the cores; each taking all would have them wait
    share = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share //= int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(share, 1)))  # read as torch is imported, here and in children

os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")  # else inductor compiles a program to try the instructions

import hypothesis
import pytest
import torch

from together import asked, seed, settle

os.fsync = lambda descriptor: None  # no test cuts the power, and a kill loses nothing that was written

# The same examples each time, however long they take on a busy machine.
hypothesis.settings.register_profile("posembed", deadline=None, derandomize=True)
hypothesis.settings.load_profile("posembed")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Each test draws the same numbers, whichever ran before it."""
    seed(0)
    settle()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For tensors so small that a second thread only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shapes", action="store_true", help="check the shapes in signatures at every call")
    parser.addoption("--perturb", action="store_true", help="change results of arithmetic by an ulp")
    parser.addoption("--whole", action="store_true", help="run every case, and train the examples for all their steps")


def pytest_configure(config: pytest.Config) -> None:
    asked["whole"] = config.getoption("--whole")
    config.addinivalue_line("markers", "whole: runs only with --whole")
    config.addinivalue_line("markers", "not_perturbed(reason): does not run with --perturb")
    if config.getoption("--perturb"):
        import perturbed

        perturbed.perturb()
    if config.getoption("--shapes"):  # else posembed has its own classes of these names, without jaxtyping's checks
        import jaxtyping

        import posembed.arguments

        for name in ("Float", "Integer", "Shaped"):
            setattr(posembed.arguments, name, getattr(jaxtyping, name))
        checked = ["layers", "positions.from_layout", "positions.samplers", "inputs.text", "inputs.vit"]
        modules = [f"posembed.{name}" for name in checked]
        jaxtyping.install_import_hook(modules, "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")


@functools.cache
def forks(path: Path) -> bool:
    """Whether the tests of a file fork. They run first: a fork cannot train once autograd has threads, which some
    tests start."""
    return re.search(r"fork|killed|_processes", path.read_text(encoding="utf-8")) is not None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not forks(item.path))
    if config.getoption("--perturb"):
        for item in items:
            for mark in item.iter_markers("not_perturbed"):
                item.add_marker(pytest.mark.skip(*mark.args, **mark.kwargs))
    if config.getoption("--whole"):
        return
    kept = [item for item in items if item.get_closest_marker("whole") is None]
    config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("whole") is not None])
    items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay to the end, so the garbage collector need not look at them again and again."""
    gc.disable()
    found = yield
    gc.enable()
    gc.freeze()
    return found
