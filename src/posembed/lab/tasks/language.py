"""Predicting the next token of text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.errors import DataError
from posembed.lab import measure
from posembed.lab.data.text import Corpus
from posembed.lab.encodings import build_encoding
from posembed.lab.model import looking
from posembed.lab.model.decoder import Decoder, PositionedModel
from posembed.lab.runs.spec import TrainingSpec
from posembed.lab.tasks.task import SpecT, Task, draw_seed
from posembed.layers.base import PositionEncoding

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True, kw_only=True)
class LanguageSpec(TrainingSpec):
    QUESTION: ClassVar[str] = "lengths"

    data: str = field(compare=False)
    data_sha256: str
    """Of the text, its split and the tokenizer."""
    tokenizer: str = field(compare=False)
    test_lengths: tuple[int, ...]
    """Ascending."""
    test_tokens: int
    """How much held-out text each length is measured on."""

    @property
    def longest(self) -> int:
        return max(self.train_length, *self.test_lengths)


class LanguageModelling(Task[LanguageSpec, measure.Measurements]):
    """corpus: what to train and to measure on."""

    Spec = LanguageSpec
    Measured = measure.Measurements

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        about = [*corpus.description.splitlines(), f"{len(corpus.train):,} tokens to train on, "]
        about[-1] += f"{len(corpus.held_out):,} held out"
        self.description = "text: " + "\n      ".join(about)

    def check(self, spec: LanguageSpec) -> None:
        if len(self.corpus.train) <= spec.train_length:
            raise DataError(
                f"the text to train on has {len(self.corpus.train):,} tokens, and a training length of "
                f"{spec.train_length:,} needs at least {spec.train_length + 1:,}; give more text, or a shorter "
                "length"
            )
        measure.check(self.corpus.held_out, train_length=spec.train_length, test_lengths=spec.test_lengths)

    def build(self, spec: LanguageSpec) -> Decoder:
        return build_decoder(spec, self.corpus.vocabulary)

    def draw(
        self, spec: LanguageSpec, model: PositionedModel, step: int, rows: slice = slice(None)
    ) -> tuple[Tensor, ...]:
        """Token ids (B, L + 1) and position ids (L,) or (B, L)."""
        generator = torch.Generator().manual_seed(draw_seed(spec, step))
        text = self.corpus.train
        starts = torch.randint(len(text) - spec.train_length, (spec.batch, 1), generator=generator)
        position_ids = model.encoding.training_positions(spec.batch, spec.train_length, generator)
        ids = text[starts[rows] + torch.arange(spec.train_length + 1)].long()
        return ids, position_ids if position_ids.dim() == 1 else position_ids[rows]

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        """ids (B, L + 1) -> the mean cross-entropy of all but the first, in nats."""
        ids, position_ids = batch
        logits = model(ids[:, :-1], position_ids)
        return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())

    def measure(self, spec: LanguageSpec, model: PositionedModel, accelerator: Accelerator) -> measure.Measurements:
        return measure.everything(
            shared_loss(model, accelerator),
            self.corpus.held_out,
            train_length=spec.train_length,
            test_lengths=spec.test_lengths,
            tokens=spec.test_tokens,
            held_out_bytes=self.corpus.held_out_bytes,
        )

    def attention(self, spec: LanguageSpec, model: PositionedModel, device: torch.device) -> Tensor:
        """On held-out text at the training length."""
        length = spec.train_length
        text = measure.windows(self.corpus.held_out, length, looking.SEQUENCES * length)
        return looking.attention_by_distance(model, text[:, :-1], device)

    def tokens_measured(self, spec: LanguageSpec) -> int:
        return measure.tokens_measured(spec.train_length, spec.test_lengths, spec.test_tokens)


def build_decoder(spec: SpecT, vocabulary: int, build: Callable[[SpecT], PositionEncoding] = build_encoding) -> Decoder:
    """The seed decides the weights; those that are not the encoding's are the same for every encoding."""
    torch.manual_seed(spec.seed)
    encoding = build(spec)
    torch.manual_seed(spec.seed)
    return Decoder(
        vocabulary, spec.width, layers=spec.layers, heads=spec.heads, encoding=encoding, dropout=spec.dropout
    )


def shared_loss(model: nn.Module, accelerator: Accelerator) -> measure.LossOfTokens:
    """measure.loss_of_tokens with the rows shared out over the processes, the same result in each."""
    processes, index = accelerator.num_processes, accelerator.process_index

    def loss(ids: Tensor) -> Tensor:
        if processes == 1:
            return measure.loss_of_tokens(model, ids, accelerator.device)
        each = -(-len(ids) // processes)
        rows = torch.arange(index * each, (index + 1) * each) % len(ids)  # the last process may repeat some
        part = measure.loss_of_tokens(model, ids[rows], accelerator.device)
        return accelerator.gather(part.to(accelerator.device)).cpu()[: len(ids)]

    return loss
