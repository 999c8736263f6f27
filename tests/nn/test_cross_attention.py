"""Encoder-decoders: cross-attention against torch, transformers and its formula; every layout; what is refused."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from encoding_names import is_usual
from posembed import Alibi, LearnedPositionalEmbedding, PositionEncoding, RotaryEmbedding
from posembed.errors import ArgumentError
from posembed.layers import LinearScaling
from posembed.nn import (
    CrossAttention,
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    Memory,
    Positions,
    Sizes,
    encoding_by_name,
    gpt2_init_,
)
from posembed.nn.encodings import names_for
from small_models import DIM, scrambled, tokens
from together import together
from tolerance import assert_close, close

HEADS = 2
ACROSS = [None, "rope", "alibi", "t5", "kerple-log", "pope"]
MASK = torch.tensor([[1, 1, 1, 0, 0, 0, 0], [1] * 7, [1, 0, 0, 0, 0, 0, 0]])
LENGTHS = (3, 7, 1)


def decoder(name: str = "rope", across: str | None = None, **options: object) -> Decoder:
    encoding = encoding_by_name(
        name, Sizes(dim=DIM, heads=HEADS, kv_heads=options.get("kv_heads"), max_len=12, window=4)
    )  # type: ignore[arg-type]
    settings = {"dim": DIM, "heads": HEADS, "layers": 2, "cross_attention": True, "cross_encoding": across, **options}
    return scrambled(Decoder(encoding=encoding, **settings))  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_decoder_layer_of_torch(norm: str) -> None:
    """With the same weights, nn.TransformerDecoderLayer gives the same values and gradients, under a padded memory."""
    options = {"encoding": "none", "norm": norm, "hidden": 24, "cross_attention": True}
    layer = scrambled(DecoderLayer(dim=DIM, heads=HEADS, **options))  # type: ignore[arg-type]
    peer = nn.TransformerDecoderLayer(
        DIM, HEADS, 24, dropout=0.0, activation="gelu", batch_first=True, norm_first=norm == "pre", dtype=torch.float64
    )
    ours = layer.state_dict()
    ours["cross_attention.in"] = torch.cat(
        (ours.pop("cross_attention.queries.weight"), ours.pop("cross_attention.keys_values.weight"))
    )
    names = {
        "attention.queries_keys_values.weight": "self_attn.in_proj_weight", "attention.output": "self_attn.out_proj",
        "cross_attention.in": "multihead_attn.in_proj_weight", "cross_attention.output": "multihead_attn.out_proj",
        "attention_norm": "norm1", "cross_norm": "norm2", "mlp_norm": "norm3", "mlp.0": "linear1", "mlp.2": "linear2",
    }  # fmt: skip
    state = {key: torch.zeros_like(value) for key, value in peer.state_dict().items()}
    for key, value in ours.items():
        name = next(name for name in names if key.startswith(name))
        state[key.replace(name, names[name])] = value
    peer.load_state_dict(state)
    x, memory = tokens(3, 5).requires_grad_(), tokens(3, 7).requires_grad_()
    y = layer(x, memory=memory, memory_mask=MASK)
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    theirs = peer(x, memory, tgt_mask=future, memory_key_padding_mask=MASK == 0)
    assert_close(y, theirs)
    grads = [torch.autograd.grad(out.square().sum(), (x, memory)) for out in (y, theirs)]
    assert_close(*grads)


def test_the_cross_attention_of_bart() -> None:
    """With the same weights, BART's attention in transformers gives the same numbers."""
    bart = pytest.importorskip("transformers.models.bart.modeling_bart")
    layer = scrambled(CrossAttention(dim=DIM, heads=HEADS))
    peer = bart.BartAttention(DIM, HEADS, is_decoder=True, bias=False, config=bart.BartConfig()).double().eval()
    k, v = layer.keys_values.weight.chunk(2)
    weights = {"q_proj": layer.queries.weight, "k_proj": k, "v_proj": v, "out_proj": layer.output.weight}
    peer.load_state_dict({f"{name}.weight": weight for name, weight in weights.items()})
    peer.config._attn_implementation = "eager"
    x, memory = tokens(3, 5), tokens(3, 7)
    hidden = torch.zeros(3, 1, 1, 7, dtype=torch.float64).masked_fill(MASK[:, None, None] == 0, -math.inf)
    theirs = peer(x, key_value_states=memory, attention_mask=hidden)[0]
    positions = Positions(RotaryEmbedding(DIM // HEADS), x, memory=Memory(memory, mask=MASK))
    assert_close(layer(x, positions), theirs)


class Rows(PositionEncoding):
    """Rows at the input of W_q and W_k, as a user may define them."""

    def before_queries_keys(self, project: Callable[[Tensor], Tensor], position_ids: Tensor) -> Tensor:
        rows = torch.sin(position_ids.double().unsqueeze(-1) * torch.arange(1, DIM + 1))
        return project(rows.flatten(0, -2)).unflatten(0, rows.shape[:-1])


@pytest.mark.parametrize("name", [*ACROSS, "rows"])
def test_cross_attention_is_its_formula(name: str | None) -> None:
    """Queries at the decoder's positions, keys at the memory's, head by head and query by query in float64."""
    sizes = Sizes(dim=DIM, heads=HEADS, causal=False)
    encoding = Rows() if name == "rows" else encoding_by_name(name or "none", sizes)
    layer, encoding = scrambled(CrossAttention(dim=DIM, heads=HEADS)), scrambled(encoding)
    x, memory = tokens(1, 5), tokens(1, 7)
    at, of = torch.arange(5) + 3, torch.arange(7)
    k_rows, v_rows = layer.keys_values.weight.split(DIM)
    q, k, v = x @ layer.queries.weight.T, memory @ k_rows.T, memory @ v_rows.T
    both = torch.cat((layer.queries.weight, k_rows))
    if name == "rows":
        added = [encoding.before_queries_keys(lambda rows: rows @ both.T, ids) for ids in (at, of)]
        q, k = q + added[0][..., :DIM], k + added[1][..., DIM:]
    q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v))
    q, k = encoding.at_queries_keys(q, k, at, of)
    bias = encoding.at_scores(at, of)
    out = torch.zeros(1, HEADS, 5, DIM // HEADS, dtype=torch.float64)
    for head in range(HEADS):
        for i in range(5):
            scores = (k[0, head] @ q[0, head, i]) / math.sqrt(q.size(-1))
            scores = scores if bias is None else scores + bias[head, i]
            out[0, head, i] = scores.softmax(0) @ v[0, head]
    expected = out.transpose(1, 2).flatten(2) @ layer.output.weight.T
    positions = Positions(Alibi(HEADS), x, at, memory=Memory(memory, encoding=encoding))
    assert_close(layer(x, positions), expected)


@torch.no_grad()
@together("kv_heads", [None, 1])
@together("across", ACROSS)
def test_every_layout_gives_the_same_numbers(across: str | None, kv_heads: int | None) -> None:
    """A padded source is the unpadded one, on either side; token by token with a cache is the whole target."""
    model = decoder("rope", across, kv_heads=kv_heads)
    x, memory = tokens(3, 5), tokens(3, 7)
    y = model(x, memory=memory, memory_mask=MASK)
    for row, length in enumerate(LENGTHS):
        alone = model(x[row : row + 1], memory=memory[row : row + 1, :length])
        assert_close(y[row], alone[0])
    left = model(x, memory=memory.flip(1), memory_mask=MASK.flip(1))
    assert_close(left[1], model(x[1:2], memory=memory.flip(1)[1:2])[0])
    for again in (True, False):  # the memory may be passed in each step, or in the first alone
        cache, parts = model.new_cache(3, 5), []
        for number, part in enumerate(x.split([2, 1, 1, 1], dim=1)):
            given = {"memory": memory.clone(), "memory_mask": MASK} if again or not number else {}
            parts.append(model(part, cache=cache, **given))
        assert_close(torch.cat(parts, dim=1), y)
    target = torch.tensor([[0, 0, 1, 1, 1], [1] * 5, [1, 1, 1, 1, 1]])
    padded = model(x, mask=target, memory=memory, memory_mask=MASK)
    assert_close(padded[0, 2:], model(x[:1, 2:], memory=memory[:1, :3])[0])


@torch.no_grad()
@together("name", names_for("decoder"), usual=is_usual)
def test_no_encoding_reaches_cross_attention_unasked(name: str) -> None:
    """Without a cross encoding, the order of the memory's tokens changes nothing, whatever the decoder's encoding."""
    model, x, memory = decoder(name), tokens(2, 6), tokens(2, 7)
    order = torch.randperm(7)
    assert_close(model(x, memory=memory), model(x, memory=memory[:, order]))
    asked = decoder(name, "rope")
    assert not close(asked(x, memory=memory), asked(x, memory=memory[:, order]))


@pytest.mark.parametrize("recompute", [False, True])
def test_one_table_for_both_sides_is_trained_by_both(recompute: bool) -> None:
    table = LearnedPositionalEmbedding(max_len=9, dim=DIM, dropout=0.0)
    settings = {"dim": DIM, "heads": HEADS, "layers": 2, "encoding": table, "checkpoint_activations": recompute}
    both = nn.ModuleList((Encoder(**settings), Decoder(cross_attention=True, **settings))).double()  # type: ignore[arg-type]
    own = copy.deepcopy(both)
    own[1].encoding = copy.deepcopy(own[0].encoding)
    source, target = tokens(2, 9), tokens(2, 5)
    grads = []
    for pair in (both, own):
        pair[1](target, memory=pair[0](source)).square().sum().backward()
        grads.append([side.encoding.weight.grad for side in pair])
    assert sum(p.numel() for p in own.parameters()) - sum(p.numel() for p in both.parameters()) == 9 * DIM
    assert_close(grads[0][0], grads[1][0] + grads[1][1])
    assert not grads[1][1][5:].any()  # the encoder alone trains the rows past the target


def test_compiled_without_a_break() -> None:
    model, x, memory = decoder("rope", "alibi"), tokens(3, 5), tokens(3, 7)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    expected = model(x, memory=memory, memory_mask=MASK)
    assert_close(compiled(x, memory=memory, memory_mask=MASK), expected)


def test_an_encoder_layer_may_attend_to_a_memory_too() -> None:
    layer = scrambled(EncoderLayer(dim=DIM, heads=HEADS, encoding="rope", cross_attention=True))
    x, memory = tokens(1, 5), tokens(1, 7)
    changed = x.clone()
    changed[:, -1] += 1
    assert not torch.equal(layer(x, memory=memory)[:, 0], layer(changed, memory=memory)[:, 0])


def test_initial_values_count_the_matrices_of_each_stack() -> None:
    sizes = {"dim": 64, "heads": 4, "layers": 3, "encoding": "none"}
    model = nn.ModuleList((Encoder(**sizes), Decoder(cross_attention=True, **sizes)))  # type: ignore[arg-type]
    gpt2_init_(model)
    for stack, matrices in zip(model, (6, 9), strict=True):
        for layer in stack.layers:
            for matrix in layer.added_to_the_residual():
                assert matrix.std().item() == pytest.approx(0.02 / math.sqrt(matrices), rel=0.1)


X, SOURCE = torch.randn(2, 5, DIM), torch.randn(2, 7, DIM)
SAME_POSITIONS = torch.tensor([[[0] + [1] * 6], [[1, 0] + [1] * 5]])  # 0, 0, 1, 2, ... with both masks


def plain(**options: object) -> Decoder:
    settings = {"dim": DIM, "heads": HEADS, "layers": 1, "encoding": "rope", "cross_attention": True, **options}
    return Decoder(**settings)  # type: ignore[arg-type]


def in_two_steps(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    model = plain()
    with torch.no_grad():
        cache = model.new_cache(2, 9)
        model(X, cache=cache, **first)
        model(X[:, :1], cache=cache, **second)


def with_other_positions() -> None:
    """The cache has read the memory at other positions."""
    model = plain(cross_encoding="rope")
    with torch.no_grad():
        cache = model.new_cache(2, 9)
        for ids in (torch.arange(7), 2 * torch.arange(7)):
            memory = Memory(SOURCE, encoding=model.cross_encoding, position_ids=ids)
            positions = Positions(model.encoding, X[:, :1], cache=cache, memory=memory)
            model(X[:, :1], positions=positions)
            positions.commit()


def with_another_encoding() -> None:
    model = plain(cross_encoding="rope")
    with torch.no_grad():
        cache = model.new_cache(2, 9)
        model(X[:, :1], memory=SOURCE, cache=cache)
        model.cross_encoding = None
        model(X[:, :1], memory=SOURCE, cache=cache)


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: plain()(X), r"needs the outputs of an encoder: pass memory=\(B, S, D\)"),
    (lambda: plain(cross_attention=False)(X, memory=SOURCE), "this Decoder does not attend to a memory; build"),
    (lambda: plain()(X, memory=SOURCE[:1]), "the memory has 1 sources and x has 2 targets"),
    (lambda: plain()(X, memory=SOURCE[..., :8]), "the memory has the width 8, and this decoder 16"),
    (lambda: plain()(X, memory=SOURCE[0]), r"is the output \(B, S, D\) of an encoder, .*; got \(7, 16\)"),
    (lambda: plain()(X, memory=SOURCE[:, :0]), "with S at least 1"),
    (lambda: plain()(X, memory=SOURCE, memory_mask=torch.ones(2, 6)), r"mask must be \(B, L\)=\(2, 7\)"),
    (lambda: plain()(X, memory=SOURCE, memory_mask=torch.zeros(2, 7)), "only padding"),
    (lambda: plain()(X, memory_mask=torch.ones(2, 7)), "memory_mask belongs to a memory"),
    (lambda: plain()(X, memory=SOURCE, segment_ids=torch.zeros(5, dtype=torch.long)), "pad them instead"),
    (lambda: plain(cross_encoding="learned"), "needs max_len"),
    (lambda: plain(cross_encoding="sinusoidal"), "does nothing in cross-attention; give it to the encoder"),
    (lambda: plain(cross_encoding="fire"), "is for a decoder"),
    (lambda: plain(cross_encoding=Alibi(4)), "Alibi is built for heads=4"),
    (lambda: plain(cross_encoding="rope", cross_attention=False), "cross_encoding is for cross-attention"),
    (lambda: CrossAttention(dim=10, heads=4), "heads must divide the width"),
    (lambda: plain()(X, memory=SOURCE, positions=Positions(Alibi(HEADS), X)), "positions hold the .* memory"),
    (lambda: in_two_steps({"memory": SOURCE}, {"memory": SOURCE + 1}), "have read another memory, memory_mask"),
    (with_other_positions, "positions or encoding of the memory"),
    (with_another_encoding, "positions or encoding of the memory"),
    (
        lambda: in_two_steps({"memory": SOURCE}, {"memory": SOURCE, "memory_mask": torch.ones(2, 7)}),
        "have read another memory, memory_mask",
    ),
    (
        lambda: in_two_steps(*({"memory": SOURCE, "memory_mask": mask.expand(2, -1)} for mask in SAME_POSITIONS)),
        "have read another memory, memory_mask",
    ),
]


@together(("call", "message"), REFUSED)
def test_what_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


def test_a_copy_of_a_memory_with_nan_is_the_same_memory() -> None:
    broken = SOURCE.clone()
    broken[1, 3:] = math.nan
    in_two_steps({"memory": broken}, {"memory": broken.clone()})
    for at in ((0, 0), (1, 3)):
        other = broken.clone()
        other[at] = 0.5 if other[at].isnan().any() else math.nan
        with pytest.raises(ArgumentError, match="have read another memory"):
            in_two_steps({"memory": broken}, {"memory": other})


@torch.no_grad()
def test_a_step_that_fails_leaves_the_memory_and_an_emptied_cache_takes_another() -> None:
    model = plain().double()
    x, source = X.double(), SOURCE.double()
    cache = model.new_cache(2, 9)
    with pytest.raises(ArgumentError):
        model(x, cache=cache, memory=source[..., :8])
    assert cache.memory is None
    model(x, cache=cache, memory=source)
    cache.length = 0
    assert_close(model(x, cache=cache, memory=source + 1), model(x, memory=source + 1))


@torch.no_grad()
@pytest.mark.parametrize("across", ACROSS)
@pytest.mark.parametrize("given", [False, True])
def test_a_reordered_cache_attends_to_the_memory_of_its_rows(across: str | None, given: bool) -> None:
    model, x, source = decoder("rope", across), tokens(3, 5), tokens(3, 7)
    mask, index = torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 1], [1] * 5 + [0] * 2]), torch.tensor([2, 0, 2, 1])
    cache = model.new_cache(3, 9)
    model(x[:, :3], cache=cache, memory=source, memory_mask=mask)
    cache.reorder(index)
    of_rows = {"memory": source[index], "memory_mask": mask[index]}
    y = model(x[index, 3:], cache=cache, **(of_rows if given else {}))
    assert_close(y, model(x[index], **of_rows)[:, 3:])
    with pytest.raises(ArgumentError, match="have read another memory"):
        model(x[index, :1], cache=cache, memory=source[[0, 1, 2, 1]], memory_mask=mask[index])


@torch.no_grad()
def test_the_memory_of_one_text_is_the_same_for_its_beams_if_its_ids_are_given() -> None:
    model, x, source, ids = decoder("rope", "rope"), tokens(1, 5), tokens(1, 7), 2 * torch.arange(7)[None]
    rows = torch.zeros(3, dtype=torch.int64)
    outputs = []
    cache = model.new_cache(1, 9)
    for part, of_rows in ((x[:, :3], slice(None)), (x[rows, 3:], rows)):
        memory = Memory(source[of_rows], encoding=model.cross_encoding, position_ids=ids[of_rows])
        positions = Positions(model.encoding, part, cache=cache, memory=memory)
        outputs.append(model(positions.at_input(part), positions=positions))
        positions.commit()
        if of_rows is not rows:
            cache.reorder(rows)
    memory = Memory(source, encoding=model.cross_encoding, position_ids=ids)
    positions = Positions(model.encoding, x, memory=memory)
    assert_close(outputs[1], model(positions.at_input(x), positions=positions)[rows, 3:])


@pytest.mark.parametrize("across", ACROSS)
def test_a_memory_outlives_the_cache_that_read_it(across: str | None) -> None:
    """Neither another cache nor a training step reads the keys and values of an earlier cache: weights may change."""
    model, x, outputs = decoder("rope", across), tokens(2, 5), tokens(2, 7)
    memory = Memory(outputs, encoding=model.cross_encoding)

    def read(cache: object = None) -> Tensor:
        positions = Positions(model.encoding, x, memory=memory, cache=cache)  # type: ignore[arg-type]
        y = model(x, positions=positions)
        positions.commit()
        return y

    with torch.no_grad():
        read(model.new_cache(2, 5))
    read().sum().backward()
    for layer in model.layers:
        assert layer.cross_attention.keys_values.weight.grad.any()
        layer.cross_attention.keys_values.weight.data *= -2
    expected = model(x, memory=outputs)
    assert_close(read(), expected)
    with torch.no_grad():
        assert_close(read(model.new_cache(2, 5)), expected)


def test_the_copy_of_a_cache_goes_on_alone_with_the_same_model() -> None:
    model, x, memory = decoder(), tokens(2, 4), tokens(2, 7).requires_grad_() * 1.0
    with torch.no_grad():
        cache = model.new_cache(2, 4)
        model(x[:, :2], memory=memory, cache=cache)
        branch = copy.deepcopy(cache)
        assert list(branch.memory.kept) == [layer.cross_attention for layer in model.layers]
        other = torch.cat((x[:, :2], x[:, 2:].flip(1)), dim=1)
        for text, own in ((x, cache), (other, branch)):
            parts = model(text[:, 2:], cache=own)
            assert_close(parts, model(text, memory=memory)[:, 2:])


@torch.no_grad()
@pytest.mark.parametrize("source", [2, 6, 30])
def test_the_length_of_the_target_may_be_given_under_a_scaling(source: int) -> None:
    """Queries and keys take the length of the longer text, however the target's is given; step by step too."""
    scaled = RotaryEmbedding(DIM // HEADS, scaling=LinearScaling(original_length=4))
    model = scrambled(plain(cross_encoding=scaled))
    x, memory = tokens(2, 6), tokens(2, source)
    y = model(x, memory=memory)
    padded, mask = torch.cat((memory, tokens(2, 3)), dim=1), torch.ones(2, source + 3)
    mask[:, source:] = 0
    for length in (6, torch.tensor(6), torch.tensor([6, 6]), torch.full((2, 6), 6)):
        assert_close(model(x, memory=memory, text_length=length), y)
        assert_close(model(x, memory=padded, memory_mask=mask, text_length=length), y)
    cache = model.new_cache(2, 6)
    steps = [model(part, memory=memory, cache=cache, text_length=6) for part in x.split(1, dim=1)]
    assert_close(torch.cat(steps, dim=1), y)
