"""Stores in benchmarks/results/claims.json what the commands of docs/research/claims.md measured.

    posembed compare sharing --encodings one-table,two-tables --seeds 8 --out runs/sharing
    python tools/claims.py runs/sharing

A folder's name is that of its result. Only the metrics that a claim reads are stored. The file also says what each
claim would have to be true of them; tests/test_claims.py compares that with the verdicts on the page.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from posembed.lab.questions import question_of
from posembed.lab.runs.results import RunFolder

STORE = Path(__file__).parents[1] / "benchmarks" / "results" / "claims.json"


def store(folder: Path) -> None:
    held = json.loads(STORE.read_text(encoding="utf-8"))
    question = question_of(folder)
    wanted = {
        (check["metric"], x)
        for claim in held["claims"]
        for check in claim.get("checks", ())
        if check.get("result") == folder.name
        for x in (check.get("x"), check.get("base"))
    }
    frame = question.summarise(RunFolder(folder, question.Spec).results()).frame
    runs = [
        [run.name, run.seed, value.metric, value.x, value.value]
        for run in frame.runs
        for value in run.values
        if (value.metric, value.x) in wanted
    ]
    held["results"][folder.name] = {"question": question.name, "values": runs}
    text = json.dumps(held, indent=1, ensure_ascii=False)
    STORE.write_text(text + "\n", encoding="utf-8")
    print(f"{folder}: {len(runs)} values")


if __name__ == "__main__":
    for each in sys.argv[1:]:
        store(Path(each))
