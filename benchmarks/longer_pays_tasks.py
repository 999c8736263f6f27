"""Where does a longer learned table pay? Tasks on long texts and large images, which are generated here.

    python benchmarks/longer_pays_tasks.py

Trains a small BERT of transformers with 64 positions (or a ViT for images of 32 x 32) from scratch on short inputs of a
task, lengthens it with ``posembed.resize_checkpoint``, and fine-tunes it on inputs four times as long. The same
fine-tuning at the old size reads the same inputs in pieces, and its head sees the mean, or the maximum, of the vectors
of the pieces. All are then measured on the same new inputs, in three seeds. Keeps results in runs/longer-pays-tasks,
continues there, and writes benchmarks/results/longer_pays_tasks.md.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pages
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

import posembed
from posembed.statistics import Estimate, estimate

WORK = Path("runs/longer-pays-tasks")
PIECES = 4  # an input of the new size has as many pieces of the old size
WORDS = 63  # of a short text; its 64th token is [CLS]
SIDE = 32  # of a small image, in pixels
KEYS, VALUES = 8, 8
CLS, FIRST_VOTE, FIRST_KEY, FIRST_DEFINITION, FIRST_FILLER, VOCABULARY = 1, 2, 8, 20, 100, 240
GLYPH = 6  # the side of a glyph, in pixels
WIDTH = 64
SHORT_BATCH, LONG_BATCH, TESTED = 32, 16, 1000

Draw = Callable[[int, int, Generator], tuple[Tensor, Tensor]]


# --- tasks -----------------------------------------------------------------------------------------------------------


def filler(count: int, words: int, random: Generator) -> Tensor:
    return torch.randint(FIRST_FILLER, VOCABULARY, (count, words), generator=random)


def places(count: int, start: int, stop: int, number: int, random: Generator) -> Tensor:
    """Draws different places in increasing order: (count, number)."""
    return start + torch.rand(count, stop - start, generator=random).argsort(dim=1)[:, :number].sort(dim=1).values


def look_up(count: int, pieces: int, random: Generator) -> tuple[Tensor, Tensor]:
    """Three definitions in the first half, each of which says the value of a key, and a key in the last quarter: what
    is its value?"""
    words = WORDS * pieces
    texts, rows = filler(count, words, random), torch.arange(count)
    keys = torch.rand(count, KEYS, generator=random).argsort(dim=1)[:, :3]
    values = torch.randint(VALUES, (count, 3), generator=random)
    texts.scatter_(1, places(count, 0, words // 2, 3, random), FIRST_DEFINITION + VALUES * keys + values)
    asked = torch.randint(3, (count,), generator=random)
    place = places(count, words - words // 4, words, 1, random)[:, 0]
    texts[rows, place] = FIRST_KEY + keys[rows, asked]
    return texts, values[rows, asked]


def spread(count: int, pieces: int, random: Generator) -> tuple[Tensor, Tensor]:
    """Nine votes at places all over the text: which side has more?"""
    texts = filler(count, WORDS * pieces, random)
    votes = torch.randint(2, (count, 9), generator=random)
    texts.scatter_(1, places(count, 0, WORDS * pieces, 9, random), FIRST_VOTE + votes)
    return texts, (votes.sum(dim=1) > 4).long()


def glyphs() -> Tensor:
    """Returns eight patterns, which are the same in all runs."""
    return torch.randint(2, (VALUES, GLYPH, GLYPH), generator=Generator().manual_seed(1)).float()


def glyph(count: int, pieces: int, random: Generator) -> tuple[Tensor, Tensor]:
    """One of eight small patterns at any place of a noisy image: which one?"""
    side = SIDE * math.isqrt(pieces)
    images = torch.randn(count, side, side, generator=random) / 2
    label = torch.randint(VALUES, (count,), generator=random)
    tops, lefts = torch.randint(side - GLYPH, (2, count), generator=random).tolist()
    for image, top, left, pattern in zip(images, tops, lefts, glyphs()[label], strict=True):
        image[top : top + GLYPH, left : left + GLYPH] += 2 * pattern
    return images.unsqueeze(1).expand(-1, 3, -1, -1), label


SIZES = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 4 * WIDTH}
START = {"initializer_range": 0.1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def small_bert(vocabulary: int = VOCABULARY) -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=vocabulary, max_position_embeddings=WORDS + 1, **SIZES, **START)
    return BertModel(config, add_pooling_layer=False)


def small_vit() -> nn.Module:
    from transformers import ViTConfig, ViTModel

    return ViTModel(ViTConfig(image_size=SIDE, patch_size=4, **SIZES, **START), add_pooling_layer=False)


@dataclass(frozen=True)
class Task:
    draw: Draw
    classes: int
    steps: int  # of the training from scratch
    model: Callable[[], nn.Module] = small_bert
    resize: tuple[str, int] = ("length", PIECES * (WORDS + 1))


TASKS = {
    "look up": Task(look_up, VALUES, 3000),
    "spread": Task(spread, 2, 1000),
    "glyph": Task(glyph, VALUES, 2000, small_vit, ("image_size", 2 * SIDE)),
}


# --- models ----------------------------------------------------------------------------------------------------------


def in_pieces(inputs: Tensor) -> Tensor:
    """Cuts texts (B, L) or images (B, C, S, S) into pieces of the old size: (B, P, ...)."""
    if inputs.dim() == 2:
        return inputs.unflatten(1, (-1, WORDS))
    tiles = inputs.unfold(2, SIDE, SIDE).unfold(3, SIDE, SIDE)
    return tiles.permute(0, 2, 3, 1, 4, 5).flatten(1, 2)


def scaled(inputs: Tensor) -> Tensor:
    return F.interpolate(inputs, (SIDE, SIDE), mode="bilinear", antialias=True)


class Reader(nn.Module):
    """A model of transformers with a head on the vector of its first token, or on that of several pieces."""

    def __init__(self, model: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.model, self.head = model, head

    def vectors(self, inputs: Tensor) -> Tensor:
        if inputs.dim() == 2:
            inputs = F.pad(inputs, (1, 0), value=CLS)
        return self.model(inputs).last_hidden_state[:, 0]

    def pieces(self, inputs: Tensor) -> Tensor:
        pieces = in_pieces(inputs)
        return self.vectors(pieces.flatten(0, 1)).unflatten(0, pieces.shape[:2])


READ: dict[str, Callable[[Reader, Tensor], Tensor]] = {
    "whole": lambda reader, inputs: reader.head(reader.vectors(inputs)),
    "mean": lambda reader, inputs: reader.head(reader.pieces(inputs).mean(dim=1)),
    "max": lambda reader, inputs: reader.head(reader.pieces(inputs).amax(dim=1)),
    "mean of answers": lambda reader, inputs: reader.head(reader.pieces(inputs)).log_softmax(-1).mean(dim=1),
    "first": lambda reader, inputs: reader.head(reader.pieces(inputs)[:, 0]),
    "surest": lambda reader, inputs: surest(reader.head(reader.pieces(inputs)).log_softmax(-1)),
    "scaled": lambda reader, inputs: reader.head(reader.vectors(scaled(inputs))),
}


def surest(answers: Tensor) -> Tensor:
    """Returns the answer of the piece that is surest of its own: (B, P, classes) to (B, classes)."""
    piece = answers.amax(dim=2).argmax(dim=1)
    return answers[torch.arange(len(answers)), piece]


def train(model: nn.Module, loss: Callable[[Generator], Tensor], *, steps: int, rate: float, seed: int) -> None:
    random = Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rate, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        loss(random).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def loss_of(reader: Reader, task: Task, read: str, pieces: int) -> Callable[[Generator], Tensor]:
    def loss(random: Generator) -> Tensor:
        inputs, labels = task.draw(SHORT_BATCH if pieces == 1 else LONG_BATCH, pieces, random)
        return F.cross_entropy(READ[read](reader, inputs), labels)

    return loss


@torch.inference_mode()
def right(reader: Reader, task: Task, read: str, pieces: int = PIECES) -> list[bool]:
    """Returns for each test input whether the answer is right. All models read the same ones."""
    inputs, labels = task.draw(TESTED, pieces, Generator().manual_seed(10**6))
    answers = torch.cat([READ[read](reader, some).argmax(-1) for some in inputs.split(100)])
    return (answers == labels).tolist()


def run(name: str, seed: int, given: argparse.Namespace) -> dict[str, list[bool]]:
    """Returns for each way to read long inputs which of them are answered correctly."""
    from transformers import AutoModel

    task, folder = TASKS[name], WORK / f"{name}-{seed}".replace(" ", "-")
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(seed)
    head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, task.classes))
    original = Reader(task.model(), head)
    steps = max(20, int(task.steps * given.scale))
    train(original, loss_of(original, task, "whole", 1), steps=steps, rate=1e-3, seed=seed)
    original.model.save_pretrained(folder / "old")
    torch.save(original.head.state_dict(), folder / "head.pt")
    option, size = task.resize
    posembed.resize_checkpoint(folder / "old", folder / "new", method=given.method, **{option: size})

    def loaded(which: str) -> Reader:
        model = AutoModel.from_pretrained(folder / which, add_pooling_layer=False)
        head.load_state_dict(torch.load(folder / "head.pt", weights_only=True))
        return Reader(model, head).train()

    def tuned(which: str, read: str) -> list[bool]:
        reader = loaded(which)
        tune_steps = max(20, int(given.tune_steps * given.scale))
        loss = loss_of(reader, task, read, PIECES)
        train(reader, loss, steps=tune_steps, rate=given.learning_rate, seed=seed + 1000)
        return right(reader, task, read)

    ways = ("first", "mean of answers", "surest", *(("scaled",) if task.model is small_vit else ()))
    found = {"short inputs": right(original, task, "whole", pieces=1)}
    found |= {f"original: {way}": right(original, task, way) for way in ways}
    found |= {"resized, not tuned": right(loaded("new"), task, "whole"), "tuned, whole": tuned("new", "whole")}
    trained = ("mean", "max", *(("scaled",) if task.model is small_vit else ()))
    found |= {f"tuned at the old size: {way}": tuned("old", way) for way in trained}
    return found


# --- the page --------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--method", help="how the new rows are first computed")
    parser.add_argument("--tune-steps", type=int, default=500)
    parser.add_argument("--learning-rate", type=float, default=5e-4, help="of the fine-tuning")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of all steps; the page is kept only with 1")
    given = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    lines = ["# Where does a longer learned table pay? Generated tasks", ""]
    lines += ["    python benchmarks/longer_pays_tasks.py", "", pages.machine("transformers"), ""]
    lines += [
        f"A BERT with {WORDS + 1} positions, or a ViT for images of {SIDE} x {SIDE} pixels, with 2 layers of width "
        f"{WIDTH}, is trained from scratch on short inputs. It is then fine-tuned on inputs of {PIECES} times the size "
        f"in {given.tune_steps} steps of {LONG_BATCH}: resized and on whole inputs, or at the old size and on pieces "
        "of them, whose vectors are averaged, or of which the largest values count, before the head. "
        f"{TESTED:,} other inputs measure the share of right answers. The longer table is “tuned, whole”.", "",
    ]  # fmt: skip
    for name in given.tasks:
        by_seed = []
        for seed in range(given.seeds):
            key = [
                str(value) for value in (name, seed, given.method, given.tune_steps, given.learning_rate, given.scale)
            ]
            kept = WORK / f"{'-'.join(key)}.json".replace(" ", "-")
            if not kept.exists():
                kept.write_text(json.dumps(run(name, seed, given)))
            by_seed.append(json.loads(kept.read_text()))
            print(
                name,
                seed,
                {way: f"{sum(answers) / len(answers):.3f}" for way, answers in by_seed[-1].items()},
                flush=True,
            )
        lines += [f"## {name.capitalize()}", "", " ".join(str(TASKS[name].draw.__doc__).split()), ""]
        lines += compared(by_seed, "tuned, whole", "short inputs")
    pages.write("longer_pays_tasks", lines, keep=given.scale == 1)


def compared(by_seed: Sequence[dict[str, list[bool]]], longer: str, short: str) -> list[str]:
    """Returns a table of the shares of right answers, and of the differences between the longer table and the rest."""
    tested = len(by_seed[0][longer])

    def row(way: str) -> list[str]:
        shares = [sum(found[way]) / len(found[way]) for found in by_seed]
        cells = [way, f"{sum(shares) / len(shares):.3f}", ", ".join(f"{share:.3f}" for share in shares)]
        if way in (longer, short):
            return [*cells, "", ""]
        pairs = [(found[longer], found[way]) for found in by_seed]
        by_input = [sum(a[i] - b[i] for a, b in pairs) / len(pairs) for i in range(tested)]
        seeds = [(sum(a) - sum(b)) / tested for a, b in pairs]
        return [*cells, shown(estimate(by_input)), shown(estimate(seeds))]

    head = ["read by", "right", "by seed", "the longer table is better by (interval over inputs)", "over seeds"]
    return pages.table(head, map(row, by_seed[0]))


def shown(difference: Estimate) -> str:
    half = "" if difference.high is None else f" ± {difference.high - difference.value:.3f}"
    return f"{difference.value:+.3f}{half}"


if __name__ == "__main__":
    main()
