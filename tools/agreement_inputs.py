"""The runs of agreement.py for rows and rotations: what posembed gives, and what the other code gives."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from posembed.layers.rotary import rotary_frequencies
from posembed.nn import Sizes, encoding_by_name
from timm_peer import imported

B, H, D = 2, 4, 32
WIDTH = D // H
Take = Callable[..., SimpleNamespace]
"""Takes a row's functions out of their file; its arguments are the names that they need and the file imports."""
Pair = tuple[Any, Any]
"""What posembed gives and what the other code gives: a tensor each, or a list of as many."""
LEARNED = ("learned", "learned-long", "learned-shifted", "learned-randomized", "learned-skipped")
FACTORS = tuple(1.0 + pair / 8 for pair in range(32))


def of(name: str, **sizes: Any) -> Any:
    """Returns the encoding in eval mode, with values far from their small start."""
    encoding = encoding_by_name(name, Sizes(**{"dim": D, "heads": H, **sizes})).eval()
    for parameter in encoding.parameters():
        parameter.data += 0.5 * torch.randn_like(parameter)
    return encoding


def heads(length: int, width: int = WIDTH) -> Tensor:
    """Returns q and k, float32 (2, B, H, L, d)."""
    return torch.randn(2, B, H, length, width)


def set_(module: nn.Module, **values: Tensor) -> Any:
    for name, value in values.items():
        module.get_parameter(name.replace("__", ".")).data = value.detach().clone()
    return module


def learned(take: Take) -> Pair:
    from transformers import GPT2Config, GPT2Model

    model, x = GPT2Model(GPT2Config(n_positions=64, n_embd=D, n_layer=1, n_head=H)).eval(), torch.randn(B, 64, D)
    theirs = model(inputs_embeds=x, output_hidden_states=True).hidden_states[0]
    ours = [set_(of(name, max_len=64), weight=model.wpe.weight)(x) for name in LEARNED]
    return ours, [theirs] * len(ours)


def extended(name: str, theirs: Callable[[Tensor, Take], Tensor], take: Take) -> Pair:
    encoding = of(name, max_len=64, longest=200).double()
    expected = theirs(encoding.weight, take)
    return encoding.rows(torch.arange(200))[: len(expected)], expected


def two_digits(table: Tensor, take: Take) -> Tensor:
    keras = {"shape": np.shape, "gather": lambda rows, ids: rows[ids], "arange": lambda a, b, dtype: torch.arange(a, b)}
    layer = {"hierarchical": True, "custom_position_ids": False, "embeddings": table}
    layer |= {"input_dim": len(table), "merge_mode": "zero"}
    return take(K=SimpleNamespace(**keras)).call(SimpleNamespace(**layer), torch.zeros(1, 200))[0]


def drawn(name: str, length: int, theirs: Callable[[Take], Tensor], take: Take) -> Pair:
    """Counts how often each sequence of positions below 7 is drawn, of 40,000."""

    def shares(ids: Tensor) -> Tensor:
        return torch.bincount((ids * 7 ** torch.arange(length)).sum(-1), minlength=7**length) / len(ids)

    ours = of(name, max_len=7).training_positions(40_000, length, torch.Generator().manual_seed(0))
    return shares(ours), shares(theirs(take))


def shape_draws(take: Take) -> Tensor:
    layer = take(logger=SimpleNamespace(info=str)).PositionalEncoding(0.0, 2, max_len=8, pe_noise_size=9)
    waves = layer(torch.zeros(2, 40_000, 2))
    return (torch.atan2(waves[..., 0], waves[..., 1]) % (2 * math.pi)).round().long().T


def pose_draws(take: Take) -> Tensor:
    texts = {"input_ids": [[0, 1, 2]] * 40_000}
    run = take(random=random).train_preprocess_function_pose
    return torch.stack(run({"text": None}, lambda *_, **__: texts, 7, 3)["position_ids"])


def concatenated(take: Take) -> Pair:
    x = torch.randn(B, 64, D)
    return (encoding := of("learned-concat", max_len=64))(x), torch.cat(
        (x[..., : -D // 4], encoding.weight.expand(B, -1, -1)), -1
    )


def sinusoidal(take: Take) -> Pair:
    from transformers.models.xlm.modeling_xlm import create_sinusoidal_embeddings

    create_sinusoidal_embeddings(2000, D, rows := torch.zeros(2000, D))
    return (encoding := of("sinusoidal")).rows(torch.arange(2000)) / encoding.scale, rows


def timm_grid(take: Take) -> Pair:
    vit = (
        imported("timm", "timm.models.vision_transformer")
        .VisionTransformer((64, 96), 16, embed_dim=D, depth=1, num_heads=H, num_classes=0)
        .eval()
    )
    line, grid = (set_(of(name, grid=(4, 6)), weight=vit.pos_embed[0]) for name in ("learned-1d", "learned-2d"))
    x = torch.cat((vit.cls_token.expand(B, -1, -1), patches := torch.randn(B, 24, D)), dim=1)
    theirs, resized = (
        vit._pos_embed(patches),
        imported("timm.layers").resample_abs_pos_embed(vit.pos_embed, [6, 9], [4, 6])[0],
    )
    return [line(x), grid(x), grid.on_grid((6, 9)).weight], [theirs, theirs, resized]


def factorized(take: Take) -> Pair:
    encoding, x = of("factorized", grid=(4, 6)), torch.randn(B, 25, D)
    y_and_x = {"pos_embed_y": encoding.height_weight[None], "pos_embed_x": encoding.width_weight[None]}
    layer = SimpleNamespace(**y_and_x, pos_embed_ar_preserving=False)
    peer = imported("timm", "timm.models.naflexvit").NaFlexEmbeds
    peer._apply_factorized_pos_embed(layer, theirs := x[:, 1:].clone(), [4, 6])
    return encoding(x)[:, 1:], theirs


def mae(take: Take) -> Pair:
    rows = take(np=SimpleNamespace(**vars(np), float=float)).get_2d_sincos_pos_embed(D, 14, cls_token=True)
    ours = of("sinusoidal-2d", grid=(14, 14)).rows()
    return ours.unflatten(-1, (2, -1, 2)).transpose(-1, -2).flatten(1), torch.from_numpy(rows)


def config(**settings: Any) -> Any:
    from transformers import LlamaConfig

    given = {"rope_theta": 10000.0, "original_max_position_embeddings": 512, **settings}
    return LlamaConfig(hidden_size=256, num_attention_heads=4, max_position_embeddings=512, rope_parameters=given)


def rope(take: Take) -> Pair:
    from transformers.models.llama import modeling_llama as llama

    (q, k), ids = heads(512, 64), torch.arange(512)
    cos_sin = llama.LlamaRotaryEmbedding(config(rope_type="default"))(q, ids[None])
    return list(of("rope", dim=256)(q, k)), list(llama.apply_rotary_pos_emb(q, k, *cos_sin))


def fewer_turns(name: str, frequencies: Callable[[], Tensor], take: Take) -> Pair:
    q, k = heads(512, 64)
    angles = torch.arange(512).double()[:, None] * frequencies().double()
    turn, both = torch.polar(torch.ones_like(angles), angles), []
    for x in (q, k):
        turned = torch.complex(*x.double().chunk(2, dim=-1)) * turn
        both.append(torch.cat((turned.real, turned.imag), dim=-1))
    return list(of(name, dim=256, max_len=512)(q, k)), both


def proportional() -> Tensor:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind = "proportional"
    return ROPE_INIT_FUNCTIONS[kind](config(rope_type=kind, partial_rotary_factor=0.75))[0]


def high_frequencies() -> Tensor:
    frequencies = 10000.0 ** (-torch.arange(0, 64, 2).double() / 64)
    return frequencies.where(frequencies >= 2 * math.pi / 512, 0.0)


def peers_scalings(take: Take) -> Pair:
    """Compares the frequencies and attention factors of a text of 2,048 tokens after training at 512."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kinds: dict[str, dict[str, Any]] = {
        "linear": {"factor": 4.0}, "dynamic": {"factor": 1.0}, "yarn": {"factor": 4.0},
        "llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "longrope": {"factor": 4.0, "attention_factor": 1.0, "short_factor": [1.0] * 32, "long_factor": list(FACTORS)},
    }  # fmt: skip
    ours: list[Tensor] = []
    theirs: list[Tensor] = []
    for kind, settings in kinds.items():
        encoding = of(
            f"rope-{kind.replace('dynamic', 'ntk')}", dim=256, max_len=512, longest=2048, rope_factors=FACTORS
        )
        own = encoding.scaling.scaled(rotary_frequencies(64), base=10000.0, length=torch.tensor(2048))
        other = ROPE_INIT_FUNCTIONS[kind](config(rope_type=kind, **settings), None, seq_len=2048)
        ours, theirs = [*ours, *map(torch.as_tensor, own)], [*theirs, *map(torch.as_tensor, other)]
    return ours, theirs


def scaled(name: str, theirs: Callable[[Take], tuple[Tensor, Tensor]], take: Take, trained: int = 512) -> Pair:
    """Compares cosines and sines, times the attention factor, past the training length."""
    cos_sin = [x.reshape(-1, x.size(-1))[:, :32] for x in theirs(take)]
    encoding = of(name, dim=256, max_len=trained, longest=2048, rope_factors=FACTORS)
    length = 8 * trained if name == "rope-llama3" else len(cos_sin[0])
    return list(encoding.cos_sin(torch.arange(len(cos_sin[0])), text_length=length)), cos_sin


def dynamic(name: str, **settings: Any) -> Callable[[Take], tuple[Tensor, Tensor]]:
    return lambda take: getattr(take(), name)(64, 512, **settings)(torch.zeros(1), seq_len=2048)


def llama3(take: Take) -> tuple[Tensor, Tensor]:
    turns = take().precompute_freqs_cis(64, 2048, use_scaled=True)
    return turns.real, turns.imag


def longrope(take: Take) -> tuple[Tensor, Tensor]:
    given = {"max_position_embeddings": 2048, "original_max_position_embeddings": 512, "magnitude_scaling_policy": "1"}
    layer = take().LongRoPEScaledRotaryEmbedding(64, FACTORS, **given)
    return layer.forward(torch.zeros(1, 2048, 64), torch.arange(2048)[None])
