"""Runs a sweep on many machines. Each run is a Ray task, and its result is saved on this machine when it finishes.

The task and its data are sent to the cluster once; the machines need only posembed. If a worker dies, its run starts
again on another worker, so a lost machine costs only the time of its unfinished runs.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from posembed.errors import ArgumentError, RunFolderError
from posembed.files import written_whole
from posembed.lab.runs.environment import make_accelerator
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.runs.spec import SpecT
from posembed.lab.runs.sweep import Finish, Stepped, completed
from posembed.lab.runs.train import Step, check, run
from posembed.lab.tasks.task import Task
from posembed.measure.jobs import Progress, silent

RETRIES = 3
SECONDS_TO_ANSWER = 8


def sweep_on_ray(
    specs: Sequence[SpecT],
    task: Task[SpecT],
    folder: RunFolder[SpecT],
    *,
    address: str,
    device: str | None = None,
    cpus_per_run: int = 1,
    progress: Progress = silent,
    finished: Finish[SpecT] = lambda result: None,
) -> list[RunResult[SpecT]]:
    """Does the same as ``sweep``, but trains the runs in parallel on a Ray cluster. ``progress`` is called only when a
    run is finished.

    Args:
        address: "ray" for the cluster in the environment variable RAY_ADDRESS (which may be "auto"), or for a new
            cluster on this machine if the variable is not set; "ray://HOST:PORT" for any other cluster.
        device: the device of each run, as for ``make_accelerator``.
        cpus_per_run: CPU cores and threads per run. A run has a GPU if the cluster has any and ``device`` allows it.

    Raises:
        ArgumentError, DataError: a spec cannot run, or the cluster does not answer. Nothing has trained.
        RunFolderError: the folder cannot be used, the cluster went away, or runs were lost with their machines in every
            attempt. Finished runs are kept.
    """
    for spec in specs:
        check(spec, task)
    with connected(address) as ray:
        cores = max(machine["Resources"].get("CPU", 0) for machine in ray.nodes())
        missing = {*specs} - {result.spec for result in folder.results()}
        if missing and cpus_per_run > cores and cluster_of(address) == "local":  # others may get larger machines
            raise ArgumentError(f"--cpus-per-run {cpus_per_run}: this machine has {cores:.0f} cores; ask for no more")
        folder.prepare(*specs)
        gpus = 1 if device in (None, "cuda") and ray.cluster_resources().get("GPU") else 0
        remote_run = ray.remote(num_cpus=cpus_per_run, num_gpus=gpus, max_retries=RETRIES)(run_there)

        def train(missing: Sequence[SpecT], stepped: Stepped[SpecT], finish: Finish[SpecT]) -> None:
            shared = ray.put(task)
            for spec in missing:
                stepped(spec, None)
            waiting = {remote_run.remote(spec, shared, device, cpus_per_run): spec for spec in missing}
            lost: dict[SpecT, str] = {}
            try:
                while waiting:
                    ready, _ = ray.wait(list(waiting), num_returns=1)
                    spec = waiting.pop(ready[0])
                    try:
                        result, kept = ray.get(ready[0])
                    except ray.exceptions.RayTaskError as error:
                        raise error.cause from error  # the run's own error
                    except ray.exceptions.RayError as error:
                        lost[spec] = type(error).__name__
                        continue
                    for kind, content in kept.items():
                        with written_whole(folder.file(kind, spec)) as temporary:
                            temporary.write_bytes(content)
                    for step, loss in result.losses[-1:]:
                        stepped(spec, Step(step, loss, result.tokens_per_second))
                    finish(result)
            finally:
                for reference in waiting:
                    ray.cancel(reference, force=True)
            if lost:
                names = "; ".join(f"{spec.name} ({why})" for spec, why in lost.items())
                raise RunFolderError(
                    f"these runs were lost with their machines in up to {RETRIES + 1} attempts: {names}; finished "
                    f"runs are kept in {folder.path}; run the same command to retry"
                )

        return completed(specs, folder, train, progress, finished)


def run_there(spec: Any, task: Any, device: str | None, threads: int) -> tuple[Any, dict[str, bytes]]:
    """Trains on the worker. Returns the result, and the contents of its table and attention files, if any."""
    import torch

    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as place:
        folder: RunFolder = RunFolder(place, type(spec))
        folder.prepare(spec)
        result = run(spec, task, make_accelerator(spec.precision, device), folder)
        files = {kind: folder.file(kind, spec) for kind in ("tables", "attention")}
        return result, {kind: file.read_bytes() for kind, file in files.items() if file.exists()}


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Yields the ray module, connected to a cluster. Disconnects it afterwards, unless it was connected before."""
    try:
        import ray
    except ImportError:
        raise ArgumentError("--on ray needs Ray; install it with pip install 'posembed[ray]'") from None
    if ray.is_initialized():
        yield ray
        return
    where = cluster_of(address)
    if where not in ("local", "auto"):
        knock(where)
    try:
        ray.init(address=where, logging_level="ERROR", log_to_driver=False)
    except (ConnectionError, RuntimeError) as error:  # such as another version of Ray or Python
        raise ArgumentError(f"this program cannot join the Ray cluster {where}: {error}") from error
    try:
        yield ray
    except ConnectionError as error:  # from Ray's client, about a remote cluster
        raise RunFolderError(
            f"the cluster {where} went away ({error}); the finished runs are kept, and the same command continues "
            "from them"
        ) from error
    finally:
        ray.shutdown()


def cluster_of(address: str) -> str:
    return (os.environ.get("RAY_ADDRESS") or "local") if address == "ray" else address


def knock(address: str) -> None:
    """Raises ArgumentError if no cluster answers within ``SECONDS_TO_ANSWER``. ray.init alone may wait for minutes."""
    import grpc

    try:
        parts = urlsplit(address if "//" in address else f"//{address}")
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        scheme, host, port = "", None, None
    if scheme not in ("ray", "") or not host or not port or not host.isprintable():
        raise ArgumentError(
            f"expected --on here, ray or ray://HOST:PORT, or RAY_ADDRESS as HOST:PORT or auto; got {address!r}"
        )
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=SECONDS_TO_ANSWER)
        except grpc.FutureTimeoutError:
            option = "ray-client-server-port" if scheme else "port"
            raise ArgumentError(
                f"{address} does not answer; start a cluster there with ray start --head --{option}={port}, or name "
                "another"
            ) from None
