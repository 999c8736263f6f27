"""The input layers of GPT (Radford et al. 2018), GPT-2 (Radford et al. 2019) and CLIP's text encoder (2103.00020)."""

from __future__ import annotations

from posembed.inputs.base import Declaration
from posembed.inputs.text import TextInput, TokenEmbedding
from posembed.layers.learned import LearnedPositionalEmbedding


class GPT1Input(TextInput):
    """Token rows plus position rows, then dropout: the first GPT, with 512 positions."""

    declaration = Declaration(
        families=("openai-gpt",),
        tokens="tokens_embed",
        positions="positions_embed",
        settings={"dropout": ("embd_pdrop",)},
    )

    def __init__(self, vocab_size: int, max_len: int, dim: int, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.tokens_embed = TokenEmbedding(vocab_size, dim)
        self.positions_embed = LearnedPositionalEmbedding(max_len, dim, dropout=dropout)


class GPT2Input(TextInput):
    """Token rows plus position rows, then dropout: GPT-2, GPT-Neo and GPTBigCode (StarCoder)."""

    declaration = Declaration(
        families=("gpt2", "gpt_neo", "gpt_bigcode"),
        tokens="wte",
        positions="wpe",
        settings={"dropout": ("embd_pdrop", "embed_dropout")},
    )

    def __init__(self, vocab_size: int, max_len: int, dim: int, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.wte = TokenEmbedding(vocab_size, dim)
        self.wpe = LearnedPositionalEmbedding(max_len, dim, dropout=dropout, std=0.01)


class CLIPTextInput(TextInput):
    """Token rows plus position rows, without dropout: the text encoders of CLIP (77 positions) and SigLIP (64)."""

    declaration = Declaration(
        families=("clip", "clip_text_model", "siglip", "siglip_text_model"),
        prefix="embeddings.",
        tokens="token_embedding",
        positions="position_embedding",
    )

    def __init__(self, vocab_size: int, max_len: int, dim: int) -> None:
        super().__init__()
        self.token_embedding = TokenEmbedding(vocab_size, dim)
        self.position_embedding = LearnedPositionalEmbedding(max_len, dim, dropout=0.0, std=0.01)
