"""Next-token prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.errors import DataError
from posembed.lab import measure
from posembed.lab.data.text import Corpus
from posembed.lab.model import looking
from posembed.lab.model.decoder import Decoder, PositionedModel
from posembed.lab.questions.lengths import LanguageSpec, LengthSpec
from posembed.lab.runs.spec import MeasuredT, TrainingSpec
from posembed.lab.tasks.task import Task, draw_seed
from posembed.layers.base import PositionEncoding

if TYPE_CHECKING:
    from accelerate import Accelerator

LanguageT = TypeVar("LanguageT", bound=LanguageSpec)


class TaskOnText(Task[LanguageT, MeasuredT]):
    """Next-token prediction on a corpus; subclasses say what is measured."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        about = [*corpus.description.splitlines(), f"{len(corpus.train):,} tokens to train on, "]
        about[-1] += f"{len(corpus.held_out):,} held out"
        self.description = "text: " + "\n      ".join(about)

    def check_lengths(self, spec: LanguageT, test_lengths: tuple[int, ...]) -> None:
        """Raises DataError if there is too little text to train or to measure on."""
        if len(self.corpus.train) <= spec.train_length:
            raise DataError(
                f"the text to train on has {len(self.corpus.train):,} tokens, and a training length of "
                f"{spec.train_length:,} needs at least {spec.train_length + 1:,}; give more text, or a shorter "
                "length"
            )
        measure.check(self.corpus.held_out, train_length=spec.train_length, test_lengths=test_lengths)

    def model(self, spec: LanguageT, encoding: PositionEncoding) -> Decoder:
        return decoder_of(spec, self.corpus.vocabulary, encoding)

    def draw(self, spec: LanguageT, model: PositionedModel, step: int, rows: slice = slice(None)) -> tuple[Tensor, ...]:
        """Returns token ids (B, L + 1) and position ids (L,) or (B, L)."""
        generator = torch.Generator().manual_seed(draw_seed(spec, step))
        text = self.corpus.train
        starts = torch.randint(len(text) - spec.train_length, (spec.batch, 1), generator=generator)
        position_ids = model.encoding.training_positions(spec.batch, spec.train_length, generator)
        ids = text[starts[rows] + torch.arange(spec.train_length + 1)].long()
        return ids, position_ids if position_ids.dim() == 1 else position_ids[rows]

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        """Returns the mean cross-entropy of ids (B, L + 1), all but the first of each row, in nats."""
        ids, position_ids = batch
        logits = model(ids[:, :-1], position_ids)
        return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())

    def attention(self, spec: LanguageT, model: PositionedModel, device: torch.device) -> Tensor:
        """Measures it on held-out text at the training length."""
        length = spec.train_length
        text = measure.windows(self.corpus.held_out, length, looking.SEQUENCES * length)
        return looking.attention_by_distance(model, text[:, :-1], device)


class LanguageModelling(TaskOnText[LengthSpec, measure.Measurements]):
    """Next-token prediction, measured at several context lengths."""

    def check(self, spec: LengthSpec) -> None:
        self.check_lengths(spec, spec.test_lengths)

    def measure(self, spec: LengthSpec, model: PositionedModel, accelerator: Accelerator) -> measure.Measurements:
        return measure.everything(
            shared_loss(model, accelerator),
            self.corpus.held_out,
            train_length=spec.train_length,
            test_lengths=spec.test_lengths,
            tokens=spec.test_tokens,
            held_out_bytes=self.corpus.held_out_bytes,
        )

    def tokens_measured(self, spec: LengthSpec) -> int:
        return measure.tokens_measured(spec.train_length, spec.test_lengths, spec.test_tokens)


def decoder_of(spec: TrainingSpec, vocabulary: int, encoding: PositionEncoding) -> Decoder:
    return Decoder(
        vocabulary, spec.width, layers=spec.layers, heads=spec.heads, encoding=encoding, dropout=spec.dropout
    )


def shared_loss(model: nn.Module, accelerator: Accelerator) -> measure.LossOfTokens:
    """Returns ``measure.loss_of_tokens`` with its rows shared by the processes; each gets the whole result."""
    processes, index = accelerator.num_processes, accelerator.process_index

    def loss(ids: Tensor) -> Tensor:
        if processes == 1:
            return measure.loss_of_tokens(model, ids, accelerator.device)
        each = -(-len(ids) // processes)
        rows = torch.arange(index * each, (index + 1) * each) % len(ids)  # the last process may repeat some
        part = measure.loss_of_tokens(model, ids[rows], accelerator.device)
        return accelerator.gather(part.to(accelerator.device)).cpu()[: len(ids)]

    return loss
