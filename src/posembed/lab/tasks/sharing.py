"""Sequence-to-sequence problems: an encoder reads a source and a decoder writes its target."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from posembed.errors import PositionError
from posembed.lab.measure import TOKENS_AT_ONCE
from posembed.lab.metrics import Measured
from posembed.lab.model import EncoderDecoder, PositionedModel, TwoSides, token_losses
from posembed.lab.tasks.pairs import END, PADDING, PROBLEMS, START, Pair, held_out_pairs, train_pair
from posembed.lab.tasks.problems_specs import ONE, TABLES, TWO, SharingSpec, measured_pairs
from posembed.lab.tasks.task import Task, draw_seed
from posembed.layers.base import PositionEncoding
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.layers.none import NoPosition
from posembed.nn.encodings import Sizes, encoding_by_name

PADDING_ID = 0
HAS_TABLE = {ONE: (True, True), TWO: (True, True), "encoder-table": (True, False), "decoder-table": (False, True)}


class Rewriting(Task[SharingSpec]):
    """Trains on generated pairs of size 1 to ``train_size``, and tests on held-out pairs at ``test_sizes``."""

    def __init__(self, name: str) -> None:
        self.problem = problem = PROBLEMS[name]
        assert problem.vocabulary[PADDING_ID] == PADDING
        self.ids = {token: index for index, token in enumerate(problem.vocabulary)}
        example = [problem.joined_by.join(side) for side in problem.write(min(problem.train_size, 5), random.Random(0))]
        self.description = f"{name}: {problem.line}, such as {' -> '.join(example)}"

    def check(self, spec: SharingSpec) -> None:
        for size in spec.test_sizes:
            held_out_pairs(spec.problem, size, spec.test_pairs)

    def encoding(self, spec: SharingSpec) -> TwoSides:
        if spec.encoding in TABLES:
            lengths = (spec.source_length, spec.target_length)
            if spec.encoding == ONE:
                both = learned(spec, max(lengths))
                return TwoSides(both, both)
            sides: list[PositionEncoding] = [
                learned(spec, length) if has else NoPosition()
                for length, has in zip(lengths, HAS_TABLE[spec.encoding], strict=True)
            ]
            return TwoSides(*sides)
        each = (
            Sizes(dim=spec.width, heads=spec.heads, causal=causal, dropout=spec.dropout, layers=spec.layers)
            for causal in (False, True)
        )
        return TwoSides(*(encoding_by_name(spec.encoding, sizes) for sizes in each))

    def model(self, spec: SharingSpec, encoding: PositionEncoding) -> EncoderDecoder:
        assert isinstance(encoding, TwoSides)
        sizes = {"layers": spec.layers, "heads": spec.heads}
        return EncoderDecoder(len(self.ids), spec.width, **sizes, encoding=encoding, dropout=spec.dropout)

    def draw(
        self, spec: SharingSpec, model: PositionedModel, step: int, rows: slice = slice(None)
    ) -> tuple[Tensor, ...]:
        """Returns sources (B, S), targets (B, T + 1) and loss weights (B, T), padded to the longest of the batch."""
        drawn = random.Random(draw_seed(spec, step))
        source, target = self.encode([train_pair(self.problem, spec.train_size, drawn) for _ in range(spec.batch)])
        answers = (target[:, 1:] != PADDING_ID).float()
        weights = answers * (spec.batch / answers.sum())  # over the whole batch, not a process's share of it
        return source[rows], target[rows], weights[rows]

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        """Returns the mean cross-entropy of the target tokens, including the end tokens, in nats."""
        source, target, weights = batch
        logits = model(source, target[:, :-1], source != PADDING_ID)
        return (token_losses(logits, target[:, 1:]) * weights).sum() / len(source)

    @torch.no_grad()
    def measure(self, spec: SharingSpec, model: PositionedModel, accelerator: Accelerator) -> Measured:
        exact: dict[int, float | None] = {}
        tokens, nats = dict(exact), dict(exact)
        for size in spec.test_sizes:
            try:
                right, loss, counted = self.scored(model, held_out_pairs(spec.problem, size, spec.test_pairs))
            except PositionError:
                exact[size] = tokens[size] = nats[size] = None
                continue
            exact[size] = (right | ~counted).all(dim=1).double().mean().item()
            tokens[size] = right[counted].double().mean().item()
            nats[size] = loss[counted].mean().item()
        return measured_pairs(spec, exact, tokens, nats)

    def scored(self, model: nn.Module, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns three tensors (N, T) over the tokens of the targets: whether the model predicts the token from the
        correct tokens before it, the loss in nats, and whether the token counts, which padding does not.

        If every token that counts is right, greedy decoding writes exactly this target.
        """
        source, target = self.encode(pairs)
        device = next(model.parameters()).device
        found = []
        for some in torch.arange(len(pairs)).split(max(TOKENS_AT_ONCE // (source.size(1) + target.size(1)), 1)):
            read, written = source[some].to(device), target[some].to(device)
            logits = model(read, written[:, :-1], read != PADDING_ID)
            found.append((logits.argmax(dim=-1) == written[:, 1:], token_losses(logits, written[:, 1:]).double()))
        right, loss = (torch.cat(parts).cpu() for parts in zip(*found, strict=True))
        return right, loss, target[:, 1:] != PADDING_ID

    def encode(self, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
        """Returns the ids of sources (N, S) with end tokens, and of targets (N, T) with start and end tokens."""
        both = zip(*(([*source, END], [START, *target, END]) for source, target in pairs), strict=True)
        sides = [[torch.tensor([self.ids[token] for token in text]) for text in side] for side in both]
        source, target = (nn.utils.rnn.pad_sequence(side, batch_first=True) for side in sides)
        return source, target

    def tokens_measured(self, spec: SharingSpec) -> int:
        return spec.test_pairs * sum(2 + sum(self.problem.longest(size)) for size in spec.test_sizes)


def learned(spec: SharingSpec, length: int) -> LearnedPositionalEmbedding:
    return LearnedPositionalEmbedding(max_len=length, dim=spec.width, dropout=spec.dropout)
