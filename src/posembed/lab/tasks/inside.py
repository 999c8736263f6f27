"""Next-token prediction with a transformers decoder, in which an encoding replaces the decoder's own positions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posembed.errors import ArgumentError
from posembed.integrations.decoder import GivenDecoder, open_decoder
from posembed.integrations.transformers import replace_positions
from posembed.lab.data.text import Corpus
from posembed.lab.model import PositionedModel
from posembed.lab.runs.spec import with_default_window
from posembed.lab.tasks.language import LanguageModelling
from posembed.lab.tasks.task import build_encoding
from posembed.lab.tasks.text_specs import LengthSpec, load_text
from posembed.layers.base import PositionEncoding
from posembed.layers.extended import ExtendedPositionalEmbedding
from posembed.layers.learned import LearnedPositionalEmbedding


class GivenModel(PositionedModel):
    """A transformers decoder, ``body``, that contains the encoding. It maps token ids (B, L) to logits (B, L, V)."""

    def __init__(self, body: nn.Module, encoding: PositionEncoding) -> None:
        super().__init__()
        self.body, self.encoding = body, encoding

    def forward(self, ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """Returns logits for token ids (B, L). ``position_ids`` is (L,) or (B, L); None means 0 .. L - 1."""
        if position_ids is not None:
            position_ids = position_ids.expand(ids.shape)
        # Without a mask, transformers treats a gap between positions as the start of another text.
        everything = torch.ones_like(ids)
        return self.body(input_ids=ids, attention_mask=everything, position_ids=position_ids, use_cache=False).logits


class InsideGivenModel(LanguageModelling):
    """Next-token prediction with a given decoder, measured at several context lengths."""

    def __init__(self, decoder: GivenDecoder, corpus: Corpus) -> None:
        super().__init__(corpus)
        self.decoder = decoder
        self.description = (
            f"model: {decoder.path} ({decoder.config.model_type}), {start_of(decoder)}\n{self.description}"
        )

    def model(self, spec: LengthSpec, encoding: PositionEncoding) -> PositionedModel:
        return GivenModel(self.decoder.build(encoding), encoding)

    def try_build(self, spec: LengthSpec) -> None:
        replace_positions(self.decoder.trial, self.encoding(spec))

    def encoding(self, spec: LengthSpec) -> PositionEncoding:
        """Builds the encoding. A learned table starts with the decoder's own rows, if the decoder has weights."""
        spec, rows = dataclasses.replace(spec, dropout=0.0), self.decoder.rows  # the model has its own dropout
        encoding = build_encoding(spec)
        if rows is None or type(encoding) not in (LearnedPositionalEmbedding, ExtendedPositionalEmbedding):
            return encoding
        encoding = build_encoding(dataclasses.replace(spec, train_length=max(spec.train_length, len(rows))))
        with torch.no_grad():
            encoding.get_parameter("weight")[: len(rows)] = rows
        return encoding

    def attention(self, spec: LengthSpec, model: PositionedModel, device: torch.device) -> None:
        """Returns None: only the lab's own models return attention weights."""


def start_of(decoder: GivenDecoder) -> str:
    return "from random weights" if decoder.weights is None else "continued from its weights"


def load_inside(chosen: dict[str, Any]) -> tuple[InsideGivenModel, dict[str, Any]]:
    """Loads the text and the decoder that the setting ``model`` names, and sets the decoder's sizes in ``chosen``.
    Returns the task, and the settings that are computed from the files.

    Raises:
        ArgumentError, CheckpointError, DataError: the model cannot be used, or the text cannot be loaded.
    """
    decoder = open_decoder(Path(chosen["model"]).expanduser())
    chosen |= decoder.sizes
    with_default_window(chosen)
    corpus = load_text(chosen, end=decoder.end)
    if corpus.vocabulary > decoder.config.vocab_size:
        raise ArgumentError(
            f"{chosen['model']} has a vocabulary of {decoder.config.vocab_size:,}, and the tokenizer "
            f"{chosen['tokenizer']} needs {corpus.vocabulary:,}; give the model's own tokenizer with --tokenizer, or "
            "another config.json"
        )
    found = {"data_sha256": corpus.sha256, "model_sha256": decoder.sha256, "model_start": start_of(decoder)}
    return InsideGivenModel(decoder, corpus), found
