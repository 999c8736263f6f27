"""Claim: past its training length the rolling table holds, and beats ALiBi and RoPE under the same window.

    python benchmarks/length.py                                       # bytes of the standard library
    python benchmarks/length.py --data FILE,FILE --name wikitext-2    # any other text

Trains the unfinished studies in runs/NAME (about two hours on two cores), then writes
benchmarks/results/length-NAME.md. You can stop it at any time; it continues where it stopped. The tables show all runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posembed.cli.console import Bar
from posembed.comparison import prepare
from posembed.lab.data.text import Corpus, load_corpus
from posembed.lab.found import Found
from posembed.lab.questions import QUESTIONS
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.tasks.text_specs import SAME_TOKENS, WHOLE_WINDOWS, LengthSpec
from posembed.layers.base import PositionEncoding
from posembed.layers.rolling import RollingPositionalEmbedding
from posembed.nn.encodings import ENCODINGS, Entry, Sizes
from posembed.statistics import Estimate, paired_difference

RIVALS = ("rolling", "rope+window", "alibi")
SMALL: dict[str, Any] = {"preset": "quick", "steps": 2000, "warmup": 100, "test_tokens": 65_536}
LARGE: dict[str, Any] = {"preset": "small", "steps": 800, "batch": 16, "warmup": 50, "test_tokens": 65_536}
SHORT: dict[str, Any] = SMALL | {"steps": 600}


class AtInput(RollingPositionalEmbedding):
    """The rolling table added to the tokens, once."""

    def at_input(self, x: Tensor, position_ids: Tensor, *, text_length: int | Tensor | None = None) -> Tensor:
        return x + self.rows(position_ids)

    def before_queries_keys(self, project: Callable[[Tensor], Tensor], position_ids: Tensor) -> None:  # type: ignore[override]
        return None


def rolling(
    kind: type[RollingPositionalEmbedding] = RollingPositionalEmbedding, *, normal: bool = False, **changed: Any
) -> Entry:
    """Returns a lab entry for the rolling table with changed settings."""

    def build(sizes: Sizes) -> PositionEncoding:
        encoding = kind(window=sizes.given("window"), dim=sizes.dim, **changed)
        if normal:
            torch.nn.init.normal_(encoding.weight, std=encoding.std)
        return encoding

    return Entry(build, f"rolling with {changed}", "posembed")


VARIANTS = {
    "ring of 2 windows": rolling(ring=32),
    "ring of 4 windows": rolling(ring=64),
    "start N(0, 1)": rolling(normal=True),
    "start at std .2": rolling(std=0.2),
    "start at std 2": rolling(std=2.0),
    "at the input": rolling(AtInput, std=0.02),
    "at the input, start N(0, .02)": rolling(AtInput, std=0.02, normal=True),
}
ENCODINGS.update(VARIANTS)


@dataclass(frozen=True)
class Study:
    title: str
    encodings: tuple[str, ...]
    seeds: int
    settings: dict[str, Any] = field(default_factory=dict)


STUDIES = {
    "small": Study("Three layers of width 96, trained at 64", RIVALS, 3, SMALL),
    "large": Study("Three layers of width 128, trained at 128, fewer steps", RIVALS, 3, LARGE),
    "short": Study("Three layers of width 96, trained at 64, 600 steps", RIVALS, 3, SHORT),
    "variants": Study("The ring's size, start and place, 600 steps", tuple(VARIANTS), 2, SHORT),
    "start": Study("Two starts, 600 steps", ("rolling", "start N(0, 1)"), 3, SHORT),
    "window-8": Study("A window of 8, 600 steps", RIVALS[:2], 2, SHORT | {"window": 8}),
    "window-32": Study("A window of 32, 600 steps", RIVALS[:2], 2, SHORT | {"window": 32}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="stdlib")
    parser.add_argument("--name", default="stdlib", help="name of the run folder and the results file")
    parser.add_argument("--studies", nargs="+", choices=STUDIES, default=list(STUDIES))
    arguments = parser.parse_args()
    corpus = load_corpus(arguments.data)
    for name in arguments.studies:
        study, folder = STUDIES[name], folder_of(arguments.name, name)
        runs = {"encodings": study.encodings, "seeds": study.seeds, "out": folder.path, "device": "cpu"}
        prepared = prepare("lengths", {**runs, **study.settings, "data": arguments.data})
        with Bar() as bar:
            prepared.run(bar.update)
    page = write_page(arguments.name, corpus)
    print(page.read_text(encoding="utf-8"))


def folder_of(text: str, study: str) -> RunFolder:
    return RunFolder(Path("runs") / f"length-{text}" / study, LengthSpec)


def write_page(text: str, corpus: Corpus) -> Path:
    """Writes every study that has results, as Markdown. Returns the page."""
    command = "python benchmarks/length.py" if text == "stdlib" else f"python benchmarks/length.py --name {text} ..."
    lines = [f"# How far does the rolling table carry? {text}", "", f"    {command}", ""]
    description = "; ".join(corpus.description.splitlines())
    lines += [f"Text, as bytes: {description}; sha256 {corpus.sha256[:16]}.", ""]
    for name, study in STUDIES.items():
        results = folder_of(text, name).results()
        if results:
            lines += describe(study, results)
    page = Path(__file__).parent / "results" / f"length-{text}.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text("\n".join(lines), encoding="utf-8")
    return page


def describe(study: Study, results: list[RunResult]) -> Iterable[str]:
    spec, machine = results[0].spec, results[0].environment
    seeds = len({r.spec.seed for r in results})
    summary = QUESTIONS["lengths"].summarise(results)
    yield from [
        f"## {study.title}",
        "",
        f"{spec.layers} layers, width {spec.width}, {spec.heads} heads, window {spec.window}; "
        f"{spec.steps:,} steps of {spec.batch} x {spec.train_length} tokens, "
        f"learning rate {spec.learning_rate:g}; {seeds} seeds. "
        f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}.",
        "",
        "Perplexity of the same tokens after each length of context, then over non-overlapping windows of the",
        "longest length; means over seeds ± half of the 95 % interval.",
        "",
    ]
    lengths = spec.test_lengths
    heads = [
        "encoding",
        *(f"{length}" for length in lengths),
        f"non-overlapping, {lengths[-1]}",
        "rows",
        "every seed",
    ]
    yield from ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in summary.rows:
        cells = [show(summary.mean(SAME_TOKENS, row.name, length)) for length in lengths]
        cells.append(show(summary.mean(WHOLE_WINDOWS, row.name, lengths[-1])))
        rows = f"{row.position_parameters // spec.width}" if row.position_parameters else "-"
        last = summary.mean(SAME_TOKENS, row.name, lengths[-1])
        raw = ", ".join(f"{value:.3f}" for value in last.values) if last else "-"
        yield "| " + " | ".join([row.name, *cells, rows, raw]) + " |"
    yield ""
    if {"rolling", "alibi"} <= {row.name for row in summary.rows}:
        yield from claims(summary, results)


def claims(found: Found, results: list[RunResult]) -> Iterable[str]:
    longest, trained = found.spec.test_lengths[-1], found.spec.train_length
    itself = found.against(SAME_TOKENS, "rolling", longest, trained)
    shown = show(itself and itself.over_seeds, 3)
    yield f"- rolling at {longest} against itself at {trained}, same tokens: {shown}"
    for rival in ("alibi", "rope+window"):
        for measure, words in ((SAME_TOKENS, "same tokens"), (WHOLE_WINDOWS, "non-overlapping windows")):
            losses = {
                name: {
                    r.spec.seed: r.measurements.by_x(measure)[longest]
                    for r in results
                    if r.spec.encoding == name and r.measurements is not None
                }
                for name in ("rolling", rival)
            }
            difference = paired_difference(losses["rolling"], losses[rival])
            if difference is not None:
                ratio = show(difference.exp(), 3)
                yield f"- rolling against {rival} at {longest}, {words}, paired by seed: {ratio}"
    yield ""


def show(estimate: Estimate | None, digits: int = 2) -> str:
    if estimate is None:
        return "no row"
    half = "" if estimate.high is None else f" ± {estimate.high - estimate.value:.{digits}f}"
    return f"{estimate.value:.{digits}f}{half}"


if __name__ == "__main__":
    main()
