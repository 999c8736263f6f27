"""Learning from text at several context lengths, or with several initial values of a learned table."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias, TypeVar

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.calls import unknown
from posembed.errors import ArgumentError, DataError
from posembed.lab import attention, measure
from posembed.lab.data.text import Corpus
from posembed.lab.metrics import Measured, by_x
from posembed.lab.model import Decoder, Encoder, PositionedModel
from posembed.lab.tasks.objectives import IGNORED, OBJECTIVES
from posembed.lab.tasks.task import Task, torch_seed
from posembed.lab.tasks.text_specs import LanguageSpec, LengthSpec, TableSpec
from posembed.layers.base import PositionEncoding
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.measure.frame import Value
from posembed.tables import fill
from posembed.tables.fill import root_mean_square
from posembed.tables.similarity import neighbour_cosine
from posembed.tables.spectrum import table_spectrum

LanguageT = TypeVar("LanguageT", bound=LanguageSpec)
Losses: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Maps inputs and targets (N, L) to losses (N, L), as ``measure.losses`` does."""
SCALED = ("normal", "sinusoidal")
PLAIN = ("xavier", "sinusoidal", "zero")
PADDING = 0
"""The token id of padding."""


class TaskOnText(Task[LanguageT]):
    """Learning from a corpus, with the objective that the spec names. Subclasses define the measurements."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self.vocabulary = corpus.vocabulary
        about = [*corpus.description.splitlines(), f"{len(corpus.train):,} tokens to train on, "]
        about[-1] += f"{len(corpus.held_out):,} held out"
        self.description = "text: " + "\n      ".join(about)

    def check(self, spec: LanguageT) -> None:
        self.check_lengths(spec, (spec.train_length,))

    def check_lengths(self, spec: LanguageT, test_lengths: tuple[int, ...]) -> None:
        """Raises DataError if there is too little text to train or to measure on, and ArgumentError if lengths are
        drawn for an objective whose model would read the padding."""
        if spec.lengths_drawn is not None and spec.objective != "causal":
            raise ArgumentError(
                f"train_lengths {spec.train_lengths} needs a causal model, which does not see the padding; this one is "
                f"{spec.objective}. Leave train_lengths out"
            )
        if len(self.text(spec)) <= spec.train_length:
            raise DataError(
                f"the text to train on has {len(self.text(spec)):,} tokens, and a training length of "
                f"{spec.train_length:,} needs at least {spec.train_length + 1:,}; give more text, or a shorter "
                "length"
            )
        measure.check(self.corpus.held_out, train_length=spec.train_length, test_lengths=test_lengths)

    def text(self, spec: LanguageT) -> Tensor:
        """Returns the tokens (N,) that a run trains on."""
        return self.corpus.train

    def model(self, spec: LanguageT, encoding: PositionEncoding) -> PositionedModel:
        objective = OBJECTIVES[spec.objective]
        kind, vocabulary = Decoder if objective.causal else Encoder, self.vocabulary + objective.extra_ids
        sizes = {"layers": spec.layers, "heads": spec.heads}
        return kind(vocabulary, spec.width, **sizes, encoding=encoding, dropout=spec.dropout)

    def draw(self, spec: LanguageT, model: PositionedModel, step: int, rows: slice = slice(None)) -> tuple[Tensor, ...]:
        """Returns inputs and targets (B, L), and position ids (L,) or (B, L).

        If the lengths are drawn too, also returns the number of tokens to predict in each row (B,), and the mean of
        these numbers over the rows of all processes. The rest of a row is padding.
        """
        generator = torch.Generator().manual_seed(torch_seed(spec, step))
        text = self.text(spec)
        starts = torch.randint(len(text) - spec.train_length, (spec.batch, 1), generator=generator)
        position_ids = model.encoding.training_positions(spec.batch, spec.train_length, generator)
        ids = text[starts + torch.arange(spec.train_length + 1)].long()
        position_ids = position_ids if position_ids.dim() == 1 else position_ids[rows]
        drawn: tuple[Tensor, ...] = ()
        if spec.lengths_drawn is not None:
            counts = spec.lengths_drawn.draw(spec.batch, generator)
            ids.masked_fill_(torch.arange(spec.train_length + 1) > counts.unsqueeze(1), PADDING)
            drawn = counts[rows], counts.double().mean().float()
        inputs, targets = OBJECTIVES[spec.objective].examples(ids, self.vocabulary, generator)
        return inputs[rows], targets[rows], position_ids, *drawn

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        """Returns the mean cross-entropy of the targets, in nats.

        Padding follows the tokens, so a causal model does not see it. With several processes, the mean of the
        processes' losses is the mean over all tokens, although the processes have different numbers of tokens.
        """
        inputs, targets, position_ids, *drawn = batch
        logits = model(inputs, position_ids)
        if not drawn:
            return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED)
        counts, mean = drawn
        losses = F.cross_entropy(logits.float().transpose(1, 2), targets, reduction="none")
        present = torch.arange(losses.size(1), device=losses.device) < counts.unsqueeze(1)
        return losses.where(present, 0).sum() / (mean * len(targets))

    def held_out_loss(self, spec: LanguageT, model: nn.Module, accelerator: Accelerator) -> float:
        """Returns the mean loss on held-out text in windows of the training length, in nats. Random examples are drawn
        with a fixed seed, so they are the same in every run."""
        objective = OBJECTIVES[spec.objective]
        text = measure.windows(self.corpus.held_out, spec.train_length, spec.test_tokens).repeat(objective.draws, 1)
        inputs, targets = objective.examples(text, self.vocabulary, torch.Generator().manual_seed(0))
        return shared_losses(model, accelerator)(inputs, targets)[targets != IGNORED].mean().item()

    def attention(self, spec: LanguageT, model: PositionedModel, device: torch.device) -> Tensor | None:
        """Returns the mean attention weight by distance, on held-out text at the training length, in the order in which
        the model reads it. Returns None for a model that is not causal, because its distances have two directions."""
        objective, length = OBJECTIVES[spec.objective], spec.train_length
        if not objective.causal:
            return None
        text = measure.windows(self.corpus.held_out, length, attention.SEQUENCES * length)
        inputs, _ = objective.examples(text, self.vocabulary, torch.Generator().manual_seed(0))
        return attention.by_distance(model, inputs, device)


class LanguageModelling(TaskOnText[LengthSpec]):
    """Next-token prediction, measured at several context lengths."""

    def check(self, spec: LengthSpec) -> None:
        self.check_lengths(spec, spec.test_lengths)

    def measure(self, spec: LengthSpec, model: PositionedModel, accelerator: Accelerator) -> Measured:
        known = measure.everything(
            shared_loss(model, accelerator),
            self.corpus.held_out,
            train_length=spec.train_length,
            test_lengths=spec.test_lengths,
            tokens=spec.test_tokens,
            held_out_bytes=self.corpus.held_out_bytes,
        )
        return Measured(tuple(by_x(known)))

    def tokens_measured(self, spec: LengthSpec) -> int:
        return measure.tokens_measured(spec.train_length, spec.test_lengths, spec.test_tokens)


class InitialValues(TaskOnText[TableSpec]):
    """Learning from text with a learned table at the input; measures the loss and how the table changes."""

    def encoding(self, spec: TableSpec) -> LearnedPositionalEmbedding:
        layer = LearnedPositionalEmbedding(max_len=spec.train_length, dim=spec.width, dropout=spec.dropout, init="zero")
        with torch.no_grad():
            layer.weight.copy_(initial_table(spec.init, spec.train_length, spec.width))
        return layer

    def measure(self, spec: TableSpec, model: PositionedModel, accelerator: Accelerator) -> Measured:
        loss = self.held_out_loss(spec, model, accelerator)
        before, after = (m.encoding.get_parameter("weight").detach().cpu() for m in (self.build(spec), model))
        return measured_table(before, after, loss=loss)

    def tokens_measured(self, spec: TableSpec) -> int:
        return spec.test_tokens * OBJECTIVES[spec.objective].draws


def initial_table(init: str, length: int, dim: int) -> Tensor:
    """Returns the table (length, dim) that ``init`` names: "normal-STD" or "sinusoidal-STD", where STD is the root mean
    square; "xavier"; "zero"; or "sinusoidal" as published (amplitude 1). Raises ArgumentError for other names."""
    if init in PLAIN:
        return fill.initial_table(init, length, dim)
    kind, _, scale = init.partition("-")
    if kind not in SCALED or not re.fullmatch(r"\d{1,9}(\.\d+)?|\.\d+", scale):
        scaled = " and ".join(f"{name}-STD" for name in SCALED)
        raise unknown("initial values", init, PLAIN, also=f", and {scaled} with a number, such as normal-0.02")
    return fill.initial_table(kind, length, dim, std=float(scale))


def measured_table(before: Tensor, after: Tensor, *, loss: float) -> Measured:
    """Compares a table's rows (N, D) before and after training. A cosine is None if a table is zero. loss: on held-out
    text in windows of the training length, in nats per token."""
    scale, moved = root_mean_square(before), root_mean_square(after - before)
    cosine = F.cosine_similarity(before.double().flatten(), after.double().flatten(), dim=0).item()
    known: dict[str, float | None] = {
        "held-out loss": loss,
        "perplexity": loss,
        "scale": scale,
        "scale after": root_mean_square(after),
        "moved": moved,
        "times its scale": moved / scale if scale else None,
        "cosine to before": cosine if before.any() and after.any() else None,
        "rank": table_spectrum(before).effective_rank,
        "rank after": table_spectrum(after).effective_rank,
        "neighbours": _mean_neighbour_cosine(before),
        "neighbours after": _mean_neighbour_cosine(after),
    }
    return Measured(tuple(Value(metric, value) for metric, value in known.items()))


def _mean_neighbour_cosine(rows: Tensor) -> float | None:
    return neighbour_cosine(rows).mean().item() if rows.any() and len(rows) > 1 else None


def shared_loss(model: nn.Module, accelerator: Accelerator) -> measure.LossOfTokens:
    """Returns a function from token ids (N, c + 1) to losses (N, c), which works like ``shared_losses``."""
    losses = shared_losses(model, accelerator)
    return lambda ids: losses(ids[:, :-1], ids[:, 1:])


def shared_losses(model: nn.Module, accelerator: Accelerator) -> Losses:
    """Returns ``measure.losses`` with the rows divided among the processes. Each process gets all losses."""
    processes, index = accelerator.num_processes, accelerator.process_index

    def losses(inputs: Tensor, targets: Tensor) -> Tensor:
        if processes == 1:
            return measure.losses(model, inputs, targets, accelerator.device)
        each = -(-len(inputs) // processes)
        rows = torch.arange(index * each, (index + 1) * each) % len(inputs)  # the last process may repeat some rows
        part = measure.losses(model, inputs[rows], targets[rows], accelerator.device)
        return accelerator.gather(part.to(accelerator.device)).cpu()[: len(inputs)]

    return losses
