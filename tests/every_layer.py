"""Every public layer of posembed: how to build it, what to call it with, and its plain definition.

``tests/matrix`` calls each of them in every way. A layer that joins posembed joins here, or a test fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import posembed
from posembed import inputs
from posembed.layers.base import Content
from posembed.tables.fill import sinusoids

HEADS = 4
VOCABULARY = 100


class Size(NamedTuple):
    batch: int
    length: int
    dim: int


SMALL = Size(2, 5, 8)
SIZES = [
    SMALL,
    Size(1, 7, 16),
    Size(3, 341, 512),  # just below 2^19 elements, above which lookups and rotations go in pieces
    Size(3, 342, 512),
    Size(8, 255, 512),  # just below 4 MiB, from which large pages are asked for
    Size(8, 257, 512),
    Size(64, 512, 64),  # what crashed
    Size(32, 512, 768),  # what people use
]


@dataclass(frozen=True)
class Layer:
    """One public layer.

    make: the size -> the layer, without dropout unless it is asked for.
    arguments: the size -> what to call it with; floating tensors are its differentiable inputs.
    definition: the layer and the same arguments -> what the call must give, in plain PyTorch.
    positioned: whether it takes position_ids and offset.
    contract: what its ``forward`` follows (layers/base.py); "text" or "images" for an input layer.
    """

    make: Callable[..., nn.Module]
    arguments: Callable[[Size], tuple[Any, ...]]
    definition: Callable[..., Any]
    contract: str
    positioned: bool = False
    dropout: bool = False
    reads_tokens: bool = False


class Called(nn.Module):
    """An encoding that is called with a layer's projection, as a module that is called with tensors or numbers."""

    def __init__(self, encoding: nn.Module, dim: int, call: Callable[..., Any]) -> None:
        super().__init__()
        self.encoding = encoding
        self.projection = nn.Linear(dim, 2 * dim, bias=False)
        self.call = call

    def forward(self, *args: Any) -> Any:
        return self.call(self.encoding, self.projection, *args)


def activations(size: Size) -> tuple[Tensor]:
    return (torch.randn(size),)


def heads(size: Size) -> tuple[Tensor, Tensor]:
    """As a model makes them: (B, H, L, d), views of one product."""
    batch, length, dim = size
    both = torch.randn(batch, length, 2 * dim).split(dim, dim=-1)
    q, k = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in both)
    return q, k


def two_heads(size: Size) -> tuple[Tensor, Tensor]:
    """With twice the width of ``heads``, for encodings that need a multiple of four."""
    q, k = torch.randn(2, size.batch, size.length, 2, size.dim // 2).transpose(2, 3)
    return q, k


def token_ids(size: Size) -> tuple[Tensor]:
    return (torch.randint(2, VOCABULARY, size[:2]),)  # 0 and 1 are pad tokens


def lengths(size: Size) -> tuple[int, int]:
    return min(size.length, 64), min(size.length, 96)


def ids_of(layer_input: Tensor, position_ids: Tensor | None, offset: int | Tensor) -> Tensor:
    """(B, L), written out."""
    batch, length = layer_input.shape[0], layer_input.shape[-2 if layer_input.dim() == 4 else 1]
    if position_ids is not None:
        return position_ids.long().expand(batch, length)
    start = torch.as_tensor(offset).long().expand(batch)
    return start[:, None] + torch.arange(length)


def adds(rows: Callable[[nn.Module, Tensor], Tensor]) -> Callable[..., Tensor]:
    """The definition of a layer that adds the rows of the ids (B, L) to its input."""

    def definition(layer: nn.Module, x: Tensor, position_ids: Tensor | None = None, offset: int | Tensor = 0) -> Tensor:
        ids = ids_of(x, position_ids, offset)
        return x + rows(layer, ids).to(x.dtype)

    return definition


def concatenated(layer: nn.Module, x: Tensor, position_ids: Tensor | None = None, offset: int | Tensor = 0) -> Tensor:
    rows = F.embedding(ids_of(x, position_ids, offset), layer.weight).to(x.dtype)
    return torch.cat((x[..., : x.shape[-1] - layer.weight.shape[1]], rows), dim=-1)


def turned(
    layer: nn.Module, q: Tensor, k: Tensor, position_ids: Tensor | None = None, offset: int | Tensor = 0
) -> tuple[Tensor, Tensor]:
    angles = angles_of(ids_of(q, position_ids, offset), frequencies(layer.head_dim))

    def turn(x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        turns = torch.polar(torch.ones_like(angles), angles)
        turned = torch.complex(x[..., :half].double(), x[..., half:].double()) * turns
        return torch.cat((turned.real, turned.imag), dim=-1).to(x.dtype)

    return turn(q), turn(k)


def frequencies(head_dim: int, step: int = 2) -> Tensor:
    return 10000.0 ** (-torch.arange(0, head_dim, step, dtype=torch.float32) / head_dim)


def angles_of(ids: Tensor, frequencies: Tensor) -> Tensor:
    """In float32, as promised; what is turned by them, in float64."""
    return (ids.float()[:, None, :, None] * frequencies).double()


def polar(
    layer: nn.Module, q: Tensor, k: Tensor, position_ids: Tensor | None = None, offset: int | Tensor = 0
) -> tuple[Tensor, Tensor]:
    angles = angles_of(ids_of(q, position_ids, offset), frequencies(layer.head_dim, 1))

    def parts(x: Tensor, angles: Tensor) -> Tensor:
        size = F.softplus(x.double())
        return torch.cat((size * angles.cos(), size * angles.sin()), dim=-1).to(x.dtype)

    delta = layer.delta.clamp(-2 * math.pi, 0)[None, :, None]
    return parts(q, angles) * math.sqrt(2), parts(k, (angles.float() + delta).double())


def on_image(
    layer: nn.Module, q: Tensor, k: Tensor, position_ids: Tensor | None = None, offset: int | Tensor = 0
) -> tuple[Tensor, Tensor]:
    """Each patch as complex numbers, turned by its column and row, in float64."""
    cells = (ids_of(q, position_ids, offset) - 1).clamp(min=0)
    if hasattr(layer, "frequency_weight"):
        by_column, by_row = layer.frequency_weight[:, :, None]
    else:
        axis = 100.0 ** (-torch.arange(0, layer.head_dim, 4, dtype=torch.float32) / layer.head_dim)
        by_column, by_row = torch.cat((axis, 0 * axis)), torch.cat((0 * axis, axis))
    column, row = ((axis.float())[:, None, :, None] for axis in (cells % layer.grid[1], cells // layer.grid[1]))
    turns = torch.polar(torch.tensor(1.0), column * by_column + row * by_row)

    def turn(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)

    return turn(q), turn(k)


def bias(of_pairs: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """The definition of a bias: the layer, query positions (Lq, 1) and key positions (Lk,) -> (H, Lq, Lk)."""

    def definition(layer: nn.Module, q_length: int, k_length: int) -> Tensor:
        k = torch.arange(k_length)
        q = torch.arange(k_length - q_length, k_length)[:, None]
        return of_pairs(layer, q, k)

    return definition


def alibi(layer: nn.Module, q: Tensor, k: Tensor) -> Tensor:
    slopes = torch.tensor([2.0 ** (-8.0 * (head + 1) / HEADS) for head in range(HEADS)])
    return -slopes[:, None, None] * (q - k).abs()


def t5(layer: nn.Module, q: Tensor, k: Tensor) -> Tensor:
    from transformers.models.t5.modeling_t5 import T5Attention

    bucket = T5Attention._relative_position_bucket(k - q, bidirectional=True, num_buckets=32, max_distance=128)
    return F.embedding(bucket, layer.bucket_weight).permute(2, 0, 1)


def kerple_log(layer: nn.Module, q: Tensor, k: Tensor) -> Tensor:
    r1, r2 = (F.softplus(w)[:, None, None] for w in (layer.r1_weight, layer.r2_weight))
    return -r1 * torch.log1p(r2 * (q - k).abs())


def kerple_power(layer: nn.Module, q: Tensor, k: Tensor) -> Tensor:
    r1, r2 = F.softplus(layer.r1_weight), 2 * torch.sigmoid(layer.r2_weight)
    return -r1[:, None, None] * (q - k).abs() ** r2[:, None, None]


def fire(layer: nn.Module, q: Tensor, k: Tensor) -> Tensor:
    c, threshold = layer.c.abs(), (layer.threshold_factor * layer.initial_threshold).abs()
    nearness = torch.log(c * (q - k).abs() + 1) / (torch.log(c * torch.maximum(q, threshold) + 1) + 1e-6)
    hidden = (nearness[..., None] * layer.hidden_weight + layer.hidden_bias).relu()
    return (hidden @ layer.output_weight.T + layer.output_bias).permute(2, 0, 1)


def lookhere(layer: nn.Module, q: Tensor, k: Tensor) -> Tensor:
    """Four heads, each with one corner of the image, written out."""
    (_, width), half = layer.grid, 0.5
    down, right = ((k - 1) // width - (q - 1) // width), (k - 1) % width - (q - 1) % width
    corners = ((down <= 0) & (right <= 0), (down <= 0) & (right >= 0), (down >= 0) & (right <= 0))
    seen = torch.stack((*corners, (down >= 0) & (right >= 0)))
    penalty = torch.where(seen, -half * (down**2 + right**2).float().sqrt(), float("-inf"))
    return torch.where((q == 0) | (k == 0), 0.0, penalty)


def digit_rows(layer: nn.Module, ids: Tensor) -> Tensor:
    """SeqPE written out: the digits of each position as text, and attention as a sum over the tokens before."""
    different, which = ids.unique(return_inverse=True)
    digits = torch.tensor([[int(digit) for digit in str(int(p)).zfill(layer.digits)] for p in different])
    x = torch.cat(
        (layer.value_weight[digits] + layer.place_weight, layer.last_weight.expand(len(digits), 1, -1)), dim=1
    )

    def norm(part: nn.Module, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * part.weight + part.bias

    def linear(part: nn.Module, x: Tensor) -> Tensor:
        return x @ part.weight.T + part.bias

    for part in layer.encoder:
        three = linear(part.attention_input, norm(part.attention_norm, x))
        q, k, v = three.unflatten(-1, (3, layer.encoder_heads, -1)).permute(2, 0, 3, 1, 4)
        scores = torch.einsum("nhid,nhjd->nhij", q, k) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), float("-inf"))
        x = x + linear(part.attention_output, (scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        hidden = linear(part.hidden, norm(part.mlp_norm, x))
        x = x + linear(part.output, F.gelu(hidden, approximate="tanh"))
    return (layer.scale * linear(layer.output, norm(layer.norm, x[:, -1])))[which]


def averaged(called: Called, q_length: int, k_length: int) -> Tensor:
    encoding = called.encoding
    n, h = encoding.max_len, encoding.heads
    q, k = called.projection(encoding.weight).unflatten(-1, (2, h, -1)).unbind(1)
    logits = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1])
    by_distance = torch.stack([logits.diagonal(-d, dim1=1, dim2=2).mean(-1) for d in range(n)], dim=-1)
    by_distance = torch.cat((by_distance[:-1], torch.zeros_like(by_distance[-1:])))  # one head has no position
    i, j = torch.arange(k_length - q_length, k_length)[:, None], torch.arange(k_length)
    return by_distance[:, (i - j).clamp(min=0)]


def rolling(called: Called, q_length: int, k_length: int) -> Tensor:
    return called.projection(called.encoding.weight[torch.arange(q_length, q_length + k_length) % 4])


def call_rolling(encoding: nn.Module, project: nn.Module, q_length: int, k_length: int) -> Tensor:
    return encoding.before_queries_keys(project, torch.arange(q_length, q_length + k_length))


def tupe(called: Called, q_length: int, k_length: int) -> tuple[Tensor, Tensor]:
    """Layer norm, projections and logits pair by pair, in float64; and the queries of content."""
    encoding = called.encoding
    p = encoding.weight.double()
    p = (p - p.mean(-1, keepdim=True)) / (p.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    p = p * encoding.norm_weight + encoding.norm_bias
    both = (p @ encoding.projection_weight.double().T + encoding.projection_bias).unflatten(-1, (2, HEADS, -1))
    i, j = torch.arange(k_length - q_length, k_length)[:, None], torch.arange(k_length)[None]
    logits = (both[i, 0] * both[j, 1]).sum(-1) / math.sqrt(2 * both.shape[-1])
    bias = logits.permute(2, 0, 1) + t5(encoding.relative, i, j)
    bias = torch.where(j == 0, encoding.first_weight[1][:, None, None], bias)
    bias = torch.where(i == 0, encoding.first_weight[0][:, None, None], bias)
    return encoding.weight[:q_length].unflatten(-1, (HEADS, -1)) / math.sqrt(2), bias.float()


def call_tupe(encoding: nn.Module, project: nn.Module, q_length: int, k_length: int) -> tuple[Tensor, Tensor]:
    k, content = torch.arange(k_length), encoding.weight.unflatten(-1, (HEADS, -1))
    q, _ = encoding.at_queries_keys(content[:q_length], content[:k_length], k[:q_length], k)
    return q, encoding.at_scores(k[k_length - q_length :], k)


def some_activations(size: Size) -> tuple[Tensor]:
    """Of a few tokens, because they are read pair by pair."""
    return (torch.randn(min(size.batch, 3), min(size.length, 96), size.dim),)


def read_content(encoding: nn.Module, project: nn.Module, x: Tensor) -> Tensor:
    """The scores (B, H, L, L) of a layer of attention, 0 where a token is not seen."""
    q, k = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in project(x).chunk(2, dim=-1))
    ids = torch.arange(x.size(1))
    seen = ids <= ids[:, None]
    with torch.autocast("cpu", enabled=False):  # as in a model
        q, k, bias = encoding.at_content(q, k, Content(encoding.of_tokens(x), ids, ids, lambda: seen, lambda: None))
        scores = q @ k.mT / math.sqrt(q.size(-1) or 1)
        return (scores if bias is None else scores + bias).float().masked_fill(~seen, 0)


def content(of_pairs: Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """The definition of scores from content, in float64: the encoding, x, and A = q k / sqrt(d) -> (B, H, L, L)."""

    def definition(called: Called, x: Tensor) -> Tensor:
        x, weight = x.double(), called.projection.weight.double()
        q, k = ((x @ w.T).unflatten(-1, (HEADS, -1)).transpose(1, 2) for w in weight.chunk(2))
        return of_pairs(called.encoding, x, q, k).tril().float()

    return definition


def scaled(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / math.sqrt(q.shape[-1])


def fox(layer: nn.Module, x: Tensor, q: Tensor, k: Tensor, sign: int = 1) -> Tensor:
    z = x @ layer.gate_weight.double().T + layer.gate_bias
    sums = F.logsigmoid(sign * z).transpose(1, 2).cumsum(-1)
    return scaled(q, k) + sums[..., :, None] - sums[..., None, :]


def cope(layer: nn.Module, x: Tensor, q: Tensor, k: Tensor) -> Tensor:
    gates = torch.sigmoid(scaled(q, k)).tril()
    positions = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=len(layer.weight) - 1)
    rows, share = positions.long(), positions - positions.long()
    e = layer.weight.double()
    low, high = (torch.einsum("bhid,bhijd->bhij", q, e[at]) for at in (rows, (rows + 1).clamp(max=len(e) - 1)))
    return scaled(q, k) + low + share * (high - low)


def dape(layer: nn.Module, x: Tensor, q: Tensor, k: Tensor) -> Tensor:
    ids = torch.arange(x.shape[1])
    scores = scaled(q, k)
    bias = kerple_log(layer.bias, ids[:, None], ids).double()
    both = torch.cat((scores, bias.expand(len(x), -1, -1, -1)), dim=1)
    hidden = torch.einsum("wh,bhij->bwij", layer.hidden_weight.double(), both) + layer.hidden_bias[:, None, None]
    hidden = torch.where(hidden > 0, hidden, 0.01 * hidden)
    return (
        scores
        + bias
        + torch.einsum("hw,bwij->bhij", layer.output_weight.double(), hidden)
        + (layer.output_bias[:, None, None])
    )


def path(layer: nn.Module, x: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Each step multiplies all earlier keys by the matrix of the new token."""
    projected = (x @ layer.down_weight.double().T @ layer.direction_weight.double().T).mT
    mixed = F.conv1d(F.pad(projected, (2, 0)), layer.mixing_weight.double().unsqueeze(1), groups=projected.size(1))
    w = F.silu(mixed).mT.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    w = w / (w.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    beta = 2 * torch.sigmoid(x @ layer.strength_weight.double().T + layer.strength_bias).transpose(1, 2)
    keys, rows = k[:, :, :0], []
    for t in range(x.shape[1]):
        own = w[:, :, t, None]
        keys = keys - beta[:, :, t, None, None] * (keys * own).sum(-1, keepdim=True) * own
        keys = torch.cat((keys, k[:, :, t : t + 1]), dim=2)
        row = scaled(q[:, :, t : t + 1], keys).squeeze(2)
        rows.append(F.pad(row, (0, x.shape[1] - 1 - t)))
    return torch.stack(rows, dim=2)


def text_input(layer: nn.Module, ids: Tensor, position_ids: Tensor | None = None, offset: int | Tensor = 0) -> Tensor:
    """What an input layer of any text model is, read from its parts."""
    parts = dict(layer.named_modules())
    names = [name for name in parts if "." not in name]
    tokens = next(parts[n] for n in names if n in {"word_embeddings", "wte", "embed_tokens", "tokens_embed",
                                                   "token_embedding"})  # fmt: skip
    positions = next(m for m in parts.values() if isinstance(m, posembed.LearnedPositionalEmbedding))
    x = F.embedding(ids.long(), tokens.weight) * getattr(layer, "scale", 1.0)
    if getattr(layer, "project_in", None) is not None:
        x = x @ layer.project_in.weight.T
    if getattr(layer, "token_type_embeddings", None) is not None:
        x = x + layer.token_type_embeddings.weight[0]
    places = ids_of(x, position_ids, offset) + positions.layout.front
    x = x + F.embedding(places, positions.weight)
    norm = next((m for m in parts.values() if isinstance(m, nn.LayerNorm)), None)
    return x if norm is None else F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps)


GRID_SPECIAL = 1


def grid_of(size: Size) -> tuple[int, int]:
    """A grid of at most size.length places, and not a square one."""
    height = max(1, math.isqrt(size.length) - 1)
    return height, max(1, (size.length - GRID_SPECIAL) // height)


def grid_activations(size: Size) -> tuple[Tensor]:
    height, width = grid_of(size)
    return (torch.randn(size.batch, GRID_SPECIAL + height * width, size.dim),)


def images(size: Size) -> tuple[Tensor]:
    height, width = grid_of(size)
    return (torch.randn(size.batch, 3, 4 * height, 4 * width),)


def image_input(layer: nn.Module, pixels: Tensor) -> Tensor:
    projection = layer.projection
    patches = F.conv2d(pixels, projection.weight, projection.bias, stride=4).flatten(2).transpose(1, 2)
    special = [getattr(layer, name).expand(len(pixels), -1, -1) for name in layer.special_tokens]
    return torch.cat((*special, patches), dim=1) + layer.position_embeddings.weight


def grid_rows(layer: nn.Module, ids: Tensor) -> Tensor:
    height, width = layer.grid
    cells = torch.cartesian_prod(torch.arange(height), torch.arange(width)).double()
    rows = torch.cat([sinusoids(cells[:, axis], layer.dim // 2) for axis in (1, 0)], dim=1)
    return F.embedding(ids, torch.cat((torch.zeros(1, layer.dim), rows)))


def text(make: Callable[..., nn.Module], *, dropout: bool = True) -> Layer:
    return Layer(
        lambda s, **k: make(
            vocab_size=VOCABULARY, max_len=s.length + 3, dim=s.dim, **({"dropout": 0.0} if dropout else {}) | k
        ),
        token_ids,
        text_input,
        "text",
        positioned=True,
        dropout=dropout,
        reads_tokens=True,
    )


ROWS = adds(lambda layer, ids: F.embedding(ids, layer.weight))
P = posembed.layers
LAYERS: dict[str, Layer] = {
    "LearnedPositionalEmbedding": Layer(
        lambda s, **k: P.LearnedPositionalEmbedding(max_len=s.length + 3, dim=s.dim, **{"dropout": 0.0} | k),
        activations, ROWS, "input", positioned=True, dropout=True,
    ),
    "ExtendedPositionalEmbedding": Layer(
        lambda s, **k: P.ExtendedPositionalEmbedding(
            max_len=s.length + 3, dim=s.dim, method="linear", **{"dropout": 0.0} | k
        ),
        activations, ROWS, "input", positioned=True, dropout=True,
    ),
    "SampledPositionalEmbedding": Layer(
        lambda s, **k: P.SampledPositionalEmbedding(
            max_len=s.length + 3, dim=s.dim, sampler="shifted", **{"dropout": 0.0} | k
        ),
        activations, ROWS, "input", positioned=True, dropout=True,
    ),
    "ConcatenatedPositionalEmbedding": Layer(
        lambda s, **k: P.ConcatenatedPositionalEmbedding(max_len=s.length + 3, dim=s.dim, **{"dropout": 0.0} | k),
        activations, concatenated, "input", positioned=True, dropout=True,
    ),
    "RollingPositionalEmbedding": Layer(
        lambda s: Called(P.RollingPositionalEmbedding(window=4, dim=s.dim), s.dim, call_rolling),
        lengths, rolling, "both",
    ),
    "SinusoidalPositionalEmbedding": Layer(
        lambda s, **k: P.SinusoidalPositionalEmbedding(s.dim, **k),
        activations, adds(lambda m, ids: sinusoids(ids, m.dim)), "input", positioned=True, dropout=True,
    ),
    "BilevelEncoding": Layer(
        lambda s, **k: P.BilevelEncoding(max_len=6, dim=s.dim, between=P.Alibi(HEADS), **{"dropout": 0.0} | k),
        activations, adds(lambda m, ids: F.embedding(ids % 6, m.weight)), "input", positioned=True, dropout=True,
    ),
    "SequentialPositionalEmbedding": Layer(
        lambda s, **k: P.SequentialPositionalEmbedding(
            longest=s.length + 3, dim=s.dim, width=8, encoder_heads=2, layers=1, **{"dropout": 0.0} | k
        ),
        activations, adds(digit_rows), "input", positioned=True, dropout=True,
    ),
    "NoPosition": Layer(lambda s: P.NoPosition(), activations, lambda m, x, **_: x, "input", positioned=True),
    "LearnedGridEmbedding": Layer(
        lambda s, **k: P.LearnedGridEmbedding(grid=grid_of(s), dim=s.dim, **{"dropout": 0.0} | k),
        grid_activations, ROWS, "input", positioned=True, dropout=True,
    ),
    "SinusoidalGridEmbedding": Layer(
        lambda s, **k: P.SinusoidalGridEmbedding(grid=grid_of(s), dim=s.dim, **k),
        grid_activations, adds(grid_rows), "input", positioned=True, dropout=True,
    ),
    "RotaryEmbedding": Layer(
        lambda s: P.RotaryEmbedding(s.dim // HEADS), heads, turned, "rotation", positioned=True,
    ),
    "PolarEmbedding": Layer(
        lambda s: P.PolarEmbedding(head_dim=s.dim // HEADS, heads=HEADS, delta_init="uniform"),
        heads, polar, "rotation", positioned=True,
    ),
    "AxialRotaryEmbedding": Layer(
        lambda s: P.AxialRotaryEmbedding(head_dim=s.dim // 2, grid=(s.length, 2)),
        two_heads, on_image, "rotation", positioned=True,
    ),
    "MixedRotaryEmbedding": Layer(
        lambda s: P.MixedRotaryEmbedding(head_dim=s.dim // 2, heads=2, grid=(s.length, 2)),
        two_heads, on_image, "rotation", positioned=True,
    ),
    "LookHere": Layer(lambda s: P.LookHere(heads=HEADS, grid=(8, 12)), lengths, bias(lookhere), "bias"),
    "Alibi": Layer(lambda s: P.Alibi(HEADS), lengths, bias(alibi), "bias"),
    "T5Bias": Layer(lambda s: P.T5Bias(HEADS), lengths, bias(t5), "bias"),
    "KerpleLog": Layer(lambda s: P.KerpleLog(HEADS), lengths, bias(kerple_log), "bias"),
    "KerplePower": Layer(lambda s: P.KerplePower(HEADS), lengths, bias(kerple_power), "bias"),
    "Fire": Layer(lambda s: P.Fire(HEADS, threshold=3.0), lengths, bias(fire), "bias"),
    "AveragedPositionalEmbedding": Layer(
        lambda s: Called(
            P.AveragedPositionalEmbedding(max_len=96, dim=s.dim, heads=HEADS),
            s.dim,
            lambda m, project, q, k: m.in_layer(project)(q, k),
        ),
        lengths, averaged, "both",
    ),
    "Tupe": Layer(
        lambda s: Called(
            P.Tupe(max_len=96, dim=s.dim, heads=HEADS, reset_first=True, relative=P.T5Bias(HEADS)), s.dim, call_tupe
        ),
        lengths, tupe, "both",
    ),
    **{
        name: Layer(lambda s, make=make: Called(make(s), s.dim, read_content), some_activations, content(of), "both")
        for name, make, of in (
            ("Fox", lambda s: P.Fox(dim=s.dim, heads=HEADS), fox),
            ("Cable", lambda s: P.Cable(dim=s.dim, heads=HEADS), lambda *a: fox(*a, sign=-1)),
            ("Cope", lambda s: P.Cope(s.dim // HEADS, max_len=5, std=1.0), cope),
            ("Dape", lambda s: P.Dape(P.KerpleLog(HEADS)), dape),
            ("HouseholderPath", lambda s: P.HouseholderPath(dim=s.dim, heads=HEADS), path),
        )
    },
    "BertInput": text(inputs.BertInput),
    "RobertaInput": text(inputs.RobertaInput),
    "GPT1Input": text(inputs.GPT1Input),
    "GPT2Input": text(inputs.GPT2Input),
    "BartInput": text(inputs.BartInput),
    "OPTInput": text(lambda **k: inputs.OPTInput(**k, token_dim=4), dropout=False),
    "CLIPTextInput": text(inputs.CLIPTextInput, dropout=False),
    "WhisperDecoderInput": text(inputs.WhisperDecoderInput),
    "TransformerInput": text(inputs.TransformerInput),
    "ConvS2SInput": text(inputs.ConvS2SInput),
    "ViTInput": Layer(
        lambda s, **k: inputs.ViTInput(image_size=[4 * n for n in grid_of(s)], patch_size=4, dim=s.dim, **k),
        images, image_input, "images", dropout=True,
    ),
    "DeiTInput": Layer(
        lambda s, **k: inputs.DeiTInput(image_size=[4 * n for n in grid_of(s)], patch_size=4, dim=s.dim, **k),
        images, image_input, "images", dropout=True,
    ),
}  # fmt: skip


ALIKE = ("GPT1Input", "GPT2Input", "BartInput", "CLIPTextInput", "WhisperDecoderInput", "TransformerInput",
         "ConvS2SInput", "DeiTInput")  # fmt: skip
"""Input layers that differ from the others in what they declare; what runs them is the same."""


def is_usual(name: str, size: Size = SMALL) -> bool:
    """Whether a layer, at a size, also runs without --whole where a case takes long."""
    at_the_largest = ("LearnedPositionalEmbedding", "SinusoidalPositionalEmbedding", "BertInput")
    return name not in ALIKE and (size != SIZES[-1] or name in at_the_largest or LAYERS[name].contract == "bias")


EACH_KIND = ("LearnedPositionalEmbedding", "SinusoidalPositionalEmbedding", "LearnedGridEmbedding", "RotaryEmbedding",
             "T5Bias", "BertInput", "RobertaInput", "ViTInput")  # fmt: skip
"""One layer of each way above the thresholds: rows of a table and of a formula, rotations, biases, one lookup."""


def public_layers() -> set[str]:
    """The names of all modules that posembed offers."""
    found = {
        name: value
        for room in (posembed.layers, inputs)
        for name in dir(room)
        if isinstance(value := getattr(room, name), type) and issubclass(value, nn.Module)
    }
    return set(found) - {"PositionEncoding", "TextInput", "TokenEmbedding"}


def tensors(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def loss_of(result: Any) -> Tensor:
    """A number that every element of the result changes in its own way, infinities aside."""
    total = torch.zeros(())
    for tensor in tensors(result):
        weights = torch.linspace(-1, 1, tensor.numel()).view(tensor.shape)
        finite = tensor.masked_fill(tensor == float("-inf"), 0) if tensor.isneginf().any() else tensor
        total = total + (finite * weights).sum()
    return total / max(1, tensors(result)[0].numel()) ** 0.5
