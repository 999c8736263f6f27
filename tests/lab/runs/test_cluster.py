"""The sweep on a cluster: on what stands in for Ray, and with --whole on a real one of two nodes on this machine."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accelerate import Accelerator
from torch import Tensor

from posembed.errors import ArgumentError, DataError, RunFolderError
from posembed.lab.questions.lengths import Lengths
from posembed.lab.runs.cluster import connected, knock, sweep_on_ray
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.runs.sweep import sweep
from posembed.lab.tasks.language import LanguageModelling
from posembed.lab.tasks.text_specs import LengthSpec
from together import together

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


class Called:
    def __init__(self, *given: Any) -> None:
        self.given = given


class StandIn:
    """What the sweep calls of Ray, in this process: arguments and results are pickled as on their way to a worker.

    lost: the encodings whose workers die.
    """

    class exceptions:  # noqa: N801
        class RayError(Exception):
            pass

        class RayTaskError(RayError):
            pass

    def __init__(self, *lost: str) -> None:
        self.lost = {*lost}

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Resources": self.cluster_resources()}, {"Resources": {}}]

    def put(self, value: object) -> bytes:
        return pickle.dumps(value)

    def remote(self, **options: int) -> Callable[[Any], Any]:
        def remote(made: Any) -> Any:
            return SimpleNamespace(remote=lambda *given: Called(made, *given))

        return remote

    def wait(self, waiting: list[Any], *, num_returns: int) -> tuple[list[Any], list[Any]]:
        return waiting[:num_returns], waiting[num_returns:]

    def get(self, called: Any) -> Any:
        function, spec, task, *others = called.given
        if spec.encoding in self.lost:
            raise self.exceptions.RayError
        return pickle.loads(pickle.dumps(function(spec, pickle.loads(task), *others)))

    def cancel(self, reference: object, *, force: bool) -> None:
        raise AssertionError("nothing was left waiting")


@pytest.mark.usefixtures("one_thread")
def test_what_comes_from_the_workers_is_what_one_process_gives(
    spec: LengthSpec, task: LanguageModelling, accelerator: Accelerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = Lengths().specs(spec, ["learned", "rope"], 1)
    folders = [RunFolder(tmp_path / name, LengthSpec) for name in ("alone", "ray")]
    alone, ray, finished = sweep(specs, task, folders[0], accelerator), StandIn("rope"), list[str]()
    monkeypatch.setitem(sys.modules, "ray", ray)
    told: dict[str, Any] = {"finished": lambda result: finished.append(result.spec.name)}
    with pytest.raises(
        RunFolderError, match=r"lost with their machines .* rope, seed 0 \(RayError\); finished runs are"
    ):
        sweep_on_ray(specs, task, folders[1], address="ray", device="cpu", **told)
    assert finished == ["learned, seed 0"]
    ray.lost.clear()
    assert numbers(sweep_on_ray(specs, task, folders[1], address="ray", device="cpu", **told)) == numbers(alone)
    assert finished == ["learned, seed 0", "rope, seed 0"]
    tables = [folder.file("tables", specs[0]).read_bytes() for folder in folders]
    assert tables[0] == tables[1]


def test_a_run_that_asks_for_more_cores_than_this_machine_has_never_starts(
    spec: LengthSpec, task: LanguageModelling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", StandIn())
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    specs = Lengths().specs(spec, ["rope"], 1)
    with pytest.raises(ArgumentError, match="--cpus-per-run 3: this machine has 2 cores"):
        sweep_on_ray(specs, task, RunFolder(tmp_path / "a", LengthSpec), address="ray", cpus_per_run=3)
    assert not (tmp_path / "a").exists()
    told: dict[str, Any] = {"address": "ray", "device": "cpu"}
    one = sweep_on_ray(specs, task, RunFolder(tmp_path / "a", LengthSpec), **told)  # a finished one does not start
    assert sweep_on_ray(specs, task, RunFolder(tmp_path / "a", LengthSpec), cpus_per_run=3, **told) == one


@pytest.mark.whole
@pytest.mark.not_perturbed(reason="compares with another process, whose results are not perturbed")
def test_two_nodes_give_what_one_process_gives_though_a_worker_is_killed(
    cluster: Any,
    spec: LengthSpec,
    task: LanguageModelling,
    accelerator: Accelerator,
    tmp_path: Path,
    one_thread: None,  # as on the workers: another number adds in another order
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


def test_a_mistake_is_said_before_anything_is_sent(spec: LengthSpec, task: LanguageModelling, tmp_path: Path) -> None:
    far = dataclasses.replace(spec, encoding="rope", test_lengths=(16, 99_999))
    with pytest.raises(DataError, match="99,999"):
        sweep_on_ray([far], task, RunFolder(tmp_path / "run", LengthSpec), address="ray")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("address", ["ray://", "ray://host", "http://host:1", "elsewhere", "ray://host:port"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ArgumentError, match="expected --on here, ray or ray://HOST:PORT"):
        knock(address)


@together(("value", "joined"), [("auto", "auto"), ("local", "local"), ("", "local"), (None, "local")])
def test_ray_joins_the_cluster_that_its_variable_names(
    value: str | None, joined: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(*, address: str, **options: Any) -> None:
        raise ConnectionError(f"asked for {address}")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if value is not None:
        monkeypatch.setenv("RAY_ADDRESS", value)
    with pytest.raises(ArgumentError, match=f"cannot join the Ray cluster {joined}: asked for {joined}"):
        connected("ray").__enter__()


@together(("form", "option"), [("ray://{}", "--ray-client-server-port"), ("{}", "--port")])
def test_an_address_where_nobody_listens_is_said_at_once(
    form: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posembed.lab.runs.cluster.SECONDS_TO_ANSWER", 1)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # taken, and not listening
        port = nobody.getsockname()[1]
        started = time.monotonic()
        with pytest.raises(ArgumentError, match=f"does not answer; .*ray start --head {option}={port}"):
            knock(form.format(f"127.0.0.1:{port}"))
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
