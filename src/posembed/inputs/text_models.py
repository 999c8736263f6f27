"""The input layers of text models. A class declares its keys in checkpoints; its constructor builds its parts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from posembed.errors import CheckpointError
from posembed.inputs.base import Declaration
from posembed.inputs.text import FAIRSEQ_PAD_ID, TextInput, TokenEmbedding
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.settings import Amount, Count, Positive, Probability
from posembed.tables.layout import TableLayout


class BertInput(TextInput):
    """Token, type and position rows, then layer norm and dropout: BERT, ELECTRA, ALBERT and DistilBERT (without types).

    For BERT, see Devlin et al. 2019, arXiv:1810.04805.
    If the embeddings are narrower than the model (ELECTRA, ALBERT), ``dim`` is the width of the embeddings. The
    projection to the width of the model is not part of this layer.

    Args:
        token_types: the number of token types (segments); 0 for none.
        dropout: the probability of dropout after the norm, in training.
        eps: the epsilon of the norm.

    Raises:
        ArgumentError: an argument that cannot be used.

    Examples:
        >>> import torch
        >>> from posembed.inputs import BertInput
        >>> layer = BertInput(vocab_size=100, max_len=512, dim=64)
        >>> layer(torch.randint(100, (2, 10))).shape  # (B, L) -> (B, L, D)
        torch.Size([2, 10, 64])
    """

    declaration = Declaration(
        families=("bert", "electra", "albert", "distilbert"),
        prefix="embeddings.",
        tokens="word_embeddings",
        positions="position_embeddings",
        types="token_type_embeddings",
        norm="LayerNorm",
        dropout="dropout",
        keys={  # weights converted from TensorFlow keep its names
            "LayerNorm.weight": ("embeddings.LayerNorm.weight", "embeddings.LayerNorm.gamma"),
            "LayerNorm.bias": ("embeddings.LayerNorm.bias", "embeddings.LayerNorm.beta"),
        },
        optional=("token_type_embeddings",),
    )

    def __init__(
        self,
        *,
        vocab_size: Count,
        max_len: Count,
        dim: Count,
        token_types: Amount = 2,
        dropout: Probability = 0.1,
        eps: Positive = 1e-12,
        pad_id: int | None = 0,
    ) -> None:
        super().__init__()
        self.word_embeddings = TokenEmbedding(vocab_size=vocab_size, dim=dim, pad_id=pad_id)
        self.position_embeddings = LearnedPositionalEmbedding(
            max_len=max_len, dim=dim, dropout=0.0, init="truncated_normal", layout=self.layout(pad_id)
        )
        self.token_type_embeddings = TokenEmbedding(vocab_size=token_types, dim=dim) if token_types else None
        self.LayerNorm = nn.LayerNorm(dim, eps=eps)
        self.dropout = nn.Dropout(dropout)


class RobertaInput(BertInput):
    """BERT's layer with fairseq's positions: RoBERTa, XLM-RoBERTa, CamemBERT, Longformer and MPNet (without types).

    For RoBERTa, see Liu et al. 2019, arXiv:1907.11692.
    Position 0 is in row ``pad_id + 1``, and positions count the tokens other than ``pad_id``, unless
    ``position_ids`` or a mask is given. ``position_ids`` count from 0, as everywhere in posembed; in
    transformers, the ids of these models are row numbers and start at ``pad_id + 1``.

    Args:
        max_len: the number of positions; the 514 rows of RoBERTa's table hold 512 positions.
        pad_id: the padding token, any id. Its token row and the position row of padding are zero and not trained.
        vocab_size, dim, token_types, dropout, eps: as in BertInput.

    Raises:
        ArgumentError: an argument that cannot be used.

    Examples:
        >>> import torch
        >>> from posembed.inputs import RobertaInput
        >>> layer = RobertaInput(vocab_size=100, max_len=512, dim=64)
        >>> layer(torch.randint(100, (2, 10))).shape  # (B, L) -> (B, L, D)
        torch.Size([2, 10, 64])
    """

    declaration = replace(
        BertInput.declaration, families=("roberta", "xlm-roberta", "camembert", "longformer", "mpnet")
    )

    def __init__(
        self,
        *,
        vocab_size: Count,
        max_len: Count,
        dim: Count,
        token_types: Amount = 1,
        dropout: Probability = 0.1,
        eps: Positive = 1e-5,
        pad_id: int = FAIRSEQ_PAD_ID,
    ) -> None:
        super().__init__(
            vocab_size=vocab_size,
            max_len=max_len,
            dim=dim,
            token_types=token_types,
            dropout=dropout,
            eps=eps,
            pad_id=pad_id,
        )

    @classmethod
    def _arguments(cls, config: Mapping[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
        if config.get("model_type") == "mpnet":  # its padding is token 1, even if its config names another
            config = {**config, "pad_token_id": FAIRSEQ_PAD_ID}
        return {"eps": 1e-12, **super()._arguments(config, tensors)}


class GPT1Input(TextInput):
    """Token rows plus position rows, then dropout: the first GPT (Radford et al. 2018), with 512 positions.

    Raises:
        ArgumentError: an argument that cannot be used.

    Examples:
        >>> import torch
        >>> from posembed.inputs import GPT1Input
        >>> layer = GPT1Input(vocab_size=100, max_len=512, dim=64)
        >>> layer(torch.randint(100, (2, 10))).shape  # (B, L) -> (B, L, D)
        torch.Size([2, 10, 64])
    """

    declaration = Declaration(families=("openai-gpt",), tokens="tokens_embed", positions="positions_embed")

    def __init__(self, *, vocab_size: Count, max_len: Count, dim: Count, dropout: Probability = 0.1) -> None:
        super().__init__()
        self.tokens_embed = TokenEmbedding(vocab_size=vocab_size, dim=dim)
        self.positions_embed = LearnedPositionalEmbedding(max_len=max_len, dim=dim, dropout=dropout)


class GPT2Input(TextInput):
    """Token rows plus position rows, then dropout: GPT-2 (Radford et al. 2019), GPT-Neo and GPTBigCode.

    Raises:
        ArgumentError: an argument that cannot be used.

    Examples:
        >>> import torch
        >>> from posembed.inputs import GPT2Input
        >>> layer = GPT2Input(vocab_size=100, max_len=512, dim=64)
        >>> layer(torch.randint(100, (2, 10))).shape  # (B, L) -> (B, L, D)
        torch.Size([2, 10, 64])
    """

    declaration = Declaration(families=("gpt2", "gpt_neo", "gpt_bigcode"), tokens="wte", positions="wpe")

    def __init__(self, *, vocab_size: Count, max_len: Count, dim: Count, dropout: Probability = 0.1) -> None:
        super().__init__()
        self.wte = TokenEmbedding(vocab_size=vocab_size, dim=dim)
        self.wpe = LearnedPositionalEmbedding(max_len=max_len, dim=dim, dropout=dropout, std=0.01)


class CLIPTextInput(TextInput):
    """Token rows plus position rows, without dropout: the text encoders of CLIP (77 positions) and SigLIP (64).

    For CLIP, see Radford et al. 2021, arXiv:2103.00020.

    Raises:
        ArgumentError: an argument that cannot be used.

    Examples:
        >>> import torch
        >>> from posembed.inputs import CLIPTextInput
        >>> layer = CLIPTextInput(vocab_size=100, max_len=512, dim=64)
        >>> layer(torch.randint(100, (2, 10))).shape  # (B, L) -> (B, L, D)
        torch.Size([2, 10, 64])
    """

    declaration = Declaration(
        families=("clip", "clip_text_model", "siglip", "siglip_text_model"),
        prefix="embeddings.",
        tokens="token_embedding",
        positions="position_embedding",
    )

    def __init__(self, *, vocab_size: Count, max_len: Count, dim: Count) -> None:
        super().__init__()
        self.token_embedding = TokenEmbedding(vocab_size=vocab_size, dim=dim)
        self.position_embedding = LearnedPositionalEmbedding(max_len=max_len, dim=dim, dropout=0.0, std=0.01)


class BartInput(TextInput):
    """Token rows (optionally times sqrt(dim)) plus position rows, an optional norm, then dropout: BART, mBART, PLBART.

    For BART, see Lewis et al. 2019, arXiv:1910.13461. Row 2 of its position table is position 0.
    The encoder and the decoder each have an input layer and share their token rows:
    ``decoder_input.embed_tokens = encoder_input.embed_tokens``.

    Args:
        scale: True multiplies the token rows by sqrt(dim).
        norm: True applies a layer norm after the sum.

    Raises:
        ArgumentError: an argument that cannot be used.

    Examples:
        >>> import torch
        >>> from posembed.inputs import BartInput
        >>> layer = BartInput(vocab_size=100, max_len=512, dim=64)
        >>> layer(torch.randint(100, (2, 10))).shape  # (B, L) -> (B, L, D)
        torch.Size([2, 10, 64])
    """

    declaration = Declaration(
        families=("bart", "mbart", "plbart"),
        prefix="{side}.",
        norm="layernorm_embedding",
        dropout="dropout",
        keys={"embed_tokens.weight": ("shared.weight", "{side}.embed_tokens.weight")},
        optional=("layernorm_embedding",),
    )

    def __init__(
        self,
        *,
        vocab_size: Count,
        max_len: Count,
        dim: Count,
        scale: bool = False,
        norm: bool = True,
        dropout: Probability = 0.1,
        pad_id: int | None = 1,
    ) -> None:
        super().__init__()
        self.scale = math.sqrt(dim) if scale else 1.0
        # Scaled or not, the tokens start at the scale of the positions that are added to them.
        self.embed_tokens = TokenEmbedding(vocab_size=vocab_size, dim=dim, std=0.02 / self.scale, pad_id=pad_id)
        self.embed_positions = LearnedPositionalEmbedding(
            max_len=max_len, dim=dim, dropout=0.0, layout=self.layout(pad_id)
        )
        self.layernorm_embedding = nn.LayerNorm(dim) if norm else None
        self.dropout = nn.Dropout(dropout)


class OPTInput(TextInput):
    """Token rows, projected to the model's width if they are narrower (OPT-350m), plus position rows.

    OPT (Zhang et al. 2022, arXiv:2205.01068) has position 0 in row 2 of its table, and computes positions from the
    attention mask: pass ``mask`` if there is padding.

    Args:
        vocab_size, max_len, dim: the numbers of tokens and positions, and the width D of the model.
        token_dim: the width of the token rows. None means D.

    Raises:
        ArgumentError: an argument that cannot be used.

    Examples:
        >>> import torch
        >>> from posembed.inputs import OPTInput
        >>> layer = OPTInput(vocab_size=100, max_len=512, dim=64)
        >>> layer(torch.randint(100, (2, 10))).shape  # (B, L) -> (B, L, D)
        torch.Size([2, 10, 64])
    """

    declaration = Declaration(families=("opt",), prefix="decoder.", projection="project_in", optional=("project_in",))

    def __init__(
        self, *, vocab_size: Count, max_len: Count, dim: Count, token_dim: Count | None = None, pad_id: int | None = 1
    ) -> None:
        super().__init__()
        token_dim = dim if token_dim is None else token_dim
        self.embed_tokens = TokenEmbedding(vocab_size=vocab_size, dim=token_dim, pad_id=pad_id)
        self.embed_positions = LearnedPositionalEmbedding(
            max_len=max_len, dim=dim, dropout=0.0, layout=self.layout(pad_id)
        )
        self.project_in = nn.Linear(token_dim, dim, bias=False) if token_dim != dim else None


class WhisperDecoderInput(TextInput):
    """Token rows plus position rows, then dropout (Radford et al. 2022, arXiv:2212.04356). Whisper has 448 positions.

    The positions of Whisper's encoder are fixed sinusoids.

    Raises:
        ArgumentError: an argument that cannot be used.

    Examples:
        >>> import torch
        >>> from posembed.inputs import WhisperDecoderInput
        >>> layer = WhisperDecoderInput(vocab_size=100, max_len=512, dim=64)
        >>> layer(torch.randint(100, (2, 10))).shape  # (B, L) -> (B, L, D)
        torch.Size([2, 10, 64])
    """

    declaration = Declaration(families=("whisper",), prefix="decoder.")

    def __init__(
        self, *, vocab_size: Count, max_len: Count, dim: Count, dropout: Probability = 0.0, pad_id: int | None = None
    ) -> None:
        super().__init__()
        self.embed_tokens = TokenEmbedding(vocab_size=vocab_size, dim=dim, pad_id=pad_id)
        self.embed_positions = LearnedPositionalEmbedding(
            max_len=max_len, dim=dim, dropout=dropout, layout=self.layout(pad_id)
        )


class ConvS2SInput(TextInput):
    """Token rows plus position rows, then dropout, with zeros at padding (Gehring et al. 2017, arXiv:1705.03122).

    ConvS2S made learned position tables known. A convolution reads past the ends of a sequence, so padding must equal
    the zeros that the convolution pads with. Positions count the tokens other than ``pad_id``, unless ``position_ids``
    or a mask is given. Initial rows are normal with a standard deviation of .1.

    Args:
        pad_id: the padding token. In the position table, row ``pad_id`` belongs to padding and row ``pad_id + 1``
            to position 0.

    Raises:
        ArgumentError: an argument that cannot be used.

    Examples:
        >>> import torch
        >>> from posembed.inputs import ConvS2SInput
        >>> layer = ConvS2SInput(vocab_size=100, max_len=512, dim=64)
        >>> layer(torch.randint(100, (2, 10))).shape  # (B, L) -> (B, L, D)
        torch.Size([2, 10, 64])
    """

    declaration = Declaration(families=None, prefix="{side}.", zero_padding=True)

    def __init__(
        self, *, vocab_size: Count, max_len: Count, dim: Count, dropout: Probability = 0.1, pad_id: int = FAIRSEQ_PAD_ID
    ) -> None:
        super().__init__()
        self.embed_tokens = TokenEmbedding(vocab_size=vocab_size, dim=dim, std=0.1, pad_id=pad_id)
        self.embed_positions = LearnedPositionalEmbedding(
            max_len=max_len, dim=dim, dropout=dropout, std=0.1, layout=self.layout(pad_id)
        )


class TransformerInput(TextInput):
    """Token rows times sqrt(D), plus position rows, then dropout: the Transformer with learned positions.

    This is fairseq's version (Vaswani et al. 2017, arXiv:1706.03762, table 3, row E).
    Tokens start from N(0, 1/D), so that after scaling they have variance 1. Positions start from the paper's sinusoids,
    with variance 1/2, so both have a similar scale. The paper found learned and fixed positions equally good.

    Args:
        dim: the width D, even.
        pad_id: the padding token. If given, positions count the other tokens (unless ``position_ids`` or a mask is
            given), and the position table is fairseq's: row ``pad_id`` belongs to padding and row ``pad_id + 1``
            to position 0.

    Raises:
        ArgumentError: an argument that cannot be used.

    Examples:
        >>> import torch
        >>> from posembed.inputs import TransformerInput
        >>> layer = TransformerInput(vocab_size=100, max_len=512, dim=64)
        >>> layer(torch.randint(100, (2, 10))).shape  # (B, L) -> (B, L, D)
        torch.Size([2, 10, 64])
    """

    declaration = replace(ConvS2SInput.declaration, zero_padding=False)

    def __init__(
        self, *, vocab_size: Count, max_len: Count, dim: Count, dropout: Probability = 0.1, pad_id: int | None = None
    ) -> None:
        super().__init__()
        self.scale = math.sqrt(dim)
        self.embed_tokens = TokenEmbedding(vocab_size=vocab_size, dim=dim, std=dim**-0.5, pad_id=pad_id)
        self.embed_positions = LearnedPositionalEmbedding(
            max_len=max_len, dim=dim, dropout=dropout, init="sinusoidal", layout=self.layout(pad_id)
        )

    @classmethod
    def layout(cls, pad_id: int | None) -> TableLayout:
        return TableLayout() if pad_id is None else super().layout(pad_id)

    @classmethod
    def _config(cls, source: str | Path) -> Mapping[str, Any]:
        settings = super()._config(source)
        for setting in ("no_scale_embedding", "layernorm_embedding"):
            if settings.get(setting):
                raise CheckpointError(f"{source}: trained with {setting}; this layer scales its tokens and has no norm")
        return settings

    @classmethod
    def _arguments(cls, config: Mapping[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
        return {**super()._arguments(config, tensors), "pad_id": FAIRSEQ_PAD_ID}
