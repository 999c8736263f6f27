"""Claim: with full attention too, a learned table can hold beyond its training length. Of several ways one stays.

    python benchmarks/learned_full_attention.py                      # all, about an hour and a half on two cores
    python benchmarks/learned_full_attention.py --studies screen     # every idea, one seed, 300 steps

Trains what is not finished in runs/learned-full-attention (stop it when you like, it goes on where it stopped),
then writes benchmarks/results/learned-full-attention.md. The ideas that lost are kept here and nowhere else, each
as a PositionEncoding that the lab's own model takes; docs/lengths-learned.md says why they lost.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from posembed.lab.statistics import Estimate
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.cli.compare.progress import ProgressBar
from posembed.lab import presets
from posembed.lab.data import Corpus, load_corpus
from posembed.lab.encodings import ENCODINGS, Entry
from posembed.lab.environment import make_accelerator
from posembed.lab.questions.lengths import LengthSummary, length_runs, summarise_lengths
from posembed.lab.results import RunFolder, RunResult
from posembed.lab.sweep import sweep
from posembed.lab.tasks.language import LanguageModelling
from posembed.layers.base import PositionEncoding
from posembed.layers.near_far import NearFarPositionalEmbedding
from posembed.layers.rolling import ring_sinusoids
from posembed.positions import check_positions, skipped

Project = Callable[[Tensor], Tensor]


def add_bias(q: Tensor, k: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """q, k (B, H, L, d), bias (B, H, L, L) -> wider ones whose products, divided by the root of their new width,
    are those of q and k divided by the root of d, plus the bias. So a layer can have a bias of its own."""
    batch, heads, length, width = q.shape
    wider = width + length
    columns = torch.eye(length).expand(batch, heads, -1, -1)
    q = torch.cat([q * math.sqrt(wider / width), bias.expand(batch, -1, -1, -1) * math.sqrt(wider)], dim=-1)
    return q, torch.cat([k, columns], dim=-1)


def distances(length: int) -> Tensor:
    """(L, L): how far key j lies before query i; 0 where it lies after it, which the causal mask hides."""
    return (torch.arange(length).unsqueeze(1) - torch.arange(length)).clamp(min=0)


def with_tail(by_distance: Tensor, length: int) -> Tensor:
    """(H, N) -> (H, length): the same, and beyond N a line in log distance fitted to all but the first four, each
    weighted by how often a text of N tokens has that distance. The line never rises."""
    known = by_distance.size(-1)
    if length <= known:
        return by_distance[:, :length]
    x = torch.arange(length).log1p()
    near, weights = x[4:known], torch.arange(known - 4, 0, -1) / torch.arange(known - 4, 0, -1).sum()
    middle, level = (weights * near).sum(), (weights * by_distance[:, 4:]).sum(-1, keepdim=True)
    slope = (weights * (near - middle) * (by_distance[:, 4:] - level)).sum(-1, keepdim=True)
    slope = (slope / (weights * (near - middle) ** 2).sum()).clamp(max=0)
    return torch.cat([by_distance, level + slope * (x[known:] - middle)], dim=-1)


class RingWithDecay(PositionEncoding):
    """A ring of 16 rows at queries and keys, no window. The same row stands at every 16th token, in training too;
    a learned decay a head, -a log(1 + b distance) as in KERPLE, is to tell the near one from the far."""

    def __init__(self, dim: int, heads: int, ring: int = 16) -> None:
        super().__init__()
        self.ring = ring
        self.weight = nn.Parameter(ring_sinusoids(ring, dim))
        self.decay = nn.Parameter(torch.stack([torch.linspace(0, 2, heads), torch.linspace(-1, 1, heads)]))

    def training_positions(self, batch: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randint(self.ring, (batch, 1), generator=generator) + torch.arange(length)

    def before_queries_keys(self, project: Project, position_ids: Tensor) -> Tensor:
        return F.embedding(position_ids % self.ring, project(self.weight))

    def at_scores(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        a, b = F.softplus(self.decay).view(2, -1, 1, 1)
        return -a * torch.log1p(b * distances(q_positions.size(-1)))


class FineAndCoarse(PositionEncoding):
    """Position p reads row p mod 16 of a fine table plus row p // 16 of a coarse one, at queries and keys. Trained
    at positions with a gap between two runs (PoSE), starting anywhere, so that all coarse rows are met."""

    def __init__(self, dim: int, longest: int, fine: int = 16) -> None:
        super().__init__()
        self.fine, self.longest = fine, longest
        self.weight = nn.Parameter(ring_sinusoids(fine, dim))
        coarse = -(-longest // fine)
        self.coarse = nn.Parameter(ring_sinusoids(2 * coarse, dim)[:coarse])

    def training_positions(self, batch: int, length: int, generator: torch.Generator) -> Tensor:
        ids = skipped(batch, length, max_len=self.longest, generator=generator)
        room = self.longest - ids[:, -1:]
        return ids + (torch.rand(batch, 1, generator=generator) * room).long()

    def before_queries_keys(self, project: Project, position_ids: Tensor) -> Tensor:
        fine = F.embedding(position_ids % self.fine, project(self.weight))
        coarse = (position_ids // self.fine).clamp(max=len(self.coarse) - 1)
        return fine + F.embedding(coarse, project(self.coarse))


class TableAtQueriesKeys(PositionEncoding):
    """A plain table at queries and keys, as long as the training length, and its end."""

    def __init__(self, dim: int, heads: int, rows: int) -> None:
        super().__init__()
        self.heads, self.rows = heads, rows
        self.weight = nn.Parameter(ring_sinusoids(2 * rows, dim)[:rows])

    def before_queries_keys(self, project: Project, position_ids: Tensor) -> Tensor | None:
        return F.embedding(check_positions(position_ids, self.rows), project(self.weight))


class AveragedByDistance(TableAtQueriesKeys):
    """The same, but at test its own position logits, of each layer and head, are averaged over every distance into
    a bias, with a fitted tail. What passes between a row and a token, which cannot be averaged, is left out.
    ``always``: in training too."""

    def __init__(self, dim: int, heads: int, rows: int, always: bool = False) -> None:
        super().__init__(dim, heads, rows)
        self.always = always

    def before_queries_keys(self, project: Project, position_ids: Tensor) -> Tensor | None:
        if self.training and not self.always:
            return super().before_queries_keys(project, position_ids)
        self.projected = project(self.weight).unflatten(-1, (2, self.heads, -1)).permute(1, 2, 0, 3)
        return None

    def at_queries_keys(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        if self.training and not self.always:
            return q, k
        for_q, for_k = self.projected  # (H, rows, d) each
        logits = for_q @ for_k.mT / math.sqrt(q.size(-1))
        averages = torch.stack([logits.diagonal(-d, -2, -1).mean(-1) for d in range(self.rows)], dim=-1)
        by_distance = with_tail(averages, q.size(-2))
        return add_bias(q, k, by_distance[:, distances(q.size(-2))].unsqueeze(0))


class NumberByDistance(PositionEncoding):
    """What the averages amount to, learned as such: one number a distance and head, the same in all layers (T5's
    bias without its buckets), with the same tail."""

    def __init__(self, heads: int, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, heads))

    def at_scores(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        length = q_positions.size(-1)
        return with_tail(4 * self.weight.T, length)[:, distances(length)]  # 4: numbers learn faster than rows do


class FarBias(PositionEncoding):
    """A ring of rows at queries and keys, but only between tokens less than 16 apart; beyond, every head sees what
    is there by its content, plus one learned number a head."""

    def __init__(self, dim: int, heads: int, window: int = 16) -> None:
        super().__init__()
        self.near, self.ring, self.heads = window, 2 * window, heads
        self.weight = nn.Parameter(ring_sinusoids(self.ring, dim))
        self.far = nn.Parameter(torch.zeros(heads))

    def training_positions(self, batch: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randint(self.ring, (batch, 1), generator=generator) + torch.arange(length)

    def before_queries_keys(self, project: Project, position_ids: Tensor) -> None:
        rows = F.embedding(position_ids % self.ring, project(self.weight)).unflatten(-1, (2, self.heads, -1))
        self.for_q, self.for_k = rows.movedim(-3, 0).transpose(-3, -2)

    def at_queries_keys(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        near = (q @ self.for_k.mT + self.for_q @ (k + self.for_k).mT) / math.sqrt(q.size(-1))
        bias = torch.where(distances(q.size(-2)) < self.near, near, self.far.view(-1, 1, 1))
        return add_bias(q, k, bias)


def near_far(**changed: Any) -> Entry:
    return Entry(
        lambda s: NearFarPositionalEmbedding(s.window, s.width, heads=s.heads, **changed),
        f"near-far with {changed}",
        "posembed",
    )


IDEAS = {
    "ring with a learned decay": lambda s: RingWithDecay(s.width, s.heads),
    "fine and coarse, skipped": lambda s: FineAndCoarse(s.width, s.longest),
    "a plain table at queries and keys": lambda s: TableAtQueriesKeys(s.width, s.heads, s.train_length),
    "averaged by distance at test": lambda s: AveragedByDistance(s.width, s.heads, s.train_length),
    "averaged by distance always": lambda s: AveragedByDistance(s.width, s.heads, s.train_length, always=True),
    "a number a distance": lambda s: NumberByDistance(s.heads, s.train_length),
    "rows near, one number far": lambda s: FarBias(s.width, s.heads),
}
ENCODINGS.update({name: Entry(build, name, "posembed") for name, build in IDEAS.items()})
ENCODINGS.update({f"near-far, {n} near": near_far(near_heads=n) for n in (1, 3)})


@dataclass(frozen=True)
class Study:
    title: str
    encodings: tuple[str, ...]
    seeds: int
    settings: dict[str, Any]


STUDIES = {
    "screen": Study(
        "Every idea, 300 steps",
        (
            *("near-far", "near-far+logn", "near-far, 1 near", "near-far, 3 near"),
            *(f"{name}{suffix}" for name in IDEAS for suffix in ("", "+logn")),
            *("learned", "rolling", "alibi", "none"),
        ),
        1,
        {"steps": 300},
    ),
    "held": Study(
        "What is left, beside the encodings that are known",
        (
            *("near-far", "near-far+logn", "averaged by distance at test+logn"),
            *("rolling", "rope", "alibi", "none", "learned"),
        ),
        3,
        {"steps": 1000, "warmup": 100, "test_tokens": 65_536},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", nargs="+", choices=STUDIES, default=list(STUDIES))
    arguments = parser.parse_args()
    corpus = load_corpus("stdlib")
    accelerator = make_accelerator(device="cpu")
    for name in arguments.studies:
        study = STUDIES[name]
        settings = presets.settings("quick", data_sha256=corpus.sha256, **study.settings)
        specs = length_runs(settings, study.encodings, study.seeds)
        with ProgressBar(specs) as bar:
            sweep(specs, LanguageModelling(corpus), folder_of(name), accelerator, bar)
    page = write_page(corpus)
    print(page.read_text(encoding="utf-8"))


def folder_of(study: str) -> RunFolder:
    return RunFolder(Path("runs") / "learned-full-attention" / study, LanguageModelling)


def write_page(corpus: Corpus) -> Path:
    """Every study that has results, as Markdown."""
    lines = ["# A learned table under full attention", "", "    python benchmarks/learned_full_attention.py", ""]
    lines += [f"Text: {corpus.description}, as bytes; sha256 {corpus.sha256[:16]}.", ""]
    for name, study in STUDIES.items():
        results = folder_of(name).results()
        if results:
            lines += describe(study, summarise_lengths(results), results)
    page = Path(__file__).parent / "results" / "learned-full-attention.md"
    page.write_text("\n".join(lines), encoding="utf-8")
    return page


def describe(study: Study, summary: LengthSummary, results: list[RunResult]) -> Iterable[str]:
    spec, machine = results[0].spec, results[0].environment
    longest = summary.test_lengths[-1]
    yield from [
        f"## {study.title}",
        "",
        f"{spec.layers} layers, width {spec.width}, {spec.heads} heads, window {spec.window}; "
        f"{spec.steps:,} steps of {spec.batch} x {spec.train_length} tokens, "
        f"learning rate {spec.learning_rate:g}; {len({r.spec.seed for r in results})} seeds. "
        f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}.",
        "",
        "Perplexity of the same tokens after each length of context, their ratio, and the gain of a passage read",
        "before, in nats a token, by the tokens between; mean over seeds ± half of the 95 % interval.",
        "",
    ]
    heads = ["encoding", *map(str, summary.test_lengths), f"{longest} / {summary.train_length}"]
    heads += [*(f"gain {gap}" for gap in summary.gaps), f"every seed, {longest}"]
    yield from ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in summary.rows:
        cells = [show(row.same_tokens[length]) for length in summary.test_lengths] + [show(row.ratio[longest], 3)]
        cells += [show(row.repeat_gain[gap], 3) for gap in summary.gaps]
        last = row.same_tokens[longest]
        raw = ", ".join(f"{value:.3f}" for value in last.values) if last else "-"
        yield "| " + " | ".join([row.encoding, *cells, raw]) + " |"
    yield ""


def show(estimate: Estimate | None, digits: int = 2) -> str:
    if estimate is None:
        return "no row"
    half = "" if estimate.high is None else f" ± {estimate.high - estimate.mean:.{digits}f}"
    return f"{estimate.mean:.{digits}f}{half}"


if __name__ == "__main__":
    main()
