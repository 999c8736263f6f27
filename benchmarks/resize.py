"""Claim: resizing a large sharded checkpoint takes at most 1.3 times as long as copying it, and 1 GiB of memory.

Makes a GPT-2 of random bytes, in shards, then runs `cp -r` and `posembed resize` in turns on one disk:

    python benchmarks/resize.py --gigabytes 8 --turns 6 --folder /somewhere/on/that/disk

On a machine that does something else too, compare the processor times: those of all threads, and of the main thread
alone. A shard is copied in another thread while the main thread imports torch and transformers and plans the changes,
so the main thread's time is the least that a resize takes.

`cp` returns while its output is still in the cache; `posembed resize` returns when its output is on the disk. Therefore
`cp -r` followed by a `sync` of its copy is timed as well. Before each turn the script waits for the disk to settle.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

WIDTH = 4096
LAYER_BYTES = 12 * WIDTH * WIDTH * 2  # the approximate size of a layer of GPT-2 in bfloat16
SHARD_BYTES = 10**9
RESIZE = """
import atexit, sys, time
from posembed.cli import main
atexit.register(lambda: print(time.thread_time()))
sys.argv[:1] = ["posembed", "resize"]
main()
"""

MAIN = "its main thread"


def make_checkpoint(folder: Path, gigabytes: float) -> None:
    """Writes a sharded GPT-2 of about this size, one shard at a time."""
    import torch

    from posembed.checkpoints.sources.base import shapes_of
    from posembed.checkpoints.sources.configs import build_on_meta, config_object
    from posembed.modelfiles.safetensors import write_tensors

    sizes = {"n_embd": WIDTH, "n_head": 32, "n_layer": max(1, round(gigabytes * 1e9 / LAYER_BYTES))}
    config = {"model_type": "gpt2", "n_positions": 1024, "vocab_size": 1000, **sizes}
    weight_map: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}

    def flush() -> None:
        name = f"model-{len(set(weight_map.values())) + 1:05}.safetensors"
        write_tensors(folder / name, shard, {"format": "pt"})
        weight_map.update(dict.fromkeys(shard, name))
        shard.clear()

    for key, shape in shapes_of(build_on_meta(config_object(config))).items():
        shard[key] = torch.randint(0, 1000, shape, dtype=torch.int16).view(torch.bfloat16)
        if sum(2 * tensor.numel() for tensor in shard.values()) > SHARD_BYTES:
            flush()
    flush()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def timed(command: list[str], printed: Path) -> tuple[float, float, float]:
    """Runs a command. Returns its seconds, its processor time, and the peak memory of its process in GiB."""
    os.sync()
    to_file = [(os.POSIX_SPAWN_OPEN, 1, printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)]
    start = time.perf_counter()
    process = os.posix_spawnp(command[0], command, os.environ, file_actions=to_file)
    _, status, usage = os.wait4(process, 0)
    seconds = time.perf_counter() - start
    if status != 0:
        sys.exit(f"failed: {' '.join(command)}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="a folder on the disk to measure")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        source, out = Path(folder, "source"), Path(folder, "out")
        source.mkdir()
        # In its own process: the peak memory of this process would count for every command that it starts.
        maker = multiprocessing.get_context("spawn").Process(target=make_checkpoint, args=(source, arguments.gigabytes))
        maker.start()
        maker.join()
        size = sum(path.stat().st_size for path in source.iterdir()) / 1e9
        commands = {
            "cp -r": ["cp", "-r", str(source), str(out)],
            "cp -r, sync": ["sh", "-c", 'cp -r "$0" "$1" && sync -f "$1"', str(source), str(out)],
            "posembed resize": [sys.executable, "-c", RESIZE, str(source), str(out), "--length", "4096"],
        }
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        processor: dict[str, list[float]] = {name: [] for name in (*commands, MAIN)}
        peak, printed = 0.0, Path(folder, "printed")
        for _ in range(arguments.turns):
            for name, command in commands.items():
                elapsed, busy, memory = timed(command, printed)
                seconds[name].append(elapsed)
                processor[name].append(busy)
                if name == "posembed resize":
                    peak = max(peak, memory)
                    processor[MAIN].append(float(printed.read_text().split()[-1]))
                shutil.rmtree(out)

    print(f"{size:.1f} GB, torch {version('torch')}, {platform.platform()}, {os.cpu_count()} CPUs")
    for name, values in seconds.items():
        print(f"{name:16} {statistics.median(values):7.2f} s   ({', '.join(f'{value:.2f}' for value in values)})")
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name in ("cp -r", "cp -r, sync"):
        print(f"resize / {name}: {medians['posembed resize'] / medians[name]:.2f}")
    print("processor time:")
    for name, values in processor.items():
        print(f"{name:16} {statistics.median(values):7.2f} s   ({', '.join(f'{value:.2f}' for value in values)})")
    print(f"peak memory of the resize: {peak:.2f} GiB")


if __name__ == "__main__":
    main()
