"""Measures every encoding in the same way: the evidence of `posembed advise`. About ten hours on two cores.

python benchmarks/every_encoding.py [FOLDER]    # writes results/every-encoding.md; the runs stay in FOLDER
python benchmarks/evidence.py                   # copies the page into the package
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
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
    leading: tuple[str, ...] = ()
    """Those of them that get three seeds, because much depends on their differences."""


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
        {"seeds": 1},
        names=(
            "alibi",
            "learned-averaged",
            "near-far",
            "none",
            "rope",
            "learned",
            "fox",
            "cable",
            "rolling/none+logn",
            "rolling/path",
            "rolling",
            "rope+window",
            "kerple-power",
            "dape",
            "path",
            "t5",
            "kerple-log",
            "cope",
            "fire",
            "alibi+window",
            "rope-yarn",
            "sinusoidal",
            "bipe-alibi",
            "pope",
            "p-rope",
            "hope",
            "tupe",
            "tupe-r",
            "seqpe",
            "seqpe-losses",
            "bipe-rope",
            "rope-linear",
            "rope-ntk",
            "rope-llama3",
            "learned-interpolated",
            "learned-tiled",
            "learned-hierarchical",
            "learned-random",
            "learned-long",
            "learned-shifted",
            "learned-randomized",
            "learned-skipped",
            "learned-concat",
        ),
        leading=(
            "rolling/none+logn",
            "rolling/path",
            "rope",
            "kerple-log",
            "alibi",
            "learned-averaged",
            "kerple-power",
            "none",
            "rolling",
            "path",
            "cope",
            "rope+window",
            "fox",
            "cable",
            "t5",
            "fire",
            "learned-shifted",
            "hope",
            "learned-randomized",
            "pope",
            "tupe",
            "rope-linear",
            "rope-ntk",
            "p-rope",
            "tupe-r",
            "bipe-rope",
            "learned-concat",
            "alibi+window",
            "sinusoidal",
            "seqpe",
            "learned-skipped",
            "bipe-alibi",
            "near-far",
        ),
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
        commands = [{"encodings": names, **section.settings, **factors}]
        if section.leading:
            commands.append({**section.settings, "encodings": section.leading, "seeds": 3})
        summaries = [posembed.compare(section.question, out=folder / kind, **each).summary for each in commands]
        parts.append(written(kind, section, commands, summaries))
    PAGE.write_text("\n".join(parts), encoding="utf-8")
    print(PAGE)


def written(kind: str, section: Section, commands: Sequence[Mapping[str, Any]], summaries: Sequence[Any]) -> str:
    """Returns a section of the page: the title, the commands, and a table with one encoding per line. A row of a later
    command replaces that of an earlier one."""
    first, trained = summaries[0], summaries[0].axis.trained if summaries[0].axis else summaries[0].spec.train_length
    found = {
        row.name: {trained if x is None else x: value for x, value in each.by_x(each.headline, row.name).items()}
        for each in summaries
        for row in each.rows
        if row.seeds
    }
    sizes = [trained if x is None else x for x in first.xs(first.headline)]
    heads = ["encoding", *(f"{size}, trained" if size == trained else str(size) for size in sizes)]
    lines = [heads, ["---"] * len(heads)]
    lines += [[name, *(cell(kind, value) for value in values.values())] for name, values in found.items()]
    typed = "".join(f"    {command(section.question, each)}\n" for each in commands)
    return f"## {section.title}\n\n{typed}\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


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
