"""Small files in the formats in which GLUE and SQuAD are published."""

from __future__ import annotations

import json
from pathlib import Path

SENTENCES = {
    "sst2": (("sentence", "label"), lambda i: (f"a film {i} ", str(i % 2))),
    "qnli": (("index", "question", "sentence", "label"),
             lambda i: (str(i), f'what is "{i}?', f"it is {i}", ("entailment", "not_entailment")[i % 2])),
    "qqp": (("id", "qid1", "qid2", "question1", "question2", "is_duplicate"),
            lambda i: (str(i), "1", "2", f"how {i}?", f"why {i}?", str(i % 2))),
    "mnli": ((*("index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse"),
              *("sentence1_parse", "sentence2_parse", "sentence1", "sentence2", "label1", "gold_label")),

             lambda i: (*(str(i), "31", "31n", "fiction", "( a )", "( b )", "(ROOT)", "(ROOT)", f"premise {i}",
                          f"so {i}"),
                        *[("neutral", "entailment", "contradiction")[i % 3]] * 2)),
}  # fmt: skip
SENTENCES["mnli-mismatched"] = SENTENCES["mnli"]
"""The columns of GLUE's files, and their rows."""


def written(folder: Path, name: str, rows: list[tuple[str, ...]], head: tuple[str, ...] = ("text", "label")) -> str:
    between = "\t" if name.endswith(".tsv") else ","
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(between.join(row) + "\n" for row in ([head] if head else []) + rows))
    return str(folder / name)


def write_glue(folder: Path, name: str) -> None:
    head, row = SENTENCES[name]
    written(folder, "train.tsv", [row(i) for i in range(12)], head)
    of_mnli = {"mnli": "dev_matched.tsv", "mnli-mismatched": "dev_mismatched.tsv"}
    if name in of_mnli:  # its development set has the labels of five people
        head = (*head[:-1], "label2", "label3", "label4", "label5", head[-1])
        rows = [(*row(i)[:-1], *["neutral"] * 4, row(i)[-1]) for i in range(12, 18)]
    else:
        rows = [row(i) for i in range(12, 18)]
    written(folder, of_mnli.get(name, "dev.tsv"), rows, head)


def paragraph(i: int, *, answers: bool = True) -> dict:
    context = f"In {1900 + i}, the Óscar {i} went to Ana."
    given = [
        {"text": f"Óscar {i}", "answer_start": context.index("Ó")},
        {"text": "Ana", "answer_start": len(context) - 4},
    ]
    return {"context": context, "qas": [{"id": str(i), "question": f"what {i}?", "answers": given if answers else []}]}


def write_squad(folder: Path, *, articles: int = 4) -> None:
    """Files in the format of SQuAD 1.1, with two paragraphs in each article."""
    for part, first in (("train", 0), ("dev", 100)):
        data = [
            {"title": f"{part} {n}", "paragraphs": [paragraph(first + 2 * n + k) for k in range(2)]}
            for n in range(articles)
        ]
        (folder / f"{part}-v1.1.json").write_text(json.dumps({"data": data, "version": "1.1"}), encoding="utf-8")
