"""One page of every kind that the commands write, with long names, negative numbers and tiny numbers.

``python tests/report/pages.py FOLDER`` writes them to look at.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

HERE = Path(__file__).parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))

import torch  # noqa: E402
from transformers import ViTConfig, ViTModel  # noqa: E402

from evaluated_models import row_of  # noqa: E402
from made_up_runs import run, runs, save  # noqa: E402
from posembed.checkpoints.inspect import inspect_checkpoint  # noqa: E402
from posembed.evaluation.results import Evaluation  # noqa: E402
from posembed.files import write_text  # noqa: E402
from posembed.report.checkpoint import render as checkpoint_page  # noqa: E402
from posembed.report.evaluation import render as evaluation_page  # noqa: E402
from posembed.report.page import write_page  # noqa: E402
from posembed.report.questions import write_report  # noqa: E402
from posembed.report.tuning import render  # noqa: E402
from posembed.tuning.result import Tuned, with_seeds  # noqa: E402
from posembed.tuning.settings import TuneSettings  # noqa: E402
from report.golden import FOLDERS, written  # noqa: E402
from tiny_models import TEXT, saved, tiny_model  # noqa: E402

LONG = "/home/someone/models/sentence-transformers_multi-qa-MiniLM-L6-cos-v1-of-our-own"
"""A path of a checkpoint, longer than a line on a phone."""
SETTINGS = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 32, "intermediate_size": 16}


def values(seed: int, mean: float, *, count: int = 40) -> tuple[float, ...]:
    drawn = random.Random(seed)
    return tuple(mean + drawn.gauss(0, 0.02) for _ in range(count))


def evaluation(
    measure: str, mean: float, lengths: tuple[int, ...], *checkpoints: str, many: bool = False
) -> Evaluation:
    """Every checkpoint, and the baselines of the first, of which the first is the reference."""
    ways = ["chunked at 512, max", "truncated at 512"]
    ways += ["chunked at 512, mean", "chunked at 512 with an overlap of 128, max", "scaled down"] if many else []
    names = [(name, "") for name in checkpoints] + [(checkpoint, way) for checkpoint in checkpoints for way in ways]
    rows = tuple(
        row_of(name, {measure: {n: values(i, mean - i / 100) for n in lengths}}, baseline=way, length=8192)
        for i, (name, way) in enumerate(names)
    )
    kind = "causal" if measure == "perplexity" else "sentences"
    return Evaluation(kind, (measure,), lengths, 40, rows, (f"{LONG}/corpus.jsonl: 40 texts.",), "query")


def tuned(measure: str, mean: float) -> Tuned:
    names = (LONG, f"{LONG}-2048", f"{LONG}-512")
    found = evaluation(measure, mean, (2048,), *names, many=True)
    rows = tuple(row for row in found.rows if row.baseline or row.checkpoint == names[1])
    rows = tuple(sorted(rows, key=lambda row: not row.baseline.startswith("chunked") or row.checkpoint != LONG))
    found = Evaluation(found.kind, found.measures, found.lengths, found.texts, rows, found.notes, found.unit)
    moved = tuple({at: 1e-6 * (at + seed) for at in range(2048)} for seed in range(3))
    chosen = TuneSettings(length=2048, seeds=3, steps=100)
    by = {"tuned": names[1], "old": names[2]}
    return Tuned(Path(names[1]), chosen, 100, with_seeds([found] * 3), by, None, "", 512, moved)


OWN = {"inits": False, "by-task": True, "rows": False, "cost": True, "data-efficiency": False}
"""The questions whose pages have parts of their own, and one of the others; whether with pictures of what tables
learned, which look alike on all pages. The page of many lengths is one of lengths."""


def pages(folder: Path, names: Mapping[str, bool] = dict.fromkeys(FOLDERS, True)) -> Iterator[tuple[str, Path]]:
    """Yields the kind and the path of each page, of the questions with these names and of every other kind."""
    for name, tables in names.items():
        yield name, written(name, tables=tables)
    many = [*runs(2), run("none", (4.2, 80.0, 3000.0, 2e7)), run("sinusoidal+window", (3.9, 8.0, 20.0, 50.0))]
    many.append(run("rope+window", failure="the loss was nan at step 84 of 700; try a lower learning rate"))
    yield "many lengths", write_report(save(folder / "runs", many).path)
    shapes = {"image_size": (32, 96), "patch_size": 16, **SETTINGS}
    models = {
        "line": tiny_model("bert", TEXT),
        "grid": ViTModel(ViTConfig(**shapes)),
        "biases": tiny_model("t5", {"vocab_size": 60, "d_model": 32, "num_layers": 3, "num_heads": 4, "d_kv": 8}),
        "differences": tiny_model(
            "swin", {"image_size": 64, "patch_size": 4, "embed_dim": 32, "depths": [1, 1], "num_heads": [2, 4]}
        ),
    }
    for name, model in models.items():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1e-6 if name == "line" else 1)
        place = saved(model, folder / f"{Path(LONG).name}-{name}")
        yield f"checkpoint {name}", write_page(folder / f"{name}.html", checkpoint_page(inspect_checkpoint(place)))
    for measure, mean in (("recall@10", 0.05), ("perplexity", 0.5)):
        for more in (False, True):
            found = evaluation(measure, mean, (128, 512, 2048, 8192), LONG, f"{LONG}-2048", many=more)
            yield (
                f"evaluate {measure} {more}",
                write_page(folder / f"{measure[:4]}-{more}.html", evaluation_page(found)),
            )
        page = folder / f"tuned-{measure[:4]}.html"
        write_text(page, render(tuned(measure, mean)))
        yield f"tune {measure}", page


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    for kind, path in pages(Path(sys.argv[1])):
        print(kind, path.rename(Path(sys.argv[1]) / f"{kind.replace(' ', '-')}.html"))
