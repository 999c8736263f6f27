"""Tiny models of transformers with random weights, and what each of them feeds to its first layer."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from posembed import inputs

transformers.logging.set_verbosity_error()

TOKENS, POSITIONS, WIDTH, PAD = 50, 16, 8, 1


@dataclass(frozen=True)
class Peer:
    """A model with learned positions, and our input layer that should do what its own does.

    stack: the part of the model that is called with token ids ("": the model itself).
    embeddings: the module within it whose output is the sum of the rows, or
    first_block: the module whose input is.
    first_id: what the model calls the first position; None where it takes no position ids.
    options: what ``from_checkpoint`` is told.
    """

    layer: type[nn.Module]
    model: str
    settings: dict[str, Any]
    stack: str = ""
    embeddings: str | None = None
    first_block: str | None = None
    first_id: int | None = 0
    options: dict[str, str] = field(default_factory=dict)

    def build(self) -> Any:
        """The model in ``eval`` mode with every weight from N(0, 1)."""
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # transformers 4 still scripts a function of GPTBigCode's
            model_class = getattr(transformers, self.model)
        model = model_class(model_class.config_class(**self.settings)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_()
        return model

    def embed(self, model: Any, token_ids: Tensor, **arguments: Any) -> Tensor:
        """What the model makes of these tokens before its first block: (B, L, D)."""
        stack = model.get_submodule(self.stack)
        seen: list[Tensor] = []
        if self.embeddings is not None:
            module = stack.get_submodule(self.embeddings)
            handle = module.register_forward_hook(lambda module, args, output: seen.append(output))
        else:
            module = stack.get_submodule(self.first_block)
            handle = module.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
        default = torch.get_default_dtype()
        torch.set_default_dtype(model.dtype)  # transformers 4 makes masks of the default dtype
        try:
            stack(token_ids, **arguments)
        finally:
            torch.set_default_dtype(default)
        handle.remove()
        return seen[0][:, : token_ids.shape[1]]  # Longformer fills its input up to whole windows


def _bert(**settings: Any) -> dict[str, Any]:
    sizes = {"vocab_size": TOKENS, "hidden_size": WIDTH, "intermediate_size": 8, "max_position_embeddings": POSITIONS}
    depth = {"num_hidden_layers": 1, "num_attention_heads": 2}
    return sizes | depth | {"hidden_dropout_prob": 0.25, "layer_norm_eps": 1e-3} | settings


def _roberta(pad_id: int = PAD, **settings: Any) -> dict[str, Any]:
    rows = POSITIONS + pad_id + 1
    return _bert(max_position_embeddings=rows, pad_token_id=pad_id, type_vocab_size=1) | settings


def _gpt(**settings: Any) -> dict[str, Any]:
    sizes = {"vocab_size": TOKENS, "n_embd": WIDTH, "n_positions": POSITIONS}
    return sizes | {"n_layer": 1, "n_head": 2, "embd_pdrop": 0.25} | settings


def _seq2seq(**settings: Any) -> dict[str, Any]:
    sizes = {"vocab_size": TOKENS, "d_model": WIDTH, "max_position_embeddings": POSITIONS}
    sides = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in _SIDE.items()}
    return sizes | sides | {"dropout": 0.25} | settings


_SIDE = {"layers": 1, "attention_heads": 2, "ffn_dim": 8}

TEXT_PEERS = {
    "bert": Peer(inputs.BertInput, "BertForMaskedLM", _bert(), "bert", "embeddings"),
    "bert alone": Peer(inputs.BertInput, "BertModel", _bert(pad_token_id=0), "", "embeddings"),
    "electra": Peer(inputs.BertInput, "ElectraForPreTraining", _bert(embedding_size=6), "electra", "embeddings"),
    "albert": Peer(inputs.BertInput, "AlbertForMaskedLM", _bert(embedding_size=6), "albert", "embeddings"),
    "distilbert": Peer(
        inputs.BertInput,
        "DistilBertForMaskedLM",
        {"vocab_size": TOKENS, "dim": WIDTH, "n_layers": 1, "n_heads": 2, "hidden_dim": 8, "dropout": 0.25}
        | {"max_position_embeddings": POSITIONS},
        "distilbert",
        "embeddings",
        first_id=None,  # transformers 5 takes position ids, 4 does not
    ),
    "roberta": Peer(inputs.RobertaInput, "RobertaForMaskedLM", _roberta(), "roberta", "embeddings", first_id=2),
    "roberta, pad 3": Peer(inputs.RobertaInput, "RobertaModel", _roberta(3), "", "embeddings", first_id=4),
    "roberta, pad 0": Peer(inputs.RobertaInput, "RobertaModel", _roberta(0), "", "embeddings", first_id=1),
    "xlm-roberta": Peer(inputs.RobertaInput, "XLMRobertaModel", _roberta(), "", "embeddings", first_id=2),
    "camembert": Peer(inputs.RobertaInput, "CamembertModel", _roberta(), "", "embeddings", first_id=2),
    "longformer": Peer(
        inputs.RobertaInput, "LongformerModel", _roberta(attention_window=4), "", "embeddings", first_id=2
    ),
    "mpnet": Peer(inputs.RobertaInput, "MPNetModel", _roberta(), "", "embeddings", first_id=2),
    "gpt1": Peer(inputs.GPT1Input, "OpenAIGPTLMHeadModel", _gpt(), "transformer", first_block="h.0"),
    "gpt2": Peer(inputs.GPT2Input, "GPT2LMHeadModel", _gpt(), "transformer", first_block="h.0"),
    "gpt_bigcode": Peer(inputs.GPT2Input, "GPTBigCodeModel", _gpt(), "", first_block="h.0"),
    "gpt_neo": Peer(
        inputs.GPT2Input,
        "GPTNeoModel",
        {"vocab_size": TOKENS, "hidden_size": WIDTH, "max_position_embeddings": POSITIONS, "embed_dropout": 0.25}
        | {"num_layers": 1, "num_heads": 2, "attention_types": [[["global"], 1]]},
        "",
        first_block="h.0",
    ),
    "bart encoder": Peer(
        inputs.BartInput,
        "BartForConditionalGeneration",
        _seq2seq(),
        "model.encoder",
        first_block="layers.0",
        first_id=None,
    ),
    "bart decoder": Peer(
        inputs.BartInput,
        "BartModel",
        _seq2seq(scale_embedding=True),
        "decoder",
        first_block="layers.0",
        first_id=None,
        options={"side": "decoder"},
    ),
    "mbart": Peer(
        inputs.BartInput, "MBartModel", _seq2seq(scale_embedding=True), "encoder", first_block="layers.0", first_id=None
    ),
    "plbart": Peer(inputs.BartInput, "PLBartModel", _seq2seq(), "encoder", first_block="layers.0", first_id=None),
    "opt": Peer(
        inputs.OPTInput,
        "OPTForCausalLM",
        {"vocab_size": TOKENS, "hidden_size": WIDTH, "max_position_embeddings": POSITIONS, "ffn_dim": 8}
        | {"num_hidden_layers": 1, "num_attention_heads": 2, "word_embed_proj_dim": WIDTH},
        "model.decoder",
        first_block="layers.0",
    ),
    "opt, projected": Peer(
        inputs.OPTInput,
        "OPTModel",
        {"vocab_size": TOKENS, "hidden_size": WIDTH, "max_position_embeddings": POSITIONS, "ffn_dim": 8}
        | {"num_hidden_layers": 1, "num_attention_heads": 2, "word_embed_proj_dim": 6},
        "decoder",
        first_block="layers.0",
    ),
    "clip text": Peer(inputs.CLIPTextInput, "CLIPTextModelWithProjection", _bert(), "text_model", "embeddings"),
    "clip": Peer(
        inputs.CLIPTextInput,
        "CLIPModel",
        {"text_config": _bert(), "vision_config": _bert(image_size=4, patch_size=2)},
        "text_model",
        "embeddings",
    ),
    "siglip": Peer(
        inputs.CLIPTextInput,
        "SiglipModel",
        {"text_config": _bert(), "vision_config": _bert(image_size=4, patch_size=2)},
        "text_model",
        "embeddings",
    ),
    "whisper": Peer(
        inputs.WhisperDecoderInput,
        "WhisperForConditionalGeneration",
        _seq2seq(max_target_positions=POSITIONS, max_source_positions=16, pad_token_id=PAD)
        | {"bos_token_id": 2, "eos_token_id": 2, "decoder_start_token_id": 2},
        "model.decoder",
        first_block="layers.0",
    ),
}
