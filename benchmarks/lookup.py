"""What BERT's input layer costs: posembed's lookup compared with transformers, three plain embeddings, and a copy.

    python benchmarks/lookup.py                                       # writes results/lookup.md
    python benchmarks/lookup.py --batch 4 --length 64 --width 64 --repeats 3 --out /dev/null    # to try it

Every contestant computes layer_norm(token + type + position rows) from the same ids and weights; the script checks this
first. The unit is `x.clone()` of the output: the cost of making a tensor of that size. Within a table, all contestants
take turns, so that disturbances of the machine affect them alike. The table shows medians in milliseconds and as
multiples of the clone, and the quartiles.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn
from transformers.models.bert.modeling_bert import BertEmbeddings

from posembed.inputs import BertInput
from posembed.lab.runs.environment import processor_name

CLAIMS = {"forward": 1.5, "forward and backward": 5.0}
"""posembed takes at most this many times as long as the clone."""

warnings.filterwarnings("ignore", category=DeprecationWarning)
warnings.filterwarnings("ignore", category=FutureWarning)


class ThreeEmbeddings(nn.Module):
    """The implementation of tutorials: three nn.Embedding, two sums, nn.LayerNorm, nn.Dropout."""

    embedding: type[nn.Module] = nn.Embedding

    def __init__(self, vocabulary: int, length: int, width: int, dropout: float) -> None:
        super().__init__()
        self.word_embeddings = self.embedding(vocabulary, width)
        self.position_embeddings = self.embedding(length, width)
        self.token_type_embeddings = self.embedding(2, width)
        self.LayerNorm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor, types: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        x = self.word_embeddings(ids) + self.position_embeddings(places) + self.token_type_embeddings(types)
        return self.dropout(self.LayerNorm(x))


def layers(args: argparse.Namespace, dropout: float) -> dict[str, nn.Module]:
    """Returns the contestants, with the same weights."""
    ours = BertInput(vocab_size=args.vocabulary, max_len=args.length, dim=args.width, dropout=dropout)
    config = transformers.BertConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.width,
        max_position_embeddings=args.length,
        hidden_dropout_prob=dropout,
    )
    found: dict[str, nn.Module] = {
        "posembed": ours,
        "transformers": BertEmbeddings(config),
        "three embeddings": ThreeEmbeddings(args.vocabulary, args.length, args.width, dropout),
    }
    for layer in found.values():
        layer.load_state_dict(ours.state_dict(), strict=False)
    return found


def steps(found: dict[str, nn.Module], ids: Tensor, types: Tensor, upstream: Tensor | None) -> dict[str, Callable]:
    """Returns each contestant's step, eager and compiled: forward, and backward if an upstream gradient is given."""

    def step(layer: nn.Module, run: Callable[..., Tensor]) -> Callable[[], None]:
        def forward() -> None:
            with torch.no_grad():
                run(ids, token_type_ids=types)

        def both() -> None:
            layer.zero_grad(set_to_none=True)
            run(ids, token_type_ids=types).backward(upstream)

        return forward if upstream is None else both

    result: dict[str, Callable[[], object]] = {}
    for name, layer in found.items():
        call = layer if "three" not in name else _by_types(layer)
        result[name] = step(layer, call)
        result[f"{name}, compiled"] = step(layer, torch.compile(call))
    x = torch.randn(*ids.shape, next(found["posembed"].parameters()).shape[1])
    result["clone"] = x.clone
    return result


def _by_types(layer: nn.Module) -> Callable[..., Tensor]:
    return lambda ids, token_type_ids: layer(ids, token_type_ids)


def milliseconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return 1e3 * (time.perf_counter() - start)


def column(contestants: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Returns the times of each contestant in milliseconds, taken in turns after a warm-up that compiles."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for repeat in range(-3, repeats):
        for name, step in contestants.items():
            if repeat < 0:
                step()
            else:
                times[name].append(milliseconds(step))
    return times


def table(title: str, times: dict[str, list[float]]) -> list[str]:
    """Returns a column as a table."""
    clone = statistics.median(times["clone"])
    lines = [f"\n### {title}\n", "| | ms | clones | quartiles, ms |", "|---|---|---|---|"]
    for name, values in times.items():
        low, median, high = statistics.quantiles(values, n=4)
        lines.append(f"| {name} | {median:.3g} | {median / clone:.2f} | {low:.3g} to {high:.3g} |")
    return lines


def verdicts(title: str, times: dict[str, list[float]]) -> list[str]:
    """Returns the verdict on the claim about this column, if there is one."""
    if title not in CLAIMS:
        return []
    share = statistics.median(times["posembed"]) / statistics.median(times["clone"])
    holds = "holds" if share <= CLAIMS[title] else "DOES NOT HOLD"
    return [f"\nOurs: {share:.2f} clones: at most {CLAIMS[title]} {holds}."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=30522)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/lookup.md")
    args = parser.parse_args()

    torch.manual_seed(0)
    huge = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    page = [
        "# What BERT's input layer costs\n",
        "    python benchmarks/lookup.py\n",
        f"{processor_name()}; {torch.get_num_threads()} threads; torch {torch.__version__}, "
        f"transformers {transformers.__version__}, Python {platform.python_version()}; "
        f"transparent huge pages: {huge.read_text().strip() if huge.exists() else 'none'}",
        f"batch {args.batch}, length {args.length}, width {args.width}, vocabulary {args.vocabulary}, float32, "
        f"{args.repeats} repeats",
    ]
    print("\n".join(page), flush=True)
    ids = torch.randint(1, args.vocabulary, (args.batch, args.length))
    types = torch.randint(2, ids.shape)
    upstream = torch.randn(*ids.shape, args.width)
    for title, dropout, gradient in (
        ("forward", 0.0, None),
        ("forward and backward", 0.0, upstream),
        ("forward and backward, dropout 0.1", 0.1, upstream),
    ):
        found = layers(args, dropout)
        if not dropout:
            expected = found["transformers"](ids, token_type_ids=types)
            torch.testing.assert_close(found["posembed"](ids, token_type_ids=types), expected)
        found["posembed"](ids[:1], token_type_ids=types[:1])  # the first call in training reads the scales
        times = column(steps(found, ids, types, gradient), args.repeats)
        lines = table(title, times) + verdicts(title, times)
        print("\n".join(lines), flush=True)
        page += lines
        torch.compiler.reset()
    args.out.write_text("\n".join(page) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
