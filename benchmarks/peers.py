"""Other libraries' encodings, as encodings of the lab's decoder. Each is called as in its own library's model.

benchmarks/requirements.txt installs the libraries. Work that a library does once per forward pass is done once per
forward pass here, and values that it caches between passes are cached.
"""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

from torch import Tensor

from posembed.layers.base import PositionEncoding

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from rotary_embedding_torch import RotaryEmbedding as RotaryOfLucidrains
    from x_transformers.x_transformers import (
        AbsolutePositionalEmbedding,
        AlibiPositionalBias,
        RotaryEmbedding,
        ScaledSinusoidalEmbedding,
        apply_rotary_pos_emb,
    )


def _of_torchtune(name: str) -> Any:
    """Returns a class from torchtune's file of position embeddings. torchtune itself needs an older torchao."""
    found = importlib.util.find_spec("torchtune")
    assert found is not None
    assert found.submodule_search_locations is not None
    file = Path(found.submodule_search_locations[0]) / "modules" / "position_embeddings.py"
    spec = importlib.util.spec_from_file_location("torchtune_position_embeddings", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


PACKAGES = ("x-transformers", "rotary-embedding-torch", "torchtune")


class AddedRows(PositionEncoding):
    """An encoding of x-transformers that adds rows to the tokens."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def at_input(self, x: Tensor, position_ids: Tensor, *, text_length: int | Tensor | None = None) -> Tensor:
        return x + self.layer(x)


class RotaryOfXTransformers(PositionEncoding):
    """Computes frequencies once per forward pass, and their cosines and sines in each layer."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.layer = RotaryEmbedding(head_dim)
        self.frequencies: Any = None

    def at_input(self, x: Tensor, position_ids: Tensor, *, text_length: int | Tensor | None = None) -> Tensor:
        self.frequencies = self.layer.forward_from_seq_len(x.size(1))
        return x

    def at_queries_keys(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, **_: object
    ) -> tuple[Tensor, Tensor]:
        frequencies, scale = self.frequencies
        return apply_rotary_pos_emb(q, frequencies, scale), apply_rotary_pos_emb(k, frequencies, scale)


class AlibiOfXTransformers(PositionEncoding):
    """Caches the bias between forward passes."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.layer = AlibiPositionalBias(heads)

    def at_scores(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        return self.layer(q_positions.numel(), k_positions.numel())


class TurnedByTorchtune(PositionEncoding):
    """Rotates (B, L, H, d). Caches cosines and sines."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.layer = _of_torchtune("RotaryPositionalEmbeddings")(head_dim)

    def at_queries_keys(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, **_: object
    ) -> tuple[Tensor, Tensor]:
        return self.layer(q.transpose(1, 2)).transpose(1, 2), self.layer(k.transpose(1, 2)).transpose(1, 2)


class TurnedByRotaryEmbeddingTorch(PositionEncoding):
    """Caches angles, but not their cosines and sines."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.layer = RotaryOfLucidrains(head_dim)

    def at_queries_keys(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, **_: object
    ) -> tuple[Tensor, Tensor]:
        return self.layer.rotate_queries_or_keys(q), self.layer.rotate_queries_or_keys(k)


def peers(*, length: int, width: int, heads: int) -> dict[str, dict[str, PositionEncoding]]:
    """Returns the peers' encodings by the lab's name of the encoding, then by library."""
    return {
        "learned": {"x-transformers": AddedRows(AbsolutePositionalEmbedding(width, length))},
        "sinusoidal": {"x-transformers": AddedRows(ScaledSinusoidalEmbedding(width))},
        "rope": {
            "x-transformers": RotaryOfXTransformers(width // heads),
            "torchtune": TurnedByTorchtune(width // heads),
            "rotary-embedding-torch": TurnedByRotaryEmbeddingTorch(width // heads),
        },
        "alibi": {"x-transformers": AlibiOfXTransformers(heads)},
    }
