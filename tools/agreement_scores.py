"""The runs of agreement.py for biases, content and images: what posembed gives, and what the other code gives."""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from agreement_inputs import WIDTH, B, D, H, Pair, Take, heads, of, set_
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.layers import LookHere, Tupe
from posembed.nn import Attention
from posembed.positions import from_separators


def visible(bias: Tensor) -> Tensor:
    """Returns the values of the pairs whose key is not after its query."""
    return bias[..., torch.ones(bias.shape[-2:], dtype=torch.bool).tril()]


def causal(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))


def contents(q: Tensor, k: Tensor) -> Tensor:
    return causal(q @ k.mT / math.sqrt(WIDTH))


def attended(encoding: Any, length: int, theirs: Any, dtype: torch.dtype = torch.float64) -> Pair:
    """Runs an attention layer with the encoding, and with ``theirs(x, q, k, v)``, (B, H, L, d)."""
    layer, x = Attention(dim=D, heads=H, encoding=encoding).to(dtype), torch.randn(B, length, D, dtype=dtype)
    q, k, v = layer.queries_keys_values(x).unflatten(-1, (3 * H, WIDTH)).transpose(1, 2).chunk(3, dim=1)
    return layer(x), layer.output(theirs(x, q, k, v).transpose(1, 2).flatten(2))


def alibi(take: Take) -> Pair:
    slopes = [torch.tensor(take().get_slopes(count)) for count in (4, 8, 12)]
    keys = torch.arange(512)
    biases = [each[:, None, None] * (keys - keys[:, None]) for each in slopes]  # theirs, less one number a query
    return [visible(of("alibi", heads=n, dim=8 * n)(512)) for n in (4, 8, 12)], [visible(each) for each in biases]


def t5(take: Take) -> Pair:
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    ours, theirs = [], []
    for causal_model in (False, True):
        peer = T5Attention(
            T5Config(d_model=D, num_heads=H, is_decoder=causal_model), has_relative_attention_bias=True, layer_idx=0
        )
        encoding = set_(of("t5", causal=causal_model), bucket_weight=peer.relative_attention_bias.weight)
        ours, theirs = [*ours, encoding(300)], [*theirs, peer.compute_bias(300, 300)[0]]
    return ours, theirs


def kerple(name: str, kind: str, take: Take) -> Pair:
    one = {"get_model_parallel_world_size": lambda: 1, "get_model_parallel_rank": lambda: 0, "Parameter": nn.Parameter}
    settings = SimpleNamespace(num_attention_heads=H, pos_emb="bias_ap_", params_dtype=torch.float32)
    with patch("torch.cuda.current_device", lambda: "cpu"):
        peer = getattr(take(**one), kind)(settings)
    encoding = of(name)
    r1, r2 = (each[:, None, None].clamp(min=0.01) for each in encoding.coefficients())
    p, a = (r1, r2) if kind == "ParallelKerpleLog" else (r2, r1)
    return visible(encoding(300)), visible(set_(peer, bias_p=p, bias_a=a)(torch.zeros(1, H, 300, 300))[0])


def fire(take: Take) -> Pair:
    encoding = of("fire", max_len=128)
    peer = take().FIRE(H, init_c=0.1, init_L=2 * encoding.initial_threshold)  # it halves this length
    names = {"mlp__0__weight": encoding.hidden_weight[:, None], "mlp__0__bias": encoding.hidden_bias}
    set_(peer, c=encoding.c[0], L_multiplier=encoding.threshold_factor[0], **names)
    set_(peer, mlp__2__weight=encoding.output_weight, mlp__2__bias=encoding.output_bias)
    return visible(encoding(300)), visible(peer(torch.zeros(1, H, 300, 300))[0])


def tupe(take: Take) -> Pair:
    """Runs the authors' encoder with layers that keep the bias: whole, and without the first position's own numbers."""

    class Layer(nn.Module):
        def __init__(self, **_: Any) -> None:
            super().__init__()

        def forward(self, x: Tensor, self_attn_bias: Tensor, **_: Any) -> Tensor:
            biases.append(self_attn_bias[:H])
            return x

    names = {"LayerNorm": lambda dim, export: nn.LayerNorm(dim), "TransformerSentenceEncoderLayer": Layer}
    ours: list[Tensor] = []
    biases: list[Tensor] = []
    theirs: list[Tensor] = []
    for name, of_distances in (("tupe", False), ("tupe-r", True)):
        peer = take(**names).TransformerSentenceEncoder(
            0, 9, 1, D, num_attention_heads=H, max_seq_len=200, rel_pos=of_distances
        )
        plain, ids = of(name, max_len=200, causal=False), torch.arange(200)
        set_(plain, weight=peer.pos.weight[1:], norm_weight=peer.pos_ln.weight, norm_bias=peer.pos_ln.bias,
             projection_weight=torch.cat((peer.pos_q_linear.weight, peer.pos_k_linear.weight)),
             projection_bias=torch.cat((peer.pos_q_linear.bias, peer.pos_k_linear.bias)))  # fmt: skip
        if of_distances:
            set_(plain.relative, bucket_weight=peer.relative_attention_bias.weight[:32])
        peer(torch.ones(1, 200, dtype=torch.long))
        whole = Tupe(max_len=200, dim=D, heads=H, reset_first=True, relative=plain.relative)
        whole.load_state_dict(
            {**plain.state_dict(), "first_weight": torch.stack((biases[-1][:, 0, 1], biases[-1][:, 1, 0]))}
        )
        ours += [plain.at_scores(ids, ids)[:, 1:, 1:], whole.at_scores(ids, ids)]
        theirs += [biases[-1][:, 1:, 1:], biases[-1]]
    return ours, theirs


def pope(take: Take) -> Pair:
    from x_transformers.x_transformers import PolarEmbedding, apply_polar_pos_emb

    (q, k), encoding, peer = heads(512), of("pope"), PolarEmbedding(WIDTH, H)
    frequencies, bias = set_(peer, learned_bias=encoding.delta[:, None])(torch.arange(512))
    our_q, our_k = encoding(q, k)
    return [our_q / math.sqrt(2), our_k], [
        apply_polar_pos_emb(q, frequencies),
        apply_polar_pos_emb(k, frequencies + bias),
    ]


def bipe(name: str, take: Take) -> Pair:
    functions, encoding = take(), of(name, max_len=64)
    tokens = torch.tensor([13, 869, 5, 6, 7, 8, 9, 10])[torch.randint(8, (B, 64))]
    places, segments = functions.get_bilevel_ids(None, tokens, train_scale=8)
    ids, (q, k) = from_separators(tokens, [869, 13], max_len=8), heads(64)
    ours, theirs = [ids, encoding.rows(ids)], [8 * segments + places, F.embedding(places, encoding.weight)]
    if name == "bipe-rope":
        cos_sin = functions.LlamaRotaryEmbedding(WIDTH)(q, seq_len=64)
        return ours + list(encoding.at_queries_keys(q, k, ids, ids)), theirs + list(
            functions.apply_rotary_pos_emb(q, k, *cos_sin, segments)
        )
    layer = SimpleNamespace(max_position_embeddings=64, num_heads=H)
    layer.register_buffer = lambda _, values: setattr(layer, "alibi", values[0, :, 0])
    functions._init_alibi_mul96(layer)
    of_keys = layer.alibi.T[segments].mT
    return [*ours, visible(encoding.at_scores(ids, ids))], [*theirs, visible(of_keys[:, :, None] - of_keys[..., None])]


def seqpe(take: Take) -> Pair:
    names = {"Conv1D": take("pytorch_utils.py", "Conv1D").Conv1D, "PeUtils": take("pe_utils.py", "PeUtils").PeUtils,
             "ACT2FN": {"gelu_new": partial(F.gelu, approximate="tanh")}, "trunc_normal_": nn.init.trunc_normal_,
             "INIT_NORM_WEIGHT": 1.0}  # fmt: skip
    encoding, ids = of("seqpe", max_len=20_000).double(), torch.tensor([0, 7, 42, 999, 19_999])
    peer = take(**names).SequentialPE(32, 1, 2, 5, use_last_layernorm=True, mask_padding=False, out_proj_dim=D,
                                      seqpe_temperature=1 / encoding.scale).double().eval()  # fmt: skip
    ours = {"token_of_seqpe_embed.weight": "value_weight", "pos_of_seqpe_embed.weight": "place_weight",
            "cls_token_embed": "last_weight", "layernorm.": "norm.", "out_proj": "output", "transformers": "encoder",
            "layernorm_1": "attention_norm", "layernorm_2": "mlp_norm", "attn.c_attn": "attention_input",
            "attn.c_proj": "attention_output", "mlp.c_fc": "hidden", "mlp.c_proj": "output"}  # fmt: skip
    for name, parameter in peer.named_parameters():
        transposed = ".c_" in name and parameter.dim() == 2
        for theirs, own in ours.items():
            name = name.replace(theirs, own)
        value = encoding.get_parameter(name).detach()
        parameter.data = (value.T if transposed else value).reshape(parameter.shape)
    digits = ids[:, None] // 10 ** torch.arange(4, -1, -1) % 10
    with patch.object(Tensor, "float", Tensor.double):  # their mask is float32, in which the least float64 is -inf
        return encoding.rows(ids), peer(digits, None)


def fox(take: Take) -> Pair:
    encoding = of("fox")

    def theirs(x: Tensor, *heads: Tensor) -> Tensor:
        from einops import rearrange, repeat

        run = take(rearrange=rearrange, repeat=repeat).naive_forgetting_attn
        gates = F.logsigmoid(F.linear(x, encoding.gate_weight, encoding.gate_bias))
        return run(*(t.transpose(1, 2) for t in heads), gates).transpose(1, 2)

    return attended(encoding, 100, theirs, torch.float32)


def cable(take: Take) -> Pair:
    ours = Attention(dim=D, heads=H, encoding=(encoding := of("cable")))
    peer = take().CausalSelfAttention(SimpleNamespace(n_embd=D, n_head=H, block_size=100))
    weight = torch.cat((torch.full((D, 1), WIDTH**-0.5), torch.ones(2 * D, 1))) * ours.queries_keys_values.weight
    set_(peer, c_attn__weight=weight, c_attn__bias=torch.zeros(3 * D), h_attn__weight=encoding.gate_weight,
         h_attn__bias=encoding.gate_bias, c_proj__weight=ours.output.weight, c_proj__bias=torch.zeros(D))  # fmt: skip
    return ours(x := torch.randn(B, 100, D)), peer(x)


def cope(take: Take) -> Pair:
    from x_transformers.x_transformers import CoPE

    peer = set_(CoPE(WIDTH, H, 64).double(), pos_emb=(encoding := of("cope").double()).weight)

    def theirs(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (contents(q, k) + peer(q, contents(q, k))).softmax(-1) @ v

    return attended(encoding, 100, theirs)


def dape(take: Take) -> Pair:
    encoding = of("dape").double()
    settings = SimpleNamespace(num_attention_heads=H, pos_emb="", params_dtype=torch.float64, mlp_width=32)
    with patch("torch.cuda.current_device", lambda: "cpu"):
        peer = take().ParallelKerpleLog_DAPE(settings, 0).double()
    p, a = (each[:, None, None].clamp(min=0.01) for each in encoding.bias.coefficients())
    set_(peer, bias_p=p, bias_a=a, mlp2__0__weight=encoding.hidden_weight, mlp2__0__bias=encoding.hidden_bias,
         mlp2__2__weight=encoding.output_weight, mlp2__2__bias=encoding.output_bias)  # fmt: skip

    def theirs(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return causal(peer(q @ k.mT / math.sqrt(WIDTH))).softmax(-1) @ v

    return attended(encoding, 100, theirs)


def path(take: Take) -> Pair:
    encoding = of("path")

    def theirs(x: Tensor, *heads: Tensor) -> Tensor:
        from einops import rearrange

        w = (x @ encoding.down_weight.T @ encoding.direction_weight.T).mT
        w = F.conv1d(w, encoding.mixing_weight.unsqueeze(1), padding=2, groups=D)[..., : x.size(1)].mT
        w = F.silu(w).unflatten(-1, (H, WIDTH))
        w = w / (w.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        beta = 2 * F.linear(x, encoding.strength_weight, encoding.strength_bias).sigmoid()
        given = (*(t.transpose(1, 2) for t in heads), w, beta, torch.zeros(B, x.size(1), H))
        return take(rearrange=rearrange).naive_path_attn(*given, scale=WIDTH**-0.5).transpose(1, 2)

    return attended(encoding, 100, theirs, torch.float32)


def none(take: Take) -> Pair:
    return attended(of("none"), 100, lambda x, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))


def rolling(take: Take) -> Pair:
    encoding, ids = of("rolling", window=16), torch.arange(100)
    layer = Attention(dim=D, heads=H, encoding=encoding).double()
    x = torch.randn(B, 100, D, dtype=torch.float64)
    q_k, v = ((y @ layer.queries_keys_values.weight.T).split((2 * D, D), dim=-1)[i]
              for i, y in enumerate((x + encoding.weight[ids % 16], x)))  # fmt: skip
    q, k, v = (y.unflatten(-1, (H, -1)).transpose(1, 2) for y in (*q_k.chunk(2, dim=-1), v))
    scores = contents(q, k).masked_fill(ids[:, None] - ids >= 16, float("-inf"))
    return layer(x), layer.output((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def averaged(take: Take) -> Pair:
    """Means of diagonals up to 31, then numpy's line in log(1 + distance) where it falls; a head has no position."""
    encoding, weight = of("learned-averaged", max_len=32).double(), torch.randn(2 * D, D, dtype=torch.float64)
    q, k = ((encoding.weight @ part.T).unflatten(-1, (H, -1)).transpose(0, 1) for part in weight.chunk(2))
    logits, n = q @ k.mT / math.sqrt(WIDTH), np.arange(4, 32)
    by_distance = torch.stack([logits.diagonal(-back, 1, 2).mean(-1) for back in range(32)], dim=-1).detach()
    bias = torch.zeros(H, 100, dtype=torch.float64)
    for head, values in enumerate(by_distance[:-1].numpy()):
        slope, start = np.polyfit(np.log1p(n), values[4:], 1, w=np.sqrt(32 - n))
        start = start if slope <= 0 else np.average(values[4:], weights=32 - n)
        bias[head] = torch.from_numpy(np.append(values, start + min(slope, 0) * np.log1p(np.arange(32, 100))))
    distance = (torch.arange(100)[:, None] - torch.arange(100)).clamp(min=0)
    return visible(encoding.in_layer(lambda rows: rows @ weight.T)(100)), visible(bias[:, distance])


def rope_vit(name: str, take: Take) -> Pair:
    functions, encoding, (q, k) = take(), of(name, grid=(5, 7)), heads(36)
    if name == "rope-axial":
        turns = functions.compute_axial_cis(WIDTH, 7, 5)
    else:
        turns = functions.compute_mixed_cis(encoding.frequency_weight.view(2, 1, -1), *functions.init_t_xy(7, 5), H)[0]
    theirs = functions.apply_rotary_emb(q[:, :, 1:], k[:, :, 1:], turns)
    return list(encoding(q, k)), [torch.cat((x[:, :, :1], y), dim=2) for x, y in zip((q, k), theirs, strict=True)]


def lookhere(take: Take) -> Pair:
    from itertools import groupby

    from scipy.spatial.distance import cdist, pdist, squareform

    names = {"np": np, "groupby": groupby, "cdist": cdist, "pdist": pdist, "squareform": squareform}
    ours, theirs = [of("lookhere", heads=12, dim=96, grid=(5, 7))(36)[:, 1:, 1:]], []
    ours += [LookHere(heads=12, grid=(5, 7), angle=angle)(36)[:, 1:, 1:] for angle in (180, 45)]
    for directions in ("corners-triangles-none", "halves-none", "eighths1-eighths2-none"):
        bias = take(**names).create_lh_layer_tensor((5, 7), directions, 12, "linear", "inf")
        theirs.append(-torch.from_numpy(bias))
    return ours, theirs
