"""Solving problems: trained on small ones, tested on larger ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.calls import unknown
from posembed.errors import ArgumentError, PositionError
from posembed.lab.encodings import build_encoding, names_for, split_name
from posembed.lab.measure import TOKENS_AT_ONCE
from posembed.lab.model.decoder import Decoder, PositionedModel
from posembed.lab.questions.problems import ProblemSpec, Solved
from posembed.lab.tasks.language import decoder_of
from posembed.lab.tasks.position_ids import IDS, ids_of, latest_start, moved, table_for
from posembed.lab.tasks.problem_texts import ALPHABET, PADDING, PROBLEMS, Write, addition_written_forwards, tokens_read
from posembed.lab.tasks.task import Task, draw_seed
from posembed.layers.base import PositionEncoding

if TYPE_CHECKING:
    from accelerate import Accelerator


class ProblemSolving(Task[ProblemSpec, Solved]):
    """Trains on problems up to ``train_size`` and measures larger ones. ``problem`` is one of PROBLEMS."""

    def __init__(self, problem: str) -> None:
        asked = PROBLEMS[problem]
        self.description = f"{problem}: {asked.line}, such as {''.join(asked.write(5, random.Random(0)))}"

    def check(self, spec: ProblemSpec) -> None:
        check_encoding(spec.encoding, spec.problem)

    def encoding(self, spec: ProblemSpec) -> PositionEncoding:
        if spec.encoding in IDS:
            return table_for(spec.train_size, max(spec.test_sizes), spec.width, spec.dropout)
        return build_encoding(spec)

    def model(self, spec: ProblemSpec, encoding: PositionEncoding) -> Decoder:
        return decoder_of(spec, len(ALPHABET), encoding)

    def draw(
        self, spec: ProblemSpec, model: PositionedModel, step: int, rows: slice = slice(None)
    ) -> tuple[Tensor, ...]:
        """Returns token ids (B, L + 1), position ids (L,) or (B, L), and the weight of each next token, (B, L)."""
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
        weights = answers * (spec.batch / answers.sum())  # over the whole batch, however processes share it
        return ids[rows], position_ids if position_ids.dim() == 1 else position_ids[rows], weights[rows]

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        """Returns the mean cross-entropy of the answers' tokens, in nats; the questions' have weight 0."""
        ids, position_ids, weights = batch
        logits = model(ids[:, :-1], position_ids)
        losses = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
        return (losses * weights.flatten()).sum() / len(ids)

    def measure(self, spec: ProblemSpec, model: PositionedModel, accelerator: Accelerator) -> Solved:
        right = {size: right_tokens(spec, model, size, accelerator.device) for size in spec.test_sizes}
        return Solved(
            {size: None if of is None else of.all(dim=1).double().mean().item() for size, of in right.items()},
            {size: None if of is None else of.double().mean().item() for size, of in right.items()},
        )

    def tokens_measured(self, spec: ProblemSpec) -> int:
        return spec.test_problems * sum(tokens_read(spec.problem, size) for size in spec.test_sizes)


def written_for(spec: ProblemSpec) -> Write:
    """Returns how the problem is written for an encoding: as published, which differs for addition with coupled ids."""
    if spec.problem == "addition" and spec.encoding == "coupled":
        return addition_written_forwards
    return PROBLEMS[spec.problem].write


def check_encoding(encoding: str, problem: str) -> None:
    """Raises ArgumentError for an unknown encoding, or one that does not apply to the problem."""
    applicable = PROBLEMS[problem].ids
    if encoding in applicable:
        return
    if encoding in IDS:
        solvable = [name for name, other in PROBLEMS.items() if encoding in other.ids]
        raise ArgumentError(
            f"{encoding} ids do not apply to {problem}: its answer does not follow its question digit by digit; "
            f"they apply to {' and '.join(solvable)}"
        )
    try:
        split_name(encoding)
    except ArgumentError as error:
        raise unknown("encoding", encoding, [*names_for("decoder"), *applicable], of=f" for {problem}") from error


def encode(problems: Sequence[tuple[str, str]], length: int) -> tuple[Tensor, Tensor]:
    """Returns token ids (N, length), and (N, length - 1) with 1.0 where the next token belongs to the answer."""
    texts = [(question + answer).ljust(length, PADDING) for question, answer in problems]
    ids = torch.tensor([[ALPHABET.index(character) for character in text] for text in texts])
    answers = torch.zeros(len(problems), length - 1)
    for row, (question, answer) in zip(answers, problems, strict=True):
        row[len(question) - 1 : len(question) - 1 + len(answer)] = 1.0
    return ids, answers


@torch.no_grad()
def right_tokens(spec: ProblemSpec, model: nn.Module, size: int, device: torch.device) -> Tensor | None:
    """Returns whether each token of each answer is the most likely one after the correct tokens before it, (N, A),
    or None if the encoding has no position at this size.

    A whole row is True exactly if greedy decoding writes that answer, so one pass measures the exact match of greedy
    decoding. Every run gets the same problems.
    """
    drawn, write = random.Random(f"{spec.problem} {size}"), written_for(spec)
    length = tokens_read(spec.problem, size)
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
