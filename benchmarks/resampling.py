"""Which way of resampling a position table is best? Small models, resized by every method, before and after tuning.

    python benchmarks/resampling.py

Trains ViTs on scikit-learn's digits and on generated images with fine detail, at 16 x 16 pixels (8 x 8 patches), and
causal, masked and sentence models on the standard library's source, at 64 bytes; three seeds each. Resizes their tables
to 1.5, 2 and .5 times with every method of ``posembed.resize_table``, and measures each on held-out inputs of the new
size, without and with a short fine-tuning on the same batches. Keeps results in runs/resampling, continues there, and
writes benchmarks/results/resampling.md and docs/images/resampling.png.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pages
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Generator, Tensor, nn

from posembed.comparison import prepare
from posembed.lab.measure import losses, windows
from posembed.lab.model import Classifier, PositionedModel
from posembed.lab.tasks.classification import ImageClassification, patches
from posembed.lab.tasks.objectives import IGNORED, OBJECTIVES
from posembed.layers.images.grid import LearnedGridEmbedding
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.measure.estimates import Comparison, Estimates
from posembed.measure.frame import Frame, Run, Value
from posembed.measure.metrics import Metric
from posembed.tables.layout import TableLayout
from posembed.tables.resize import resize_table
from posembed.tables.resize_methods import GRID, TEXT

WORK, FIGURE = Path("runs/resampling"), pages.RESULTS.parents[1] / "docs" / "images" / "resampling.png"
PATCH, SIDE, WIDTH, BATCH = 2, 16, 48, 32
NOISE = 0.3
DIRECTIONS = torch.tensor([(0, 1), (1, 0), (0, -1), (-1, 0)])
CPU = torch.device("cpu")
ACCURACY = Metric("accuracy", better="high", kind="share")
LOSS = Metric("loss", unit="nats per token")
TIMES = ("untuned", "tuned")

Resize = Callable[[PositionedModel, int, str], PositionedModel]


def distinct(kernels: object, also: Sequence[str] = ()) -> list[str]:
    """Returns the names of a table of methods, without other names of the same method: ("timm", "vit" ...)."""
    other = {"timm", "open-clip", "vit", "siglip2", "qwen3-vl", "longformer", "long-clip", "bert4keras", *also}
    return [name for name in kernels.methods if name not in other]  # type: ignore[attr-defined]


class Images:
    """Digits, or marks: a bright and a dark square of 2 x 2 pixels, 2 or 3 pixels apart at the trained size, in noise.
    Is the dark one on the right, below, on the left or above?"""

    metric, trained, sizes = ACCURACY, SIDE, (8, 24, 32)
    kernels, rate, longer = GRID, 3e-3, 1

    def __init__(self, name: str) -> None:
        self.name = name
        if name == "digits":
            digits = ImageClassification()
            self.train, self.train_labels = digits.train, digits.train_labels
            self.held_out, self.labels, self.classes = digits.held_out, digits.held_out_labels, 10
        else:
            self.train, self.train_labels = marks(8000, Generator().manual_seed(0))
            (self.held_out, self.labels), self.classes = marks(500, Generator().manual_seed(1)), len(DIRECTIONS)

    def build(self, seed: int) -> PositionedModel:
        torch.manual_seed(seed)
        encoding = LearnedGridEmbedding(grid=(SIDE // PATCH,) * 2, dim=WIDTH, dropout=0.0)
        return Classifier(nn.Linear(PATCH**2, WIDTH), WIDTH, self.classes, layers=2, heads=4, encoding=encoding)

    def loss(self, model: PositionedModel, size: int, generator: Generator) -> Tensor:
        chosen = torch.randint(len(self.train), (BATCH,), generator=generator)
        return F.cross_entropy(model(patches(self.train[chosen], size, PATCH)), self.train_labels[chosen])

    def values(self, model: PositionedModel, size: int) -> Tensor:
        logits = torch.cat([model(some) for some in patches(self.held_out, size, PATCH).split(128)])
        return (logits.argmax(dim=1) == self.labels).double()

    def resized(self, model: PositionedModel, size: int, method: str) -> PositionedModel:
        grid, old = (size // PATCH,) * 2, model.encoding
        assert isinstance(old, LearnedGridEmbedding)
        table = resize_table(old.table().detach(), grid=grid, method=method, layout=TableLayout.VIT.on_grid(*old.grid))
        new = copy.deepcopy(model)
        new.encoding = LearnedGridEmbedding.from_state_dict({"pos": table}, grid=grid, dropout=0.0)
        return new

    def methods(self, size: int) -> list[str]:
        """In a larger grid, bilinear interpolation is the same with antialiasing."""
        return distinct(GRID, ("bilinear-antialias",) if size > self.trained else ())


def marks(count: int, random: Generator) -> tuple[Tensor, Tensor]:
    """Draws images (count, 32, 32), which are shrunk for smaller sizes, and labels (count,)."""
    labels = torch.randint(len(DIRECTIONS), (count,), generator=random)
    apart = torch.randint(4, 7, (count, 1), generator=random) * DIRECTIONS[labels]
    first = torch.randint(8, 20, (count, 2), generator=random)
    images = NOISE * torch.randn(count, 32, 32, generator=random)
    pixel = torch.arange(4)
    for corner, value in ((first, 3.0), (first + apart, -3.0)):
        rows, columns = corner[:, :1] + pixel, corner[:, 1:] + pixel
        images[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]] = value
    return images, labels


class Text:
    """Bytes of the standard library's source, of which a causal model predicts the next one."""

    name, metric, trained, sizes = "text", LOSS, 64, (32, 96, 128)
    kernels, rate, longer = TEXT, 6e-3, 1
    question, asked = "lengths", {"encodings": ["learned"]}

    def __init__(self) -> None:
        common = {"preset": "quick", "layers": 2, "width": 64, "device": "cpu", "out": WORK}
        prepared = prepare(self.question, self.asked | common)
        self.task, self.spec = prepared.task, prepared.specs[0]

    def build(self, seed: int) -> PositionedModel:
        model: PositionedModel = self.task.build(replace(self.spec, seed=seed))
        return model

    def loss(self, model: PositionedModel, size: int, generator: Generator) -> Tensor:
        step = int(torch.randint(2**31, (), generator=generator))
        found: Tensor = self.task.loss(model, *self.task.draw(replace(self.spec, train_length=size), model, step))
        return found

    def values(self, model: PositionedModel, size: int) -> Tensor:
        ids = windows(self.task.corpus.held_out, size, 16384)
        return losses(model, ids[:, :-1], ids[:, 1:], CPU).double().mean(dim=1)

    def resized(self, model: PositionedModel, size: int, method: str) -> PositionedModel:
        table, new = model.encoding.table(), copy.deepcopy(model)
        assert table is not None
        rows = resize_table(table.detach(), length=size, method=method)
        new.encoding = LearnedPositionalEmbedding.from_state_dict({"pos": rows}, dropout=0.0)
        return new

    def methods(self, size: int) -> list[str]:
        """Methods that keep the old rows are the same in a shorter table."""
        return distinct(TEXT, ("truncate", *(("hierarchical", "random", "mean") if size < self.trained else ())))


class Masked(Text):
    """The same bytes with 15% hidden as in BERT; a model predicts these from both sides. Trains four times as long."""

    name, longer = "masked", 4
    question, asked = "inits", {"inits": ["normal-0.02"], "model": "masked", "train_length": Text.trained}

    def values(self, model: PositionedModel, size: int) -> Tensor:
        ids = windows(self.task.corpus.held_out, size, 16384).repeat(4, 1)
        inputs, targets = OBJECTIVES["masked"].examples(ids, self.task.vocabulary, Generator().manual_seed(0))
        hidden = (targets != IGNORED).sum(dim=1)
        return (losses(model, inputs, targets, CPU).double().sum(dim=1) / hidden).view(4, -1).mean(dim=0)


class Sentences(Text):
    """Passages of the same bytes in two halves, whose vectors are means over tokens: which second half goes with a
    first one, among 32 in training and among all held-out ones?"""

    name, metric, rate, longer = "sentences", ACCURACY, 5e-4, 2

    def build(self, seed: int) -> PositionedModel:
        torch.manual_seed(seed)
        embedding, width = nn.Embedding(self.task.vocabulary, self.spec.width), self.spec.width
        encoding = LearnedPositionalEmbedding(max_len=self.trained, dim=width, dropout=0.0)
        return Classifier(embedding, width, width, layers=2, heads=4, encoding=encoding, pooling="mean")

    def scores(self, model: PositionedModel, passages: Tensor) -> Tensor:
        halves = [F.normalize(model(half), dim=1) for half in passages.long().chunk(2, dim=1)]
        return halves[0] @ halves[1].T / 0.05

    def loss(self, model: PositionedModel, size: int, generator: Generator) -> Tensor:
        starts = torch.randint(len(self.task.corpus.train) - 2 * size, (BATCH, 1), generator=generator)
        return F.cross_entropy(
            self.scores(model, self.task.corpus.train[starts + torch.arange(2 * size)]), torch.arange(BATCH)
        )

    def values(self, model: PositionedModel, size: int) -> Tensor:
        passages = windows(self.task.corpus.held_out, 2 * max(self.sizes), 512 * 2 * max(self.sizes))[:, : 2 * size]
        return (self.scores(model, passages).argmax(dim=1) == torch.arange(len(passages))).double()


SUBJECTS: dict[str, Callable[[], Images | Text]] = {
    "digits": lambda: Images("digits"),
    "marks": lambda: Images("marks"),
    **{each.name: each for each in (Text, Masked, Sentences)},
}


def train(subject: Images | Text, model: PositionedModel, size: int, steps: int, rate: float, seed: int) -> None:
    """Trains with AdamW and a cosine. The seed determines the batches, which are the same for all methods."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
    generator = Generator().manual_seed(seed)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        subject.loss(model, size, generator).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()


def measured(subject: Images | Text, seed: int, steps: int, tuning: int) -> dict[str, list[float]]:
    """Returns the values of all held-out inputs, by "SIZE METHOD TIME". Reads what is kept, and keeps the rest."""
    WORK.mkdir(parents=True, exist_ok=True)
    kept = WORK / f"{subject.name}-{seed}-{steps}-{tuning}.json"
    found: dict[str, list[float]] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    model, weights = subject.build(seed), kept.with_suffix(".pt")
    if weights.exists():
        model.load_state_dict(torch.load(weights))
        model.eval()
    else:
        train(subject, model, subject.trained, subject.longer * steps, subject.rate, seed)
        torch.save(model.state_dict(), weights)

    def add(key: str, measured_model: PositionedModel, size: int) -> None:
        with torch.no_grad():
            found[key] = [round(value, 5) for value in subject.values(measured_model, size).tolist()]

    if "trained" not in found:
        add("trained", model, subject.trained)
    for size in subject.sizes:
        for method in subject.methods(size):
            if f"{size} {method} tuned" in found:
                continue
            resized = subject.resized(model, size, method).eval()
            add(f"{size} {method} untuned", resized, size)
            train(subject, resized, size, tuning, subject.rate / 3, 1000 + seed)
            add(f"{size} {method} tuned", resized, size)
            kept.write_text(json.dumps(found), encoding="utf-8")
    trained = sum(found["trained"]) / len(found["trained"])
    print(f"{subject.name}, seed {seed}: {trained:.3f} at the trained size", flush=True)
    return found


def estimates(subject: Images | Text, seeds: Sequence[dict[str, list[float]]], time: str) -> Estimates:
    """Returns the estimates of every method, by size, compared with the default method."""
    runs = []
    for seed, found in enumerate(seeds):
        for name in subject.kernels.methods:
            values = tuple(
                Value(subject.metric.name, value, size, item)
                for size in subject.sizes
                for item, value in enumerate(found.get(f"{size} {name} {time}", []))
            )
            if values:
                runs.append(Run(name, seed, values))
    return Estimates(Frame(tuple(runs)), list(dict.fromkeys(run.name for run in runs)), subject.kernels.default)


def ranked(subject: Images | Text, found: Estimates, size: int) -> list[str]:
    """Returns the methods measured at a size, the best first."""
    means = {name: found.mean(subject.metric, name, size) for name in found.names}
    sign = -1 if subject.metric.better == "high" else 1
    known = {name: sign * mean.value for name, mean in means.items() if mean is not None}
    return sorted(known, key=lambda name: known[name])


def cell(compared: Comparison | None, metric: Metric) -> str:
    """Returns a difference with the wider of its intervals."""
    if compared is None:
        return ""
    widest = max(compared.kinds, key=lambda each: (each.high or 0) - (each.low or 0))
    if widest.low is None or widest.high is None:
        return metric.write_comparison(compared.value)
    low, high = metric.write_comparison(widest.low), metric.write_comparison(widest.high)
    verdict = "" if compared.verdict in ("not significant", "unknown") else f", {compared.verdict}"
    return f"{metric.write_comparison(compared.value)} ({low} to {high}{verdict})"


def page(subjects: Sequence[Images | Text], all_found: Sequence[list[dict[str, list[float]]]]) -> Iterable[str]:
    for subject, seeds in zip(subjects, all_found, strict=True):
        metric, default = subject.metric, subject.kernels.default
        trained = ", ".join(f"{sum(found['trained']) / len(found['trained']):.3f}" for found in seeds)
        yield from (f"## {subject.name.capitalize()}", "")
        yield f"{metric.name.capitalize()} at the trained size {subject.trained}, by seed: {trained}."
        for time in TIMES:
            found = estimates(subject, seeds, time)
            by_size = {size: ranked(subject, found, size) for size in subject.sizes}
            yield from ("", f"### {subject.name.capitalize()}, {time}, minus {default}", "")
            heads = (f"{size / subject.trained:g} times" for size in subject.sizes)
            rows = []
            ranks = {
                name: sum(names.index(name) + 1 for names in by_size.values() if name in names)
                / sum(name in names for names in by_size.values())
                for name in found.names
            }
            for name in sorted(found.names, key=lambda each: ranks[each]):
                cells = []
                for size in subject.sizes:
                    mean = found.mean(metric, name, size)
                    difference = cell(found.versus(metric, name, size), metric)
                    cells.append("" if mean is None else f"{metric.write(mean.value)} {difference}".strip())
                rows.append([name, f"{ranks[name]:.1f}", *cells])
            yield from pages.table(["method", "mean rank", *heads], rows)


DIFFERENCE = re.compile(r"([+-]?[\d.]+) \(([+-]?[\d.]+) to ([+-]?[\d.]+)")


def draw(page: str) -> None:
    """Draws the differences of every method from the default on a page of results, with their intervals."""
    import matplotlib.pyplot as plt

    tables = re.findall(r"^### (\w+), (\w+), minus (\S+)\n\n((?:\|.*\n)+)", page.replace("\N{MINUS SIGN}", "-"), re.M)
    names = list(dict.fromkeys(subject for subject, *_ in tables))
    figure, axes = plt.subplots(len(names), 3, figsize=(10, 2.6 * len(names)), layout="constrained", squeeze=False)
    order: dict[str, list[str]] = {}
    for subject, time, default, table in tables:
        heads, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
        cells = {row[0]: [DIFFERENCE.search(cell) for cell in row[2:]] for row in rows if row[0] != default}
        for column, (ax, head) in enumerate(zip(axes[names.index(subject)], heads[2:], strict=True)):
            methods = order.setdefault(f"{subject} {head}", [name for name in cells if cells[name][column]])
            for name in methods:
                found = cells[name][column]
                assert found is not None
                value, low, high = (float(each) for each in found.groups())
                at = methods.index(name) + (0.15 if time == "tuned" else -0.15)
                color = "tab:blue" if time == "tuned" else "tab:grey"
                ax.plot([low, high], [at, at], color=color, linewidth=1)
                ax.plot(value, at, "o", color=color, markersize=4, label=None if methods.index(name) else time)
            ax.set_yticks(range(len(methods)), methods)
            ax.set_ylim(len(methods) - 0.5, -0.5)
            unit = "loss, nats per token" if default == TEXT.default and subject != "Sentences" else "accuracy, points"
            ax.set_title(f"{subject.lower()}, {head}", fontsize=9)
            ax.set_xlabel(f"{unit}, minus {default}", fontsize=8)
            ax.tick_params(labelsize=8)
    for ax in axes.flat:
        ax.axvline(0, color="black", linewidth=0.5)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper right", ncols=2, fontsize=8)
    figure.savefig(FIGURE, dpi=100)
    with Image.open(FIGURE) as image:
        few = image.convert("RGB").quantize(64)
    few.save(FIGURE, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600, help="training steps")
    parser.add_argument("--tuning", type=int, default=20, help="steps of fine-tuning")
    parser.add_argument("--subjects", nargs="+", default=[*SUBJECTS], choices=[*SUBJECTS])
    arguments = parser.parse_args()
    subjects = [SUBJECTS[name]() for name in arguments.subjects]
    found: list[list[dict[str, list[float]]]] = [[] for _ in subjects]
    for seed in range(arguments.seeds):
        for subject, seeds in zip(subjects, found, strict=True):
            seeds.append(measured(subject, seed, arguments.steps, arguments.tuning))
    about = (
        f"Trained for {arguments.steps} steps of {BATCH} (masked four times as long, sentences twice), tuned for "
        f"{arguments.tuning}; {arguments.seeds} seeds. In parentheses, the wider of the 95% intervals over seeds "
        "(Student's t) and over held-out inputs. A difference has a verdict if both exclude 0."
    )
    head = ["# Which way of resampling a position table is best?", "", "    python benchmarks/resampling.py", ""]
    pages.write("resampling", [*head, pages.machine(), "", about, "", *page(subjects, found)])
    draw((pages.RESULTS / "resampling.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
