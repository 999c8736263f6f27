"""Learning to solve small problems, and being measured on larger ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.errors import ArgumentError, PositionError
from posembed.lab.encodings import build_encoding, names_for, split_name
from posembed.lab.model.decoder import Decoder, PositionedModel
from posembed.lab.tasks.algorithms.position_ids import IDS, ids_of, latest_start, moved, table_for
from posembed.lab.tasks.algorithms.problems import ALPHABET, PADDING, PROBLEMS
from posembed.lab.tasks.algorithms.spec import AlgorithmSpec, require_known, tokens_fed, written_for
from posembed.lab.tasks.language import build_decoder
from posembed.lab.tasks.task import Task, draw_seed
from posembed.layers.base import PositionEncoding

if TYPE_CHECKING:
    from accelerate import Accelerator

TOKENS_AT_ONCE = 16384


@dataclass(frozen=True)
class Solved:
    """Shares by problem size; None where the encoding has no position."""

    exact_match: dict[int, float | None]
    """Of problems whose whole answer is right."""
    token_accuracy: dict[int, float | None]
    """Of the answers' tokens, each given the right ones before it."""


class Algorithm(Task[AlgorithmSpec, Solved]):
    """problem: one of PROBLEMS. Raises ArgumentError for another."""

    Spec = AlgorithmSpec
    Measured = Solved

    def __init__(self, problem: str) -> None:
        require_known(problem)
        asked = PROBLEMS[problem]
        self.description = f"{problem}: {asked.line}, such as {''.join(asked.write(5, random.Random(0)))}"

    def check(self, spec: AlgorithmSpec) -> None:
        check_encoding(spec.encoding, spec.problem)

    def build(self, spec: AlgorithmSpec) -> Decoder:
        return build_decoder(spec, len(ALPHABET), encoding_of)

    def draw(
        self, spec: AlgorithmSpec, model: PositionedModel, step: int, rows: slice = slice(None)
    ) -> tuple[Tensor, ...]:
        """Token ids (B, L + 1), position ids (L,) or (B, L), and how much each next token counts, (B, L)."""
        drawn, write = random.Random(draw_seed(spec, step)), written_for(spec)
        problems = [write(drawn.randint(1, spec.train_size), drawn) for _ in range(spec.batch)]
        ids, answers = encode(problems, spec.train_length + 1)
        generator = torch.Generator().manual_seed(draw_seed(spec, step))
        if spec.encoding in IDS:
            latest = latest_start(max(spec.test_sizes))
            position_ids, before_gap = moved(ids_of(spec.encoding, ids), latest, generator)
            position_ids, answers = position_ids[:, :-1], answers * ~before_gap
        else:
            position_ids = model.encoding.training_positions(spec.batch, spec.train_length, generator)
        weights = answers * (spec.batch / answers.sum())  # of the whole batch, however it is shared out
        return ids[rows], position_ids if position_ids.dim() == 1 else position_ids[rows], weights[rows]

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        """The mean cross-entropy of the answers' tokens, in nats; the questions' do not count."""
        ids, position_ids, weights = batch
        logits = model(ids[:, :-1], position_ids)
        losses = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
        return (losses * weights.flatten()).sum() / len(ids)

    def measure(self, spec: AlgorithmSpec, model: PositionedModel, accelerator: Accelerator) -> Solved:
        right = {size: right_tokens(spec, model, size, accelerator.device) for size in spec.test_sizes}
        return Solved(
            {size: None if of is None else of.all(dim=1).double().mean().item() for size, of in right.items()},
            {size: None if of is None else of.double().mean().item() for size, of in right.items()},
        )

    def tokens_measured(self, spec: AlgorithmSpec) -> int:
        return spec.test_problems * sum(tokens_fed(spec.problem, size) for size in spec.test_sizes)


def check_encoding(encoding: str, problem: str) -> None:
    """Raise ArgumentError for an encoding that is not known, or that cannot do what the problem asks."""
    applicable = PROBLEMS[problem].ids
    if encoding in applicable:
        return
    if encoding in IDS:
        solvable = [name for name, other in PROBLEMS.items() if encoding in other.ids]
        raise ArgumentError(
            f"{encoding} ids do not apply to {problem}: its answer does not go digit by digit with its question; "
            f"they apply to {' and '.join(solvable)}"
        )
    try:
        split_name(encoding)
    except ArgumentError as error:
        known = ", ".join([*names_for("decoder"), *applicable])
        raise ArgumentError(f"unknown encoding {encoding!r} for {problem}; known are {known}") from error


def encoding_of(spec: AlgorithmSpec) -> PositionEncoding:
    if spec.encoding in IDS:
        return table_for(spec.train_size, max(spec.test_sizes), spec.width, spec.dropout)
    return build_encoding(spec)


def encode(problems: Sequence[tuple[str, str]], length: int) -> tuple[Tensor, Tensor]:
    """Questions and answers -> token ids (N, length); and 1.0 where the next is the answer's: (N, length - 1)."""
    texts = [(question + answer).ljust(length, PADDING) for question, answer in problems]
    ids = torch.tensor([[ALPHABET.index(character) for character in text] for text in texts])
    answers = torch.zeros(len(problems), length - 1)
    for row, (question, answer) in zip(answers, problems, strict=True):
        row[len(question) - 1 : len(question) - 1 + len(answer)] = 1.0
    return ids, answers


@torch.no_grad()
def right_tokens(spec: AlgorithmSpec, model: nn.Module, size: int, device: torch.device) -> Tensor | None:
    """(N, A): is each token of each answer the likeliest, given the right ones before it? None: no position.

    All of an answer's are right exactly if the model, left to write the likeliest token each time, writes that
    answer; so this one pass tells the exact match of greedy decoding. Every run gets the same problems.
    """
    drawn, write, length = (
        random.Random(f"{spec.problem} {size}"),
        written_for(spec),
        tokens_fed(spec.problem, size),
    )
    problems = [write(size, drawn) for _ in range(spec.test_problems)]
    ids, _ = encode(problems, length + 1)
    answer = slice(-len(problems[0][1]), None)
    position_ids = ids_of(spec.encoding, ids[:, :-1]) if spec.encoding in IDS else torch.arange(length)
    position_ids = position_ids.expand(len(ids), length)
    at_once = max(TOKENS_AT_ONCE // length, 1)
    right = []
    try:
        for some, places in zip(ids.split(at_once), position_ids.split(at_once), strict=True):
            logits = model(some[:, :-1].to(device), places.to(device))
            right.append(logits[:, answer].argmax(dim=-1).cpu() == some[:, answer])
    except PositionError:
        return None
    return torch.cat(right)
