"""Claim: a learned table can hold beyond its training length under full attention too. We kept two of several ideas.

    python benchmarks/learned_full_attention.py                      # everything, about an hour and a half on two cores
    python benchmarks/learned_full_attention.py --studies screen     # every idea, one seed, 300 steps

Trains the unfinished runs in runs/learned-full-attention, then writes benchmarks/results/learned-full-attention.md. You
can stop it at any time; it continues where it stopped. The page docs/research/lengths-learned.md reports each idea.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from full_attention_ideas import IDEAS
from other_encodings import NOT_KEPT, NearFarPositionalEmbedding

from posembed.cli.console import Bar
from posembed.comparison import prepare
from posembed.lab.data.text import Corpus, load_corpus
from posembed.lab.found import Found
from posembed.lab.questions import QUESTIONS
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.tasks.text_specs import REPEAT_GAIN, SAME_TOKENS, LengthSpec
from posembed.nn.encodings import ENCODINGS, Entry
from posembed.statistics import Estimate


def near_far(**changed: Any) -> Entry:
    return Entry(
        lambda s: NearFarPositionalEmbedding(near_window=s.given("window"), dim=s.dim, heads=s.heads, **changed),
        f"near-far with {changed}",
        "posembed",
    )


ENCODINGS.update(NOT_KEPT)
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
            *("learned-averaged", "learned-averaged+logn"),
            *("near-far", "near-far+logn", "near-far, 1 near", "near-far, 3 near"),
            *(f"{name}{suffix}" for name in IDEAS for suffix in ("", "+logn")),
            *("learned", "rolling", "alibi", "none"),
        ),
        1,
        {"steps": 300, "test_tokens": 16_384},
    ),
    "held": Study(
        "The ideas that we kept, compared with known encodings",
        (
            *("learned-averaged", "near-far", "averaged by distance at test+logn"),
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
    for name in arguments.studies:
        study = STUDIES[name]
        runs = {"encodings": study.encodings, "seeds": study.seeds, "out": folder_of(name).path, "device": "cpu"}
        prepared = prepare("lengths", {**runs, "preset": "quick", **study.settings})
        with Bar() as bar:
            prepared.run(bar.update)
    page = write_page(corpus)
    print(page.read_text(encoding="utf-8"))


def folder_of(study: str) -> RunFolder:
    return RunFolder(Path("runs") / "learned-full-attention" / study, LengthSpec)


def write_page(corpus: Corpus) -> Path:
    """Writes every study that has results, as Markdown. Returns the page."""
    lines = ["# A learned table under full attention", "", "    python benchmarks/learned_full_attention.py", ""]
    description = "; ".join(corpus.description.splitlines())
    lines += [f"Text, as bytes: {description}; sha256 {corpus.sha256[:16]}.", ""]
    for name, study in STUDIES.items():
        results = folder_of(name).results()
        if results:
            lines += describe(study, QUESTIONS["lengths"].summarise(results), results)
    page = Path(__file__).parent / "results" / "learned-full-attention.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text("\n".join(lines), encoding="utf-8")
    return page


def describe(study: Study, found: Found, results: list[RunResult]) -> Iterable[str]:
    spec, machine = results[0].spec, results[0].environment
    longest = spec.test_lengths[-1]
    yield from [
        f"## {study.title}",
        "",
        f"{spec.layers} layers, width {spec.width}, {spec.heads} heads, window {spec.window}; "
        f"{spec.steps:,} steps of {spec.batch} x {spec.train_length} tokens, "
        f"learning rate {spec.learning_rate:g}; {len({r.spec.seed for r in results})} seeds. "
        f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}.",
        "",
        "Perplexity of the same tokens after each length of context, their ratio, and the gain from a passage",
        "read before, in nats per token, by the tokens between; means over seeds ± half of the 95 % interval.",
        "",
    ]
    tested, gaps = spec.test_lengths, found.xs(REPEAT_GAIN)
    heads = ["encoding", *map(str, tested), f"{longest} / {spec.train_length}"]
    heads += [*(f"gain {gap}" for gap in gaps), f"every seed, {longest}"]
    yield from ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for name in found.names:
        ratio = found.against(SAME_TOKENS, name, longest, spec.train_length)
        cells = [show(found.mean(SAME_TOKENS, name, length)) for length in tested]
        cells += [show(ratio and ratio.over_seeds, 3), *(show(found.mean(REPEAT_GAIN, name, gap), 3) for gap in gaps)]
        last = found.mean(SAME_TOKENS, name, longest)
        raw = ", ".join(f"{value:.3f}" for value in last.values) if last else "-"
        yield "| " + " | ".join([name, *cells, raw]) + " |"
    yield ""


def show(estimate: Estimate | None, digits: int = 2) -> str:
    if estimate is None:
        return "no row"
    half = "" if estimate.high is None else f" ± {estimate.high - estimate.value:.{digits}f}"
    return f"{estimate.value:.{digits}f}{half}"


if __name__ == "__main__":
    main()
