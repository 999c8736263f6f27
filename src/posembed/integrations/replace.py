"""``posembed.replace_positions``: puts any encoding into a model of transformers or timm."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

from posembed.arguments import checks_arguments
from posembed.errors import ArgumentError
from posembed.layers.base import PositionEncoding

Model = TypeVar("Model", bound=nn.Module)


@checks_arguments
def replace_positions(model: Model, encoding: PositionEncoding | str, **sizes: Any) -> Model:
    """Replaces the position table of a model of transformers or timm with an encoding, in place. Returns the model.

    Args:
        model: a model with one learned position table. In transformers, an encoder or decoder that uses the library's
            attention interface (BERT, RoBERTa, GPT-2, OPT, ViT, ...). In timm, a VisionTransformer with timm's standard
            attention.
        encoding: a PositionEncoding, or its name in ``posembed.nn.ENCODINGS``.
        sizes: fields of ``posembed.nn.Sizes``, such as ``window=256``, for an encoding given by its name.

    Raises:
        ArgumentError: the model is from another library, or cannot be changed.

    Examples:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> from posembed import replace_positions
        >>> config = GPT2Config(n_layer=1, n_head=2, n_embd=32, n_positions=64, vocab_size=100)
        >>> replace_positions(GPT2LMHeadModel(config), "rope").transformer.wpe.encoding
        RotaryEmbedding(16, base=10000.0, pairing='half_split', scaling=None, pairs=None)
    """
    libraries = {kind.__module__.partition(".")[0] for kind in type(model).__mro__}
    if "transformers" in libraries:
        from posembed.integrations import transformers

        transformers.replace_positions(model, encoding, **sizes)
    elif "timm" in libraries:
        from posembed.integrations import timm

        timm.replace_positions(model, encoding, **sizes)
    else:
        raise ArgumentError(
            f"expected a model of transformers or timm, got {type(model).__name__}; in a model of your own, put "
            "a posembed layer in the place of its table (LearnedPositionalEmbedding.from_module keeps the table)"
        )
    return model
