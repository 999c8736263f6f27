"""Claim: at length 512 a training step with learned-averaged takes at most 1.15 times RoPE's; its memory is linear.

    OMP_NUM_THREADS=1 python benchmarks/by_distance.py
    python benchmarks/by_distance.py --tokens 128 --lengths 128 --rounds 1 --longest 256    # to try it

A training step is forward, backward and AdamW of a posembed.nn.Decoder. All lengths have the same number of tokens in a
batch. All encodings take turns, in reverse order every other round. The ratio to RoPE is computed in each round; the
result is the median of the ratios with its 95% interval. Time is the CPU time of the process, so that other programs on
the machine disturb it little. "dense" reads the bias (H, L, L) as versions before the blocks did.

Memory is the peak of all tensors that one step of one sequence creates: outputs, saved activations and gradients, but
not the weights.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import pages
import torch

from posembed.lab.cost.instruments import fit_exponent, peak_bytes, ratio, take_turns
from posembed.nn import Decoder, Sizes, encoding_by_name, toeplitz
from posembed.report.words import interval
from posembed.words import in_bytes, milliseconds

LIMIT, LIMIT_AT = 1.15, 512
TRAINED = 128
"""The rows of the table. The bias beyond them is a line."""
MODELS = ({"dim": 256, "heads": 8, "layers": 4}, {"dim": 96, "heads": 4, "layers": 3})
CONTESTANTS = ("rope", "alibi", "t5", "learned-averaged", "learned-averaged, dense")
LONGEST_DENSE = 4096


def training_step(contestant: str, sizes: dict[str, int], batch: int, length: int) -> Callable[[], None]:
    name, dense = contestant.removesuffix(", dense"), contestant.endswith(", dense")
    wanted = Sizes(dim=sizes["dim"], heads=sizes["heads"], max_len=TRAINED, causal=True)
    model = Decoder(encoding=encoding_by_name(name, wanted), **sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    x = torch.randn(batch, length, sizes["dim"])
    rows = toeplitz.ROWS

    def step() -> None:
        toeplitz.ROWS = length if dense else rows  # a text of one block has the dense bias
        try:
            model(x).square().mean().backward()
        finally:
            toeplitz.ROWS = rows
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048, help="tokens in a batch")
    parser.add_argument("--lengths", type=lambda text: tuple(map(int, text.split(","))), default=(128, 512, 2048))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--longest", type=int, default=16384, help="the longest text whose memory is measured")
    args = parser.parse_args()
    keep = all(getattr(args, name) == parser.get_default(name) for name in vars(args))

    torch.manual_seed(0)
    lines = ["# Attention with a bias of the distance alone", "", "    python benchmarks/by_distance.py", ""]
    lines += [pages.machine(), ""]
    lines += [
        f"A training step of {args.tokens:,} tokens: CPU time of the process, medians of {args.rounds} rounds in which "
        "all take turns, with 95% intervals. Other programs were running on the machine.",
        "",
    ]
    claims = []
    for sizes in MODELS:
        shape = f"width {sizes['dim']}, {sizes['layers']} layers, {sizes['heads']} heads"
        for length in args.lengths:
            steps = {name: training_step(name, sizes, args.tokens // length, length) for name in CONTESTANTS}
            times = take_turns(steps, seconds=0.0, fewest=args.rounds, clock=time.process_time)
            rows = []
            for name in CONTESTANTS:
                share = ratio(times[name], times["rope"])
                ends = interval(share, "{:.2f}".format)
                rows.append([name, milliseconds(times[name].value), f"{share.value:.2f}", ends])
                if name == "learned-averaged" and length == LIMIT_AT:
                    verdict = pages.at_most(share, LIMIT)
                    claims.append(f"- {shape}, length {length}: {share.value:.2f} ({ends}), at most {LIMIT}: {verdict}")
            lines += [f"## {shape}, length {length:,}", ""]
            lines += pages.table(["encoding", "ms", "times RoPE", "95% interval"], rows)
            print("\n".join(lines[-len(rows) - 5 :]), flush=True)
    lengths = [length for length in (512 * 2**i for i in range(20)) if length <= args.longest] or [args.longest]
    peaks = {name: {} for name in CONTESTANTS}
    for name in CONTESTANTS:
        for length in lengths:
            if length <= LONGEST_DENSE or not name.endswith(", dense"):
                peaks[name][length] = peak_bytes(training_step(name, {"dim": 96, "heads": 4, "layers": 1}, 1, length))
    rows = []
    for name, by_length in peaks.items():
        exponent = fit_exponent([length for length in by_length if length >= 2048],
                                [peak for length, peak in by_length.items() if length >= 2048])  # fmt: skip
        exponent = fit_exponent(tuple(by_length), tuple(by_length.values())) if exponent is None else exponent
        shown = [in_bytes(by_length[length]) if length in by_length else "not tried" for length in lengths]
        rows.append([name, "" if exponent is None else f"{exponent:.2f}", *shown])
    lines += ["## Peak memory of a step of one sequence: width 96, 1 layer, 4 heads", ""]
    lines += pages.table(["encoding", "exponent", *(f"{length:,}" for length in lengths)], rows)
    lines += ["## The claim", "", *claims, ""]
    pages.write("by_distance", lines, keep=keep)


if __name__ == "__main__":
    main()
