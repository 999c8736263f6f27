"""Measures the memory of one layer of attention with each encoding, forward and backward, at 4,096 tokens.

    python benchmarks/memory.py
    python benchmarks/memory.py --length 256 --encodings rope,fire    # to try it

One layer of posembed.nn.Attention, with 12 heads of width 64, reads one sequence of a decoder. Each encoding has a
process of its own. The number is the highest memory of the process in the step, without what it holds before: torch,
the weights and the input. The encoding is built for the length that it reads.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time

import pages
import torch

from posembed.nn import Attention, Sizes, encoding_by_name
from posembed.nn.encodings import ENCODINGS
from posembed.words import in_bytes

HEADS, HEAD_DIM = 12, 64
FACTORS = (2.0,) * (HEAD_DIM // 2)


def measure(name: str, length: int) -> None:
    """Prints the bytes and the seconds of one step, in a process of its own."""
    dim = HEADS * HEAD_DIM
    sizes = Sizes(dim=dim, heads=HEADS, max_len=length, window=length // 4, rope_factors=FACTORS)
    layer, x = Attention(dim=dim, heads=HEADS, encoding=encoding_by_name(name, sizes)), torch.randn(1, length, dim)
    layer(x[:, :64]).sum().backward()  # loads what PyTorch loads in a first step
    with open("/proc/self/clear_refs", "w") as peak, open("/proc/self/statm") as pages_held:
        peak.write("5")  # the highest memory starts from here
        before = int(pages_held.read().split()[1]) * resource.getpagesize()
    start = time.perf_counter()
    layer(x).square().mean().backward()
    seconds = time.perf_counter() - start
    with open("/proc/self/status") as status:
        highest = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    print(highest - before, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--encodings", default=",".join(n for n, each in ENCODINGS.items() if "decoder" in each.uses))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return measure(args.one, args.length)
    found = {}
    for name in args.encodings.split(","):
        command = [sys.executable, __file__, "--one", name, "--length", str(args.length)]
        ran = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=True)
        found[name] = int(ran.stdout.split()[0])
        print(name, in_bytes(found[name]), f"{float(ran.stdout.split()[1]):.1f} s", flush=True)
    rope = found.get("rope", min(found.values()))
    rows = [
        [name, in_bytes(peak), f"{peak / rope:.2f}"] for name, peak in sorted(found.items(), key=lambda pair: pair[1])
    ]
    lines = ["# Memory of one layer of attention", "", "    python benchmarks/memory.py", "", pages.machine(), ""]
    lines += [f"Forward and backward of one sequence of {args.length:,} tokens, {HEADS} heads of {HEAD_DIM}.", ""]
    lines += pages.table(["encoding", "peak memory", "times RoPE's"], rows)
    pages.write("memory", lines, keep=args == parser.parse_args([]))


if __name__ == "__main__":
    main()
