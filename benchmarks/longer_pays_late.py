"""Does late chunking by a model that was tuned for it pay? Chunks whose subject is named only at the beginning.

    python benchmarks/longer_pays_late.py

A document has four chunks of 63 words. Its name, one of 64, stands only in the first chunk, and each chunk has one of
64 properties. A query is a name and a property, and looks for the chunk among those of 250 documents. A small BERT
with 64 positions is trained from scratch on documents of one chunk. It is then fine-tuned on long documents to tell the
chunks apart: as a longer model, whose chunk vectors are means of token states (late chunks), and at the old length,
with each chunk's vector alone, or plus half of the mean of its document's chunks. Three seeds. Keeps results in
runs/longer-pays-tasks, continues there, and writes benchmarks/results/longer_pays_late.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable

import pages
import torch
import torch.nn.functional as F
from longer_pays_tasks import CLS, PIECES, WIDTH, WORDS, WORK, compared, filler, small_bert, train
from torch import Generator, Tensor, nn

import posembed

NAMES, FIRST_NAME, FIRST_PROPERTY, VOCABULARY = 64, 240, 304, 368
DOCUMENTS, TESTED, TEMPERATURE = 12, 250, 0.05


def draw(count: int, pieces: int, random: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Returns texts (B, L), the name of each document (B,), and the property of each of its chunks (B, P)."""
    texts = filler(count, WORDS * pieces, random)
    names = torch.randint(NAMES, (count,), generator=random)
    properties = torch.rand(count, NAMES, generator=random).argsort(dim=1)[:, :pieces]
    places = torch.rand(count, WORDS, generator=random).argsort(dim=1)
    texts.scatter_(1, places[:, :1], FIRST_NAME + names[:, None])
    texts.scatter_(1, places[:, 1 : 1 + pieces] + WORDS * torch.arange(pieces), FIRST_PROPERTY + properties)
    return texts, names, properties


def states(model: nn.Module, texts: Tensor) -> Tensor:
    """Returns the states of the words, without that of [CLS]: (B, L, D)."""
    return model(F.pad(texts, (1, 0), value=CLS)).last_hidden_state[:, 1:]


def alone(model: nn.Module, texts: Tensor) -> Tensor:
    pieces = texts.unflatten(1, (-1, WORDS))
    return F.normalize(states(model, pieces.flatten(0, 1)).mean(dim=1), dim=-1).unflatten(0, pieces.shape[:2])


def in_context(model: nn.Module, texts: Tensor) -> Tensor:
    chunks = alone(model, texts)
    return F.normalize(chunks + chunks.mean(dim=1, keepdim=True) / 2, dim=-1)


def late(model: nn.Module, texts: Tensor) -> Tensor:
    return F.normalize(states(model, texts).unflatten(1, (-1, WORDS)).mean(dim=2), dim=-1)


def queries(model: nn.Module, names: Tensor, properties: Tensor) -> Tensor:
    """Returns one vector for each chunk: (B, P, D)."""
    words = torch.stack([FIRST_NAME + names[:, None].expand_as(properties), FIRST_PROPERTY + properties], dim=-1)
    return F.normalize(states(model, words.flatten(0, 1)).mean(dim=1), dim=-1).unflatten(0, properties.shape)


Chunks = Callable[[nn.Module, Tensor], Tensor]


def scores(model: nn.Module, chunks: Chunks, drawn: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Returns the similarity of each query and chunk, and whether the chunk is a right answer: both (B P, B P)."""
    texts, names, properties = drawn
    keys = names[:, None] * NAMES + properties
    found = queries(model, names, properties).flatten(0, 1) @ chunks(model, texts).flatten(0, 1).T
    return found, keys.flatten()[:, None] == keys.flatten()


def loss_of(model: nn.Module, chunks: Chunks, pieces: int) -> Callable[[Generator], Tensor]:
    def loss(random: Generator) -> Tensor:
        found, right = scores(model, chunks, draw(DOCUMENTS * PIECES // pieces, pieces, random))
        logits = (found / TEMPERATURE).log_softmax(dim=1)
        return -(logits * right).sum(dim=1).div(right.sum(dim=1)).mean()

    return loss


@torch.inference_mode()
def found_first(model: nn.Module, chunks: Chunks, pieces: int = PIECES) -> list[bool]:
    """Returns for each query whether the nearest chunk is a right one. All models search the same documents."""
    found, right = scores(model, chunks, draw(TESTED, pieces, Generator().manual_seed(10**6)))
    return right[torch.arange(len(found)), found.argmax(dim=1)].tolist()


def run(seed: int, given: argparse.Namespace) -> dict[str, list[bool]]:
    from transformers import AutoModel

    folder = WORK / f"late-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(seed)
    original = small_bert(VOCABULARY)
    train(original, loss_of(original, alone, 1), steps=given.steps, rate=1e-3, seed=seed)
    original.save_pretrained(folder / "old")
    posembed.resize_checkpoint(folder / "old", folder / "new", length=PIECES * (WORDS + 1), method=given.method)

    def loaded(which: str) -> nn.Module:
        return AutoModel.from_pretrained(folder / which, add_pooling_layer=False).train()

    def tuned(which: str, chunks: Chunks) -> list[bool]:
        model = loaded(which)
        loss = loss_of(model, chunks, PIECES)
        train(model, loss, steps=given.tune_steps, rate=given.learning_rate, seed=seed + 1000)
        return found_first(model, chunks)

    return {
        "short documents": found_first(original, alone, 1),
        "original, chunks alone": found_first(original, alone),
        "original, chunks in context": found_first(original, in_context),
        "resized, not tuned, late chunks": found_first(loaded("new"), late),
        "tuned, late chunks": tuned("new", late),
        "tuned at the old length, chunks alone": tuned("old", alone),
        "tuned at the old length, chunks in context": tuned("old", in_context),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", help="how the new rows are first computed")
    parser.add_argument("--steps", type=int, default=1000, help="of the training from scratch")
    parser.add_argument("--tune-steps", type=int, default=500)
    parser.add_argument("--learning-rate", type=float, default=5e-4, help="of the fine-tuning")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    by_seed = []
    for seed in range(given.seeds):
        key = ["late", seed, given.method, given.steps, given.tune_steps, given.learning_rate]
        kept = WORK / f"{'-'.join(map(str, key))}.json"
        if not kept.exists():
            kept.write_text(json.dumps(run(seed, given)))
        by_seed.append(json.loads(kept.read_text()))
        print(seed, {way: round(sum(right) / len(right), 3) for way, right in by_seed[-1].items()}, flush=True)
    lines = ["# Does late chunking by a model that was tuned for it pay?", ""]
    lines += ["    python benchmarks/longer_pays_late.py", "", pages.machine("transformers"), ""]
    lines += [
        "A document has four chunks of 63 words, and its name stands only in the first. Queries are a name and a "
        f"property, and look for the chunk in {TESTED} documents. A BERT with {WORDS + 1} positions, 2 layers of width "
        f"{WIDTH}, trained from scratch on documents of one chunk ({given.steps:,} steps), then fine-tuned on long "
        f"documents ({given.tune_steps:,} steps of {DOCUMENTS} documents). Right: a right chunk is the nearest. The "
        "longer table is “tuned, late chunks”.", "",
    ]  # fmt: skip
    pages.write("longer_pays_late", [*lines, *compared(by_seed, "tuned, late chunks", "short documents")])


if __name__ == "__main__":
    main()
