"""A real Ray cluster of two nodes on this machine, and the sweep on it."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from posembed.errors import ArgumentError, DataError
from posembed.lab.questions.lengths import Lengths
from posembed.lab.runs.cluster import knock, sweep_on_ray
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.runs.sweep import sweep
from posembed.lab.tasks.language import LanguageModelling
from posembed.lab.tasks.text_specs import LengthSpec

# Ray's own threads and sockets end with its processes, not with its objects.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning:ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    # What the workers unpickle must be importable there: this folder's classes as well.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1)
    ray.init(address=nodes.address, logging_level="ERROR", log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


class Fatal(LanguageModelling):
    """Kills the worker that trains it, once, in the middle of the run."""

    def __init__(self, task: LanguageModelling, marker: Path) -> None:
        super().__init__(task.corpus)
        self.marker = marker
        self.steps = 0

    def loss(self, model: Any, *batch: Tensor) -> Tensor:
        self.steps += 1
        if self.steps == 6 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, *batch)


def numbers(results: list[RunResult[Any, Any]]) -> list[object]:
    return [(r.spec, r.losses, r.measurements) for r in results]


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as on the workers: another number adds in another order
    yield
    torch.set_num_threads(threads)


@pytest.mark.not_perturbed(reason="compares with another process, whose results are not perturbed")
def test_two_nodes_give_what_one_process_gives_though_a_worker_is_killed(
    cluster: Any,
    spec: LengthSpec,
    task: LanguageModelling,
    accelerator: Accelerator,
    tmp_path: Path,
    one_thread: None,
) -> None:
    specs = Lengths().specs(spec, ["learned", "rope", "alibi"], 1)
    alone = sweep(specs, task, RunFolder(tmp_path / "alone", LengthSpec), accelerator)
    folder = RunFolder(tmp_path / "ray", LengthSpec)
    fatal, names, finished = Fatal(task, tmp_path / "killed"), set[str](), list[str]()
    told: dict[str, Any] = {"progress": lambda name, done, total: names.add(name.split(" (")[0])}
    told["finished"] = lambda result: finished.append(result.spec.name)
    together = sweep_on_ray(specs, fatal, folder, address="ray", device="cpu", **told)
    assert (tmp_path / "killed").exists()
    assert numbers(together) == numbers(alone)
    assert sorted(finished) == sorted(spec.name for spec in specs)
    assert names <= set(finished)
    finished.clear()
    learned = folder.file("tables", specs[0])
    assert learned.read_bytes() == RunFolder(tmp_path / "alone", LengthSpec).file("tables", specs[0]).read_bytes()
    # The same folder goes on, there or here.
    more = Lengths().specs(spec, ["learned", "rope", "alibi", "none"], 1)
    assert len(sweep_on_ray(more, fatal, folder, address="ray", device="cpu", **told)) == 4
    assert finished == ["none, seed 0"]
    assert len(sweep(more, task, folder, accelerator)) == 4  # type: ignore[arg-type]


def test_a_mistake_is_said_before_anything_is_sent(
    cluster: Any, spec: LengthSpec, task: LanguageModelling, tmp_path: Path
) -> None:
    far = dataclasses.replace(spec, encoding="rope", test_lengths=(16, 99_999))
    with pytest.raises(DataError, match="99,999"):
        sweep_on_ray([far], task, RunFolder(tmp_path / "run", LengthSpec), address="ray")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("address", ["ray://", "ray://host", "http://host:1", "elsewhere", "ray://host:port"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ArgumentError, match="expected --on here, ray or ray://HOST:PORT"):
        knock(address)


def test_an_address_where_nobody_listens_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posembed.lab.runs.cluster.SECONDS_TO_ANSWER", 1)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # taken, and not listening
        port = nobody.getsockname()[1]
        started = time.monotonic()
        with pytest.raises(ArgumentError, match=r"does not answer; .*ray start --head"):
            knock(f"ray://127.0.0.1:{port}")
    assert time.monotonic() - started < 10


def test_something_else_that_listens_is_said_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posembed.lab.runs.cluster.SECONDS_TO_ANSWER", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        accepting = threading.Thread(target=silent.accept, daemon=True)
        accepting.start()
        started = time.monotonic()
        with pytest.raises(ArgumentError, match="does not answer"):
            knock(f"ray://127.0.0.1:{silent.getsockname()[1]}")
    assert time.monotonic() - started < 10
