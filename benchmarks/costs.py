"""Measures what each encoding costs in a decoder, as a multiple of RoPE's: a training step, a token, and memory.

    python benchmarks/costs.py
    python benchmarks/costs.py --length 128 --rounds 1 --encodings fire,rolling/none+logn    # to try it

A decoder of 6 layers, with 4 heads of width 64, trains on one sequence of 512 tokens (forward, backward and AdamW), and
reads one token after the 512 with a cache. In each round every encoding takes a turn, and so does RoPE. Times are CPU
time on one thread, which leaves out what other programs take. An encoding per layer ("rope/none") is as in
``posembed.encoding``.

Memory is that of one layer of ``posembed.nn.Attention``, with 12 heads of width 64, which reads one sequence of eight
times the length, forward and backward. Each encoding has a process of its own. The number is the highest memory of the
process in the step, without what it holds before: torch, the weights and the input.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import pages
import torch

from posembed.lab.cost.instruments import ratio, take_turns
from posembed.nn import Attention, Decoder, Sizes, encoding_by_name
from posembed.nn.encodings import names_for
from posembed.report.words import measured
from posembed.words import in_bytes

LAYERS, HEADS, HEAD_DIM = 6, 4, 64
HEADS_IN_MEMORY, TIMES_IN_MEMORY = 12, 8
FACTORS = (2.0,) * (HEAD_DIM // 2)
MIXTURES = ("rope+window", "rolling/none+logn", "rolling/path")


def steps(name: str, length: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Returns a training step of a decoder and the reading of the token after the text."""
    dim = HEADS * HEAD_DIM
    sizes = Sizes(
        dim=dim, heads=HEADS, layers=LAYERS, max_len=length + 1, window=length // 4, longest=length + 1,
        rope_factors=FACTORS,
    )  # fmt: skip
    model = Decoder(dim=dim, heads=HEADS, layers=LAYERS, encoding=encoding_by_name(name, sizes))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    text, token = torch.randn(1, length, dim), torch.randn(1, 1, dim)
    reader = Decoder(dim=dim, heads=HEADS, layers=LAYERS, encoding=encoding_by_name(name, sizes)).eval()
    cache = reader.new_cache(1, length + 1)
    with torch.no_grad():
        reader(text, cache=cache)
    read = cache.length, cache.position_ids

    def train() -> None:
        optimizer.zero_grad()
        model(text).square().mean().backward()
        optimizer.step()

    def decode() -> None:
        cache.length, cache.position_ids = read
        with torch.no_grad():
            reader(token, cache=cache)

    return train, decode


def peak(name: str, length: int) -> None:
    """Prints the bytes of one step of one layer, in a process of its own."""
    dim = HEADS_IN_MEMORY * HEAD_DIM
    sizes = Sizes(dim=dim, heads=HEADS_IN_MEMORY, max_len=length, window=length // 4, rope_factors=FACTORS)
    encoding = encoding_by_name(name, sizes)
    layer, x = Attention(dim=dim, heads=HEADS_IN_MEMORY, encoding=encoding), torch.randn(1, length, dim)
    layer(x[:, :64]).sum().backward()  # loads what PyTorch loads in a first step
    with open("/proc/self/clear_refs", "w") as highest, open("/proc/self/statm") as pages_held:
        highest.write("5")  # the highest memory starts from here
        before = int(pages_held.read().split()[1]) * resource.getpagesize()
    layer(x).square().mean().backward()
    with open("/proc/self/status") as status:
        after = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    print(after - before)


def peaks(names: list[str], length: int) -> dict[str, int]:
    """Returns the highest memory of each encoding in bytes. A mixture's is that of its layers, which are here."""
    found = {}
    for name in names:
        command = [sys.executable, __file__, "--one", name, "--length", str(length)]
        ran = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=True)
        found[name] = int(ran.stdout)
        print(name, in_bytes(found[name]), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--encodings", default=",".join((*names_for("decoder"), *MIXTURES)))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.one:
        return peak(args.one, args.length)
    names = list(dict.fromkeys(("rope", *args.encodings.split(","))))
    pairs = {name: steps(name, args.length) for name in names}
    trained, decoded = (
        take_turns(
            {name: pair[i] for name, pair in pairs.items()}, seconds=0, fewest=args.rounds, clock=time.process_time
        )
        for i in range(2)
    )
    memory = peaks([name for name in names if "/" not in name], TIMES_IN_MEMORY * args.length)
    rows = [
        [
            name,
            *(measured(ratio(each[name], each["rope"]), "{:.2f}".format) for each in (trained, decoded)),
            *([in_bytes(memory[name]), f"{memory[name] / memory['rope']:.2f}"] if name in memory else ["", ""]),
        ]
        for name in sorted(names, key=lambda name: trained[name].value)
    ]
    lines = [
        "# What each encoding costs, compared with RoPE",
        "",
        "    python benchmarks/costs.py",
        "",
        pages.machine(),
        "",
    ]
    lines += [
        f"Times are medians of {args.rounds} rounds of CPU time, with 95% intervals: a training step on "
        f"{args.length:,} tokens of a decoder of {LAYERS} layers and width {HEADS * HEAD_DIM}, and one token after "
        f"them. With RoPE they take {trained['rope'].value * 1e3:,.0f} and {decoded['rope'].value * 1e3:.1f} ms. "
        f"Memory is the highest of one layer, forward and backward, at {TIMES_IN_MEMORY * args.length:,} tokens, with "
        f"{HEADS_IN_MEMORY} heads of width {HEAD_DIM}.",
        "",
    ]
    lines += pages.table(
        ["encoding", "training step, times RoPE's", "one token, times RoPE's", "memory", "times RoPE's"], rows
    )
    pages.write("costs", lines, keep=args == parser.parse_args([]))


if __name__ == "__main__":
    main()
