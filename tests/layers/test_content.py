"""Encodings whose scores depend on content: their papers' formulas, written out, and their authors' code.

The authors' formulas are transcribed in float64 from zhixuan-lin/forgetting-transformer (6ef3e8f: the bias of
modeling_forgetting_transformer.py), axiomlab/Cable (2d7410b: src/Cable.py, but with the paper's 1 / sqrt(d), which that
file leaves out), the appendix of CoPE's paper, chuanyang-Zheng/DAPE (51cf9bd: DAPE.py) and
fla-org/flash-linear-attention (fla/ops/path_attn/naive.py).
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from largest import Largest
from posembed import PositionEncoding
from posembed.layers import Alibi, Cable, Cope, Dape, Fox, HouseholderPath, KerpleLog
from posembed.layers.base import Content
from posembed.layers.content import fox
from posembed.layers.content.path import path_scores
from posembed.nn import Attention, Decoder, Positions, Sizes, encoding_by_name
from together import together
from tolerance import assert_close

B, H, L, D = 2, 4, 23, 32
WIDTH = D // H


def of_values(encoding: PositionEncoding) -> PositionEncoding:
    """In float64, with parameters far from their small start."""
    for parameter in encoding.parameters():
        parameter.data += 0.5 * torch.randn_like(parameter)
    return encoding.double()


def layer_of(encoding: PositionEncoding) -> tuple[Attention, Tensor, Tensor, Tensor, Tensor]:
    """An attention with this encoding, its input x, and its q, k and v (B, H, L, d)."""
    layer = Attention(dim=D, heads=H, encoding=of_values(encoding)).double()
    x = torch.randn(B, L, D, dtype=torch.float64).requires_grad_()
    q, k, v = layer.queries_keys_values(x).unflatten(-1, (3 * H, WIDTH)).transpose(1, 2).chunk(3, dim=1)
    return layer, x, q, k, v


def causal(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))


def assert_reads(layer: Attention, x: Tensor, scores: Tensor, v: Tensor) -> None:
    """The layer's outputs and gradients are those of these scores (B, H, L, L)."""
    expected = layer.output((causal(scores).softmax(-1) @ v).transpose(1, 2).flatten(2))
    ours = layer(x)
    assert_close(ours, expected, depth=2)
    inputs, weights = [x, *layer.parameters()], torch.randn_like(ours)
    one, other = (torch.autograd.grad((y * weights).sum(), inputs) for y in (ours, expected))
    assert_close(one, other, depth=4, scale=other)


def test_fox_multiplies_by_the_product_of_gates() -> None:
    """Its definition: o_i = sum_j F_ij exp(q_i k_j) v_j / sum_j F_ij exp(q_i k_j), with F_ij = f_(j+1) ... f_i."""
    layer, x, q, k, v = layer_of(encoding := Fox(dim=D, heads=H))
    gates = torch.sigmoid(x @ encoding.gate_weight.T + encoding.gate_bias)  # (B, L, H)
    outputs = []
    for i in range(L):
        kept = torch.stack([gates[:, j + 1 : i + 1].prod(dim=1) for j in range(i + 1)], dim=-1)  # (B, H, i + 1)
        weights = kept * torch.exp((k[:, :, : i + 1] @ q[:, :, i, :, None]).squeeze(-1) / math.sqrt(WIDTH))
        outputs.append((weights.unsqueeze(-1) * v[:, :, : i + 1]).sum(2) / weights.sum(-1, keepdim=True))
    assert_close(layer(x), layer.output(torch.stack(outputs, dim=1).flatten(2)), depth=4)


def test_fox_is_its_authors_code() -> None:
    layer, x, q, k, v = layer_of(encoding := Fox(dim=D, heads=H))
    log_fgate = F.logsigmoid((x @ encoding.gate_weight.T + encoding.gate_bias).transpose(1, 2))
    log_lambda = torch.cumsum(log_fgate, dim=-1)
    decay_bias = log_lambda[:, :, :, None] - log_lambda[:, :, None, :]
    assert_reads(layer, x, q @ k.mT / math.sqrt(WIDTH) + decay_bias, v)


def test_fox_is_the_same_with_a_dense_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which it has on a GPU."""
    layer, x, *_ = layer_of(Fox(dim=D, heads=H))
    expected = layer(x)
    monkeypatch.setattr(fox, "add_differences", lambda q, k, sums: (q, k))
    at_content = Fox.at_content

    def dense(self: Fox, q: Tensor, k: Tensor, content: Content) -> tuple[Tensor, Tensor, Tensor | None]:
        class Elsewhere(Tensor):
            is_cpu = False

        return at_content(self, q.as_subclass(Elsewhere), k, content)

    monkeypatch.setattr(Fox, "at_content", dense)
    y = layer(x, mask=torch.ones(B, L))
    assert_close(y.as_subclass(Tensor), expected)


def test_cable_is_its_authors_code() -> None:
    layer, x, q, k, v = layer_of(encoding := Cable(dim=D, heads=H))
    b = torch.cumsum(-F.softplus(x @ encoding.gate_weight.T + encoding.gate_bias), dim=1).permute(0, 2, 1)
    assert_reads(layer, x, q @ k.mT / math.sqrt(WIDTH) + b.unsqueeze(3) - b.unsqueeze(2), v)


def test_cope_is_its_authors_code() -> None:
    layer, x, q, k, v = layer_of(encoding := Cope(WIDTH, max_len=7))
    logits = q @ k.mT / math.sqrt(WIDTH)
    gates = torch.sigmoid(causal(logits))
    pos = gates.flip(-1).cumsum(dim=-1).flip(-1).clamp(max=encoding.max_len - 1)
    pos_ceil, pos_floor = pos.ceil().long(), pos.floor().long()
    logits_int = torch.matmul(q, encoding.weight.T)
    w = pos - pos_floor
    of_positions = logits_int.gather(-1, pos_ceil) * w + logits_int.gather(-1, pos_floor) * (1 - w)
    assert_reads(layer, x, logits + of_positions, v)


def test_cope_counts_every_token_as_one_where_all_gates_are_open() -> None:
    """The positions are then distances plus one, and the rows those of a learned table of distances."""
    cope = of_values(Cope(WIDTH, max_len=5))
    q, k = (torch.full((1, 1, 9, WIDTH), 9.0, dtype=torch.float64) for _ in range(2))
    seen = torch.ones(9, 9, dtype=torch.bool).tril()
    _, _, bias = cope.at_content(q, k, Content(None, torch.arange(9), torch.arange(9), lambda: seen, lambda: None))
    distance = (torch.arange(9)[:, None] - torch.arange(9) + 1).clamp(0, 4)
    assert_close(bias[0, 0][seen], (q[0, 0] @ cope.weight.T).gather(1, distance)[seen], dtype=torch.float32)


@pytest.mark.parametrize("of", ["alibi", "kerple-log"])
def test_dape_is_its_authors_code(of: str) -> None:
    inner = Alibi(H) if of == "alibi" else KerpleLog(H)
    layer, x, q, k, v = layer_of(encoding := Dape(inner, width=5))
    mlp2 = nn.Sequential(nn.Linear(H * 2, 5), nn.LeakyReLU(), nn.Linear(5, H)).double()
    own = (encoding.hidden_weight, encoding.hidden_bias, encoding.output_weight, encoding.output_bias)
    names = ("0.weight", "0.bias", "2.weight", "2.bias")
    diff = torch.tril(torch.arange(L)[:, None] - torch.arange(L)).double()
    if of == "alibi":
        a = -diff * torch.tensor([2.0 ** (-8 * (head + 1) / H) for head in range(H)], dtype=torch.float64).view(H, 1, 1)
    else:
        bias_p, bias_a = (r[:, None, None] for r in inner.coefficients())
        a = -bias_p * torch.log(1 + bias_a * diff)
    scores = q @ k.mT / math.sqrt(WIDTH)
    x_a_bias = torch.cat((scores, torch.tile(a, (B, 1, 1, 1))), dim=1)
    x_a_bias = torch.permute(x_a_bias, (0, 2, 3, 1))
    x_a_bias = torch.func.functional_call(mlp2, dict(zip(names, own, strict=True)), (x_a_bias,))
    assert_reads(layer, x, scores + a + torch.permute(x_a_bias, (0, 3, 1, 2)), v)


def directions(encoding: HouseholderPath, x: Tensor) -> tuple[Tensor, Tensor]:
    """w and beta as the authors' layer computes them: fla/layers/path_attn.py with use_w_shortconv."""
    convolution = nn.Conv1d(D, D, 3, groups=D, padding=2, bias=False).double()
    w = x @ encoding.down_weight.T @ encoding.direction_weight.T
    w = torch.func.functional_call(convolution, {"weight": encoding.mixing_weight.unsqueeze(1)}, (w.mT,))
    w = F.silu(w[..., : x.size(1)].mT).unflatten(-1, (H, WIDTH)).transpose(1, 2)
    beta = 2 * torch.sigmoid(x @ encoding.strength_weight.T + encoding.strength_bias).transpose(1, 2)
    return w / torch.sqrt((w * w).sum(-1, keepdim=True) + 1e-6), beta


def test_path_is_the_product_of_its_matrices() -> None:
    """score(i, j) = q_i H_i ... H_(j+1) k_j / sqrt(d), matrix by matrix."""
    layer, x, q, k, v = layer_of(encoding := HouseholderPath(dim=D, heads=H, rank=5))
    w, beta = directions(encoding, x)
    of_token = torch.eye(WIDTH, dtype=torch.float64) - beta[..., None, None] * w.unsqueeze(-1) * w.unsqueeze(-2)
    rows = []
    for i in range(L):
        row, query = [], q[:, :, i]
        for j in range(i, -1, -1):
            row.append((query * k[:, :, j]).sum(-1))
            query = (query.unsqueeze(-2) @ of_token[:, :, j]).squeeze(-2)
        rows.append(torch.stack([*row[::-1], *[torch.zeros_like(row[0])] * (L - 1 - i)], dim=-1))
    assert_reads(layer, x, torch.stack(rows, dim=2) / math.sqrt(WIDTH), v)


def authors_path(q: Tensor, k: Tensor, w: Tensor, beta: Tensor, BT: int) -> Tensor:
    """The scores (B, H, L, L) of the authors' reference, in chunks of BT tokens, for a length that BT divides."""
    b, h, length, _ = q.shape
    w_beta = w * beta[..., None]
    q, k, w, w_beta = (x.unflatten(2, (-1, BT)) for x in (q, k, w, w_beta))
    mask = torch.triu(torch.ones(BT, BT, dtype=torch.bool), diagonal=0)
    t = -(w_beta @ w.mT).masked_fill(mask, 0)
    for i in range(1, BT):
        t[..., i, :i] = t[..., i, :i].clone() + (t[..., i, :, None].clone() * t[..., :, :i].clone()).sum(-2)
    t = t + torch.eye(BT, dtype=q.dtype)
    t_wbk = t @ (w_beta @ k.mT).masked_fill(mask, 0)
    qw, t_wb = (q @ w.mT).tril(), t @ w_beta
    a_local = (q @ k.mT).tril() - qw @ t_wbk
    q, k, h_mat = q - qw @ t_wb, k - t_wbk.mT @ w, w.mT @ t_wb
    a = torch.zeros(b, h, length, length, dtype=q.dtype)
    for i in range(length // BT):
        q_i = q[:, :, i].clone()
        a[:, :, i * BT : i * BT + BT, i * BT : i * BT + BT] = a_local[:, :, i]
        for j in range(i - 1, -1, -1):
            a[:, :, i * BT : i * BT + BT, j * BT : j * BT + BT] = q_i @ k[:, :, j].mT
            q_i = q_i - q_i @ h_mat[:, :, j]
    return a


@together("length, chunk", [(24, 8), (24, 24), (24, 5), (1, 4), (130, 64)])
def test_path_is_its_authors_code_in_chunks_of_any_size(length: int, chunk: int) -> None:
    q, k, w = (torch.randn(B, H, length, WIDTH, dtype=torch.float64) for _ in range(3))
    w, beta = F.normalize(w, dim=-1), 2 * torch.rand(B, H, length, dtype=torch.float64)
    expected = authors_path(q, k, w, beta, BT=math.gcd(length, 8)).tril()
    ours = path_scores(q, k, w, beta, chunk=chunk)
    assert_close(ours.tril(), expected, depth=4)
    for last in (1, length // 2):  # the queries of the last tokens alone, as in decoding
        assert_close(path_scores(q[..., length - last :, :], k, w, beta, chunk=chunk), ours[..., length - last :, :],
                     depth=4)  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("name", ["fox", "cable", "cope", "dape", "path"])
def test_a_real_size_in_half_precision(name: str) -> None:
    """In bfloat16 as near to float32 as RoPE is; padded and with a cache the same."""
    errors = {}
    for encoding in (name, "rope"):
        torch.manual_seed(0)
        model = Decoder(dim=128, heads=4, layers=1, encoding=encoding, kv_heads=2).eval()
        x = torch.randn(2, 200, 128)
        y = model(x)
        half = copy.deepcopy(model).to(torch.bfloat16)
        ours = half(x.bfloat16())
        assert ours.dtype == torch.bfloat16
        errors[encoding] = (ours.float() - y).abs().max().item()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            errors[f"autocast {encoding}"] = (model(x).float() - y).abs().max().item()
        assert_close(model(torch.cat((x[:, 190:], x[:, :190]), 1), mask=torch.arange(200).expand(2, -1) >= 10)[:, 10:],
                     y[:, :190], depth=4)  # fmt: skip
        cache = half.new_cache(2, 200)
        steps = torch.cat([half(part, cache=cache) for part in x.bfloat16().split([190, 1, 9], dim=1)], dim=1)
        assert_close(steps.float(), ours.float(), depth=4, dtype=torch.bfloat16)
    assert errors[name] < 2 * errors["rope"], errors
    assert errors[f"autocast {name}"] < 2 * errors["autocast rope"], errors


def test_sums_stay_exact_in_half_precision() -> None:
    """After 4,000 tokens of closed gates a running sum is -28,000, which bfloat16 holds to 128."""
    encoding = Fox(dim=8, heads=1)
    nn.init.zeros_(encoding.gate_weight)
    nn.init.constant_(encoding.gate_bias, -7.0)
    layer = Attention(dim=8, heads=1, encoding=encoding).to(torch.bfloat16)
    x = torch.randn(1, 4000, 8, dtype=torch.bfloat16)
    weights = layer.weights(x[:, :64], positions=Positions(encoding, x[:, :64]))
    y = layer(x)
    assert_close(y[:, :64], layer(x[:, :64]), dtype=torch.bfloat16)
    assert weights[0, 0].float().diagonal().min() > 0.9  # each token sees nearly itself alone
    near = layer(x[:, -64:])[:, 8:]
    assert_close(y[:, -56:].float(), near.float(), dtype=torch.bfloat16, depth=2)


def test_the_memory_of_fox_is_linear() -> None:
    """No tensor of its forward and backward passes has a number for each pair of tokens."""
    length = 2048
    layer, x = Attention(dim=32, heads=2, encoding=Fox(dim=32, heads=2)), torch.randn(1, length, 32)
    with Largest() as largest:
        layer(x).square().sum().backward()
    assert largest.elements < length * 256


@torch.no_grad()
@pytest.mark.parametrize("name", ["fox", "cable", "cope", "dape", "path"])
def test_weights_memories_copies_and_nothing(name: str) -> None:
    """The weights of packed texts, a decoder with cross-attention and a copy of its cache, and inputs of no token."""
    encoding = encoding_by_name(name, Sizes(dim=D, heads=H, kv_heads=2))
    layer = Attention(dim=D, heads=H, kv_heads=2, encoding=of_values(encoding)).double()
    x, texts = torch.randn(1, 9, D, dtype=torch.float64), torch.tensor([[1] * 4 + [2] * 5])
    weights = layer.weights(x, positions=Positions(encoding, x, segment_ids=texts))
    assert torch.equal((weights > 0)[0, 0], (texts == texts.T) & torch.ones(9, 9).tril().bool())
    v = layer.queries_keys_values(x)[..., -2 * WIDTH :].unflatten(-1, (2, -1)).transpose(1, 2)
    y = layer.output((weights @ v.repeat_interleave(2, dim=1)).transpose(1, 2).flatten(2))
    assert_close(layer(x, segment_ids=texts), y)
    decoder = Decoder(dim=D, heads=H, layers=2, encoding=name, cross_attention=True).double().eval()
    x, memory = torch.randn(2, 9, D, dtype=torch.float64), torch.randn(2, 7, D, dtype=torch.float64)
    cache = decoder.new_cache(2, 9)
    whole, first = decoder(x, memory=memory), decoder(x[:, :4], memory=memory, cache=cache)
    for each in (copy.deepcopy(cache), cache):
        assert_close(torch.cat((first, decoder(x[:, 4:], cache=each)), dim=1), whole)
    for shape in ((0, 5, D), (2, 0, D)):
        assert Decoder(dim=D, heads=H, layers=1, encoding=name)(torch.zeros(shape)).shape == shape
