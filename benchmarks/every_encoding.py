"""Measures every encoding in the same way: the evidence of `posembed advise`. About fifteen hours on two cores.

python benchmarks/every_encoding.py [FOLDER]    # writes results/every-encoding.md; the runs stay in FOLDER
python benchmarks/evidence.py                   # copies the page into the package
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from other_encodings import NOT_KEPT

import posembed
from posembed.lab.advice.candidates import TABLE
from posembed.lab.advice.evidence import MEASURES
from posembed.lab.questions import QUESTIONS
from posembed.nn.encodings import ENCODINGS, Use
from posembed.statistics import Estimate

PAGE = Path(__file__).with_name("results") / "every-encoding.md"
HEAD = """# Every encoding, measured in the same way

    python benchmarks/every_encoding.py

`posembed advise` decides by these numbers. The models are small and trained briefly, so compare the encodings with each
other, not with published values. A cell has the mean over seeds and, in parentheses, the value of each seed. "trained"
marks the size in training: nothing was trained on larger sizes.
"""


@dataclass(frozen=True)
class Section:
    """A study: its title on the page, its question and settings. It shows the main metric."""

    title: str
    use: Use
    question: str
    settings: Mapping[str, Any]
    names: tuple[str, ...] = ()
    """The encodings to measure; empty for all of this use."""


LONGROPE = (1.03, 1.28, 1.62, 3.06, 5.7, 6.5, 7.89, 8.0, 8.0, 8.0, 8.05, 8.08)
"""Factors that LongRoPE's search found for this model (docs/research/measured.md)."""
SECTIONS = {
    "perplexity": Section(
        "Perplexity of the same tokens after this many tokens of context",
        "decoder",
        "lengths",
        {"preset": "quick", "seeds": 3},
        names=(*TABLE["decoder"], *NOT_KEPT),
    ),
    "passkey": Section(
        "Passkeys found, in percent, in texts of this many characters",
        "decoder",
        "passkey",
        {"seeds": 3},
        names=tuple(name for name in (*TABLE["decoder"], *NOT_KEPT) if name != "rope-longrope"),  # factors of the above
    ),
    "accuracy": Section(
        "Accuracy in classifying texts, in percent, by tokens",
        "encoder",
        "text",
        {"seeds": 1},
    ),
    "labels": Section(
        "Entity F1 in labelling words, in percent, by tokens",
        "encoder",
        "tags",
        {"seeds": 3},
    ),
    "images": Section(
        "Accuracy in recognizing digits, in percent, by the side of the image in pixels",
        "images",
        "images",
        {"seeds": 3},
    ),
}
"""The studies by kind, a key of posembed.lab.advice.evidence.MEASURES."""


def main(folder: Path) -> None:
    ENCODINGS.update(NOT_KEPT)
    parts = [HEAD]
    for kind, section in SECTIONS.items():
        names = section.names or tuple(TABLE[section.use])
        factors = {"rope_factors": LONGROPE} if "rope-longrope" in names else {}
        given = {"encodings": names, **section.settings, **factors}
        summary = posembed.compare(section.question, out=folder / kind, **given).summary
        parts.append(written(kind, section, given, summary))
    PAGE.write_text("\n".join(parts), encoding="utf-8")
    print(PAGE)


def written(kind: str, section: Section, given: Mapping[str, Any], summary: Any) -> str:
    """Returns a section of the page: the title, the command, and a table with one encoding per line."""
    trained = summary.axis.trained if summary.axis else summary.spec.train_length
    sizes = [trained if x is None else x for x in summary.xs(summary.headline)]
    heads = ["encoding", *(f"{size}, trained" if size == trained else str(size) for size in sizes)]
    lines = [heads, ["---"] * len(heads)]
    for name in (row.name for row in summary.rows if row.seeds):
        lines.append([name, *(cell(kind, value) for value in summary.by_x(summary.headline, name).values())])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"## {section.title}\n\n    {command(section.question, given)}\n\n{table}"


def command(question: str, given: Mapping[str, Any]) -> str:
    """Returns the command line for the arguments of ``posembed.compare``."""
    values = {name: ",".join(map(str, value)) if isinstance(value, tuple) else value for name, value in given.items()}
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in values.items())
    return " ".join(filter(None, ["posembed compare", QUESTIONS[question].group, question, options]))


def cell(kind: str, value: Estimate | None) -> str:
    """Returns "5.18 (5.10, 5.21, 5.23)", shares in percent; "no position" for None."""
    if value is None:
        return "no position"
    times, digits = (100, 1) if MEASURES[kind].percent else (1, 3)
    mean, *seeds = (f"{times * each:.{digits}f}" for each in (value.value, *value.values))
    return f"{mean} ({', '.join(seeds)})"


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/every-encoding"))
