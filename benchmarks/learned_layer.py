"""What a learned position costs: posembed's layer compared with nn.Embedding, eager and compiled, and with a copy.

    python benchmarks/learned_layer.py                  # batch 32, length 512, width 768
    python benchmarks/learned_layer.py --device cuda
    python benchmarks/learned_layer.py --batch 4 --length 64 --width 64 --repeats 3    # to try it

Every contestant computes dropout(x + rows) from the same x and table. `x.clone()` is the limit: the cost of writing an
output of that size. Within a table, all contestants take turns, so that disturbances of the machine affect them alike.
The table shows medians in milliseconds and as multiples of the clone, and the quartiles.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from posembed import LearnedPositionalEmbedding
from posembed.lab.runs.environment import processor_name

AT_MOST = 1.1
"""The claim: ours takes at most this multiple of the fastest peer's time, in every column."""

warnings.filterwarnings("ignore", category=DeprecationWarning)
warnings.filterwarnings("ignore", category=FutureWarning)


class Gathered(nn.Module):
    """The usual implementation: adds an nn.Embedding of ids to the tokens, then applies dropout."""

    def __init__(self, table: Tensor, dropout: float) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(table.clone(), freeze=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        return self.dropout(x + self.table(ids))


Step = Callable[[Tensor], Tensor]


def contestants(ids: str, args: argparse.Namespace, dropout: float, table: Tensor) -> dict[str, Step]:
    """Returns the contestants of a column. ``ids``: "none", "(L,)" or "(B, L)"."""
    one_row = torch.arange(args.length, device=args.device)
    all_rows = one_row.repeat(args.batch, 1)
    rows = {"none": None, "(L,)": one_row, "(B, L)": all_rows}[ids]

    layer = LearnedPositionalEmbedding(max_len=args.length, dim=args.width, dropout=dropout, init=table).to(args.device)
    peer = Gathered(table, dropout).to(args.device)
    compiled_layer, compiled_peer = torch.compile(layer), torch.compile(peer)
    steps: dict[str, Step] = {
        "posembed": lambda x: layer(x, rows),
        "posembed, compiled": lambda x: compiled_layer(x, rows),
    }
    if ids != "(L,)":
        steps["nn.Embedding, ids (B, L)"] = lambda x: peer(x, all_rows)
        steps["nn.Embedding, ids (B, L), compiled"] = lambda x: compiled_peer(x, all_rows)
    if ids != "(B, L)":
        steps["nn.Embedding, ids (1, L)"] = lambda x: peer(x, one_row[None])
        steps["nn.Embedding, ids (1, L), compiled"] = lambda x: compiled_peer(x, one_row[None])
    steps["clone"] = lambda x: x.clone()
    return steps


def seconds(step: Step, x: Tensor, upstream: Tensor | None) -> float:
    """Times a forward pass, and a backward pass if an upstream gradient is given."""
    x = x.detach().requires_grad_(upstream is not None)
    if x.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    with torch.set_grad_enabled(upstream is not None):
        out = step(x)
        if upstream is not None:
            out.backward(upstream)
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def column(steps: dict[str, Step], x: Tensor, upstream: Tensor | None, repeats: int) -> dict[str, list[float]]:
    """Returns the times of each contestant in milliseconds, taken in turns after a warm-up that compiles."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(-3, repeats):
        for name, step in steps.items():
            taken = seconds(step, x, upstream)
            if repeat >= 0:
                times[name].append(1e3 * taken)
    return times


def shown(title: str, times: dict[str, list[float]]) -> str:
    """Returns a column as a table, with the verdict on the claim."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    clone = medians["clone"]
    lines = [f"\n### {title}\n", "| | ms | clones | quartiles, ms |", "|---|---|---|---|"]
    for name, median in medians.items():
        low, _, high = statistics.quantiles(times[name], n=4)
        lines.append(f"| {name} | {median:.2f} | {median / clone:.2f} | {low:.2f} to {high:.2f} |")
    ours = min(median for name, median in medians.items() if name.startswith("posembed"))
    best = min(median for name, median in medians.items() if name.startswith("nn.Embedding"))
    verdict = "holds" if ours <= AT_MOST * best else "DOES NOT HOLD"
    lines.append(f"\nOurs is {ours / best:.2f} times the best peer: at most {AT_MOST} {verdict}.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.cuda.get_device_name() if args.device == "cuda" else processor_name()
    print(f"{device}; {torch.get_num_threads()} threads; torch {torch.__version__}, Python {platform.python_version()}")
    print(f"batch {args.batch}, length {args.length}, width {args.width}, float32, {args.repeats} repeats")
    table = 0.02 * torch.randn(args.length, args.width)
    x = 0.02 * torch.randn(args.batch, args.length, args.width, device=args.device)
    upstream = torch.randn_like(x)
    for dropout in (0.0, 0.1):
        for ids in ("none", "(L,)", "(B, L)"):
            for backward in (False, True):
                if dropout and not backward:
                    continue  # without training there is no dropout
                steps = contestants(ids, args, dropout, table)
                times = column(steps, x, upstream if backward else None, args.repeats)
                what = "consecutive positions" if ids == "none" else f"explicit ids {ids}"
                passes = "forward and backward" if backward else "forward"
                print(shown(f"{what}, {passes}, dropout {dropout}", times), flush=True)
                torch.compiler.reset()


if __name__ == "__main__":
    main()
