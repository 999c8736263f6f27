"""Problem solving: models train on small problems and are tested on larger problems.

Two encodings compute position ids from the tokens, so that matching digits of the question and the answer share an id.
"abacus" (McLeish et al. 2024, arXiv:2405.17399) numbers the digits of each number from the first digit. "coupled" (Cho
et al. 2024, arXiv:2405.20671) numbers the digits of each number in the question from the last digit. The ids select
rows of a learned table. In training, all ids of a text are shifted by a random number, so that rows past the longest
training problem are trained too.

One shift per text is not enough for models of this size: rows farther apart than the length of a training problem then
never occur in the same text, and the model does not learn to ignore them. In about half of the texts, higher ids are
therefore shifted farther than lower ids, as PoSE (arXiv:2309.10400) shifts the chunks of a text. The prediction across
the resulting gap has weight 0 in the loss.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from posembed.calls import unknown
from posembed.errors import ArgumentError, PositionError
from posembed.lab.measure import TOKENS_AT_ONCE
from posembed.lab.metrics import Measured, by_x
from posembed.lab.model import Decoder, PositionedModel, token_losses
from posembed.lab.tasks.problem_texts import (
    ALPHABET,
    DIGITS,
    EQUALS,
    PADDING,
    PROBLEMS,
    Write,
    addition_written_forwards,
    tokens_read,
)
from posembed.lab.tasks.problems_specs import EXACT, TOKENS, ProblemSpec, wrong_reads
from posembed.lab.tasks.task import Task, build_encoding, draw_seed, torch_seed
from posembed.layers.base import PositionEncoding
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.measure.metrics import Metric
from posembed.nn.encodings import names_for, split_mixture
from posembed.positions.samplers import abacus, coupled

IDS = ("abacus", "coupled")
DIGIT_TOKENS = torch.tensor([ALPHABET.index(digit) for digit in DIGITS])
EQUALS_TOKEN = ALPHABET.index(EQUALS)


class ProblemSolving(Task[ProblemSpec]):
    """Trains on problems of size 1 to ``train_size``, and tests at ``test_sizes``. ``problem``: a key of PROBLEMS."""

    def __init__(self, problem: str) -> None:
        asked = PROBLEMS[problem]
        self.description = f"{problem}: {asked.line}, such as {''.join(asked.write(5, random.Random(0)))}"

    def encoding(self, spec: ProblemSpec) -> PositionEncoding:
        if spec.encoding in IDS:
            # Training shifts ids by up to the largest tested size, so that the last tested rows are trained often. The
            # highest id belongs to the start of the text: size + 3 for addition with coupled ids. Row 0 is for tokens
            # other than digits.
            rows = max(spec.test_sizes) + spec.train_size + 4
            return LearnedPositionalEmbedding(max_len=rows, dim=spec.width, dropout=spec.dropout)
        return build_encoding(spec)

    def model(self, spec: ProblemSpec, encoding: PositionEncoding) -> Decoder:
        sizes = {"layers": spec.layers, "heads": spec.heads}
        return Decoder(len(ALPHABET), spec.width, **sizes, encoding=encoding, dropout=spec.dropout)

    def draw(
        self, spec: ProblemSpec, model: PositionedModel, step: int, rows: slice = slice(None)
    ) -> tuple[Tensor, ...]:
        """Returns token ids (B, L + 1), position ids (L,) or (B, L), and the loss weights (B, L) of the next tokens."""
        drawn, write = random.Random(draw_seed(spec, step)), written_for(spec)
        smallest = spec.train_size if PROBLEMS[spec.problem].tails else 1
        problems = [write(drawn.randint(smallest, spec.train_size), drawn) for _ in range(spec.batch)]
        ids, answers = encode(problems, spec.train_length + 1)
        generator = torch.Generator().manual_seed(torch_seed(spec, step))
        if spec.encoding in IDS:
            position_ids, before_gap = moved(ids_of(spec.encoding, ids), max(spec.test_sizes), generator)
            position_ids, answers = position_ids[:, :-1], answers * ~before_gap
        else:
            position_ids = model.encoding.training_positions(spec.batch, spec.train_length, generator)
        weights = answers * (spec.batch / answers.sum())  # over the whole batch, not a process's share of it
        return ids[rows], position_ids if position_ids.dim() == 1 else position_ids[rows], weights[rows]

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        """Returns the mean cross-entropy of the answer tokens, in nats; question tokens have weight 0."""
        ids, position_ids, weights = batch
        return (token_losses(model(ids[:, :-1], position_ids), ids[:, 1:]) * weights).sum() / len(ids)

    def measure(self, spec: ProblemSpec, model: PositionedModel, accelerator: Accelerator) -> Measured:
        tails = ("", *PROBLEMS[spec.problem].tails)
        known: dict[Metric, dict[int, float | None]] = {
            metric: {} for metric in (map(wrong_reads, tails) if tails[1:] else (EXACT, TOKENS))
        }
        for tail in tails:
            for size in spec.test_sizes:
                tested = right_tokens(spec, model, size, accelerator.device, tail)
                share = None if tested is None else tested[0][tested[1]].double().mean().item()
                if tails[1:]:
                    known[wrong_reads(tail)][size] = None if share is None else 1 - share
                else:
                    known[TOKENS][size] = share
                    known[EXACT][size] = None if tested is None else tested[0].all(dim=1).double().mean().item()
        return Measured(tuple(by_x(known)))

    def tokens_measured(self, spec: ProblemSpec) -> int:
        problems = spec.test_problems * (1 + len(PROBLEMS[spec.problem].tails))
        return problems * sum(tokens_read(spec.problem, size) for size in spec.test_sizes)


def written_for(spec: ProblemSpec, tail: str = "") -> Write:
    """Returns the function that writes the problems. With coupled ids, addition is written as in their paper."""
    if spec.problem == "addition" and spec.encoding == "coupled":
        return addition_written_forwards
    return PROBLEMS[spec.problem].tails[tail] if tail else PROBLEMS[spec.problem].write


def check_encoding(encoding: str, problem: str) -> None:
    """Raises ArgumentError for an unknown encoding, or for ids that do not apply to the problem."""
    applicable = PROBLEMS[problem].ids
    if encoding in IDS and encoding not in applicable:
        solvable = [name for name, other in PROBLEMS.items() if encoding in other.ids]
        raise ArgumentError(
            f"{encoding} ids do not apply to {problem}: its answer does not follow its question digit by digit; "
            f"they apply to {' and '.join(solvable)}"
        )
    if encoding not in applicable:
        try:
            split_mixture(encoding)
        except ArgumentError as error:
            raise unknown("encoding", encoding, [*names_for("decoder"), *applicable], of=f" for {problem}") from error


def encode(problems: Sequence[tuple[str, ...]], length: int) -> tuple[Tensor, Tensor]:
    """Returns token ids (N, length), and loss weights (N, length - 1): 1 if the next token is in an answer, else 0."""
    texts = ["".join(pieces).ljust(length, PADDING) for pieces in problems]
    ids = torch.tensor([[ALPHABET.index(character) for character in text] for text in texts])
    answers = torch.zeros(len(problems), length)
    for row, pieces in zip(answers, problems, strict=True):
        start = 0
        for number, piece in enumerate(pieces):
            row[start : start + len(piece)] = number % 2
            start += len(piece)
    return ids, answers[:, 1:]


@torch.no_grad()
def right_tokens(
    spec: ProblemSpec, model: nn.Module, size: int, device: torch.device, tail: str = ""
) -> tuple[Tensor, Tensor] | None:
    """Returns two boolean tensors (N, L): whether the model predicts the next token from the correct tokens before it
    (always True outside answers), and whether that token is in an answer. Returns None if the encoding has no position
    at this size. Every run gets the same problems. ``tail``: the name of another test distribution.

    All values of a row are True if and only if greedy decoding writes every answer.
    """
    drawn, write = random.Random(f"{spec.problem} {size}{tail and f' {tail}'}"), written_for(spec, tail)
    length = tokens_read(spec.problem, size)
    problems = [write(size, drawn) for _ in range(spec.test_problems)]
    ids, weights = encode(problems, length + 1)
    answers = weights > 0
    position_ids = ids_of(spec.encoding, ids[:, :-1]) if spec.encoding in IDS else torch.arange(length)
    position_ids = position_ids.expand(len(ids), length)
    at_once = max(TOKENS_AT_ONCE // length, 1)
    right = []
    try:
        for some, places in zip(ids.split(at_once), position_ids.split(at_once), strict=True):
            logits = model(some[:, :-1].to(device), places.to(device))
            right.append(logits.argmax(dim=-1).cpu() == some[:, 1:])
    except PositionError:
        return None
    return torch.cat(right) | ~answers, answers


def ids_of(name: str, tokens: Tensor) -> Tensor:
    """Returns the unshifted position ids (B, L) of tokens (B, L), which are used at test time."""
    if name == "abacus":
        return abacus(tokens, DIGIT_TOKENS)
    ids = coupled(tokens, DIGIT_TOKENS, EQUALS_TOKEN)
    # Unlike the paper, we count the token before the first digit as one more digit. So the model finds the end of the
    # answer in the same way as a digit; in the paper, it must infer the end from the absence of a match.
    question = (tokens == EQUALS_TOKEN).cumsum(-1) == 0
    return torch.cat(((ids * question).amax(dim=1, keepdim=True) + 1, ids[:, 1:]), dim=1)


def moved(ids: Tensor, latest: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Returns shifted ids (B, L) for training, and a mask (B, L - 1) of the tokens just before a gap.

    In about half of the sequences, all ids are shifted by one draw from U{0 .. latest}. In the others, ids up to a
    random value are shifted by the smaller of two draws, and higher ids by the larger.
    """
    rows = len(ids)
    shifts = torch.randint(latest + 1, (rows, 2), generator=generator)
    whole = torch.rand(rows, 1, generator=generator) < 0.5
    shifts = torch.where(whole, shifts[:, :1], shifts.sort(dim=1).values)
    # The first token's id, one above the highest digit, is shifted with that digit.
    part = (torch.rand(rows, 1, generator=generator) * (ids[:, 1:].amax(dim=1, keepdim=True) - 1)).long() + 1
    higher = ids > part
    shift = torch.where(higher, shifts[:, 1:], shifts[:, :1])
    before_gap = ~higher[:, :-1] & higher[:, 1:] & (ids[:, :-1] > 0) & (shifts[:, :1] < shifts[:, 1:])
    return torch.where(ids > 0, ids + shift, 0), before_gap
