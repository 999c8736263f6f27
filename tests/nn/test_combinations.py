"""Layouts combined: masks, ids, offsets, chunks and caches give the numbers of each text alone."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from accelerate import cpu_offload
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import small_models
from encoding_names import is_usual
from largest import Largest
from posembed import PositionEncoding
from posembed.errors import ArgumentError
from posembed.lab.advice.candidates import TABLE
from posembed.nn import Decoder, Positions, gpt2_init_
from posembed.nn.encodings import names_for
from small_models import DIM, LENGTH, tokens
from together import together
from tolerance import assert_close

HEADS = 4
DECODERS = [*names_for("decoder"), "rope+window", "rope-yarn+logn"]
NAMES = [*DECODERS, *(f"encoder {name}" for name in names_for("encoder"))]
model_of = partial(small_models.model_of, kv_heads=2)


@torch.no_grad()
@together("first", [0, 9])
@together("name", NAMES, usual=is_usual)
def test_given_ids_mean_the_same_in_every_shape_and_beside_a_mask(name: str, first: int) -> None:
    """The length of a text, which scaled encodings read, comes from the positions of its tokens alone."""
    model, x, ids = model_of(name), tokens(2, 7), torch.arange(first, first + 7)
    y = model(x, ids)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [1] * 7])
    for given_ids in (ids, ids[None], ids.expand(2, -1)):
        assert_close(model(x, given_ids, mask=torch.ones(2, 7)), y)
        padded = model(x, given_ids, mask=mask)
        assert_close(padded[:1, :4], model(x[:1, :4], ids[:4]))
        assert_close(padded[1:], y[1:])


@torch.no_grad()
@together("name", NAMES, usual=is_usual)
def test_offsets_beside_a_mask(name: str) -> None:
    model, x = model_of(name), tokens(3, 7)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7, [1, 1, 0, 1, 1, 1, 0]])
    for offset in (4, torch.tensor(4), torch.tensor([0, 9, 3])):
        y = model(x, mask=mask, offset=offset)
        for row, kept in enumerate(mask.bool()):
            start = int(offset[row]) if isinstance(offset, Tensor) and offset.dim() else int(offset)
            assert_close(y[row, kept], model(x[row : row + 1, kept], offset=start)[0])


WRONG_OFFSETS = (-1, 2.5, torch.tensor([1]), torch.ones(2), torch.ones(2, 1, dtype=torch.int64), torch.arange(7))


@pytest.mark.parametrize("offset", WRONG_OFFSETS, ids=str)
def test_a_wrong_offset_is_refused_with_a_mask_as_without(offset: int | Tensor) -> None:
    model, x = model_of("sinusoidal"), tokens(2, 7)
    messages = []
    for mask in (None, torch.ones(2, 7)):
        with pytest.raises(ArgumentError) as caught:
            model(x, offset=offset, mask=mask)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def padded_mask(batch: int, length: int, draw: torch.Generator) -> Tensor:
    """Padding on the left, on the right or anywhere, with at least one token in each row."""
    kept = torch.rand(batch, length, generator=draw) < torch.rand(batch, 1, generator=draw)
    first = torch.randint(length, (batch,), generator=draw)
    kept |= torch.arange(length) >= first[:, None]
    return kept.int()


@torch.no_grad()
@settings(max_examples=60)
@given(
    st.sampled_from(DECODERS), st.lists(st.integers(0, 6), min_size=1, max_size=5), st.integers(0, 99), st.booleans()
)
def test_a_padded_prompt_in_chunks_is_the_prompt_at_once(name: str, steps: list[int], seed: int, whole: bool) -> None:
    """Some chunks hold only padding of a row. The last tokens are read again after the cache has forgotten them."""
    torch.manual_seed(seed)
    length = 1 + sum(steps)
    assume(length <= LENGTH or TABLE["decoder"].get(name, ["", None])[1] != "training")
    model, x = model_of(name), tokens(3, length)
    mask = padded_mask(3, length, torch.Generator().manual_seed(seed))
    expected = model(x, mask=mask, text_length=40)
    cache, parts, start = model.new_cache(3, length), [], 0
    for step in (*steps, 1):
        end = start + step
        given_mask = mask[:, :end] if whole else mask[:, start:end]
        parts.append(model(x[:, start:end], mask=given_mask, cache=cache, text_length=40))
        start = end
    assert_close(torch.cat(parts, dim=1)[mask.bool()], expected[mask.bool()])
    cache.length = length // 2
    again = model(x[:, length // 2 :], mask=mask[:, length // 2 :], cache=cache, text_length=40)
    kept = mask[:, length // 2 :].bool()
    assert_close(again[kept], expected[:, length // 2 :][kept])


@together("given", [False, True])
@together("side", ["none", "left", "right"])
@together("name", DECODERS, usual=is_usual)
def test_reordered_sequences_are_read_as_if_they_had_been_so(name: str, side: str, given: bool) -> None:
    """As in a beam search, and where texts end at different times; in inference mode as well."""
    model, x, new = model_of(name), tokens(3, 6), tokens(4, 2)
    kept = torch.arange(6) < torch.tensor([6, 4, 5])[:, None]
    mask = None if side == "none" else kept if side == "right" else kept.flip(1)
    ids = torch.arange(6) + torch.tensor([[0], [1], [2]]) if given else None
    for index in (torch.tensor([2, 0, 0, 1]), torch.tensor([1], dtype=torch.int32), torch.tensor([0, 1, 2])):
        rows = index.long()
        expected, step = model.new_cache(len(rows), 8), new[: len(rows)]
        of_step = None if ids is None else 6 + torch.arange(2) + ids[rows, :1]
        with torch.no_grad():
            of_rows = [None if each is None else each[rows] for each in (ids, mask)]
            model(x[rows], of_rows[0], mask=of_rows[1], cache=expected, text_length=40)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                cache = model.new_cache(3, 8)
                model(x, ids, mask=mask, cache=cache, text_length=40)
                cache.reorder(index)
            with torch.no_grad():
                expected.length = 6
                assert_close(
                    model(step, of_step, cache=cache, text_length=40),
                    model(step, of_step, cache=expected, text_length=40),
                )


@pytest.mark.parametrize(
    "index", [torch.tensor([3]), torch.tensor([-1]), torch.tensor([True, False, True]), torch.tensor([[0]]),
              torch.tensor([]), torch.tensor([1.0]), [0, 1]], ids=str,
)  # fmt: skip
def test_rows_that_a_cache_does_not_have_are_refused(index: Tensor) -> None:
    cache = model_of("rope").new_cache(3, 8)
    with pytest.raises(ArgumentError, match=r"index: expected (rows from 0 to 2; got -?[13]|integers)"):
        cache.reorder(index)
    with pytest.raises(AttributeError):
        cache.keys = cache.keys[:, :1]  # type: ignore[misc]


@torch.no_grad()
def test_a_shortened_cache_counts_again_from_tokens_that_were_counted() -> None:
    model, x = model_of("rope"), tokens(2, 8)
    cache = model.new_cache(2, 8)
    model(x[:, :3], cache=cache)
    model(x[:, 3:5], torch.tensor([9, 11]), cache=cache)
    with pytest.raises(ArgumentError, match="pass the position_ids of the new tokens too"):
        model(x[:, 5:], cache=cache)
    for length in (4, 3, 2, 0):
        cache.length = length
        if length == 4:
            with pytest.raises(ArgumentError, match="pass the position_ids of the new tokens too"):
                model(x[:, 4:], cache=cache)
            continue
        assert_close(model(x[:, length:], cache=cache), model(x)[:, length:])
    cache.length = 5
    for wrong in (9, -1, 2.5, True, None):
        with pytest.raises(ArgumentError, match="length"):
            cache.length = wrong  # type: ignore[assignment]
    assert cache.length == 5
    cache.length = 3
    early = Positions(model.encoding, x[:, 3:5], cache=cache)  # type: ignore[arg-type]
    model.layers[0](x[:, 3:5], positions=early)
    with pytest.raises(ArgumentError, match="has read 3 tokens"):
        cache.length = 5


@torch.no_grad()
@together("mask", [None, torch.ones(1, 5), torch.tensor([[0, 0, 1, 1, 1]])])
@together("beams", [1, 3])
def test_one_prompt_is_read_on_by_several_beams(mask: Tensor | None, beams: int) -> None:
    model, x, new = model_of("rope"), tokens(1, 5), tokens(3, 2)[:beams]
    cache = model.new_cache(1, 9)
    model(x, mask=mask, cache=cache)
    for index in ([0] * beams, [*reversed(range(beams))], [0]):
        cache.reorder(torch.tensor(index))
        new = new[: len(index)]
        length = cache.length
        y = model(new[:, :1], mask=None if mask is None else torch.ones(len(index), 1), cache=cache)
        cache.length = length
        whole = torch.cat((x.expand(len(index), -1, -1), new[:, :1]), dim=1)
        of_all = None if mask is None else torch.cat((mask.expand(len(index), -1), torch.ones(len(index), 1)), dim=1)
        assert_close(y, model(whole, mask=of_all)[:, 5:])


@torch.no_grad()
def test_a_cache_that_is_reordered_during_a_pass_takes_no_tokens() -> None:
    model, x = model_of("rope"), tokens(2, 6)
    cache = model.new_cache(2, 9)
    model(x[:, :5], mask=torch.tensor([[0, 1, 1, 1, 1], [1] * 5]), cache=cache)
    late = Positions(model.encoding, x[:, 5:], cache=cache)  # type: ignore[arg-type]
    model(x[:, 5:], positions=late)
    cache.reorder(torch.tensor([1, 0]))
    with pytest.raises(ArgumentError, match="reordered during this pass"):
        late.commit()


@torch.no_grad()
@pytest.mark.parametrize("name", ["rope", "alibi", "rope+window", "rope-ntk"])
def test_a_padded_step_creates_no_mask_of_all_pairs(name: str) -> None:
    model, mask = model_of(name), torch.ones(2, 600)
    mask[0, :5] = 0
    cache = model.new_cache(2, 601)
    model(tokens(2, 600), mask=mask, cache=cache)
    with Largest() as largest:
        model(tokens(2, 1), cache=cache)
    assert largest.elements <= cache.keys.numel()


@torch.no_grad()
def test_a_cache_that_would_give_other_numbers_is_refused() -> None:
    model, x = model_of("sinusoidal"), tokens(2, 8)
    cache = model.new_cache(2, 8)
    model(x[:, :4], cache=cache)
    with pytest.raises(ArgumentError, match="the mask differs at 2 tokens that are in the cache"):
        model(x[:, 4:], mask=torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1], [1] * 8]), cache=cache)
    assert cache.length == 4
    assert_close(model(x[:, 4:], mask=torch.ones(2, 8), cache=cache), model(x)[:, 4:])
    cache = model.new_cache(2, 8)
    model(x[:, :4], torch.arange(10, 14), cache=cache)
    with pytest.raises(ArgumentError, match="pass the position_ids of the new tokens too"):
        model(x[:, 4:], cache=cache)
    ids = torch.arange(10, 18)
    assert_close(model(x[:, 4:], ids[4:], cache=cache), model(x, ids)[:, 4:])


@torch.no_grad()
def test_tokens_are_committed_once_after_all_layers() -> None:
    model, x = model_of("alibi"), tokens(2, 3)
    cache = model.new_cache(2, 9)
    assert model.encoding is not None
    early, late = Positions(model.encoding, x, cache=cache), Positions(model.encoding, x, cache=cache)
    model.layers[0](x, positions=early)
    with pytest.raises(ArgumentError, match="after all its layers=2 have read them; 1 have"):
        early.commit()
    model(x, positions=late)
    late.commit()
    for wrong in (late.commit, lambda: model(x, positions=late)):
        with pytest.raises(ArgumentError):
            wrong()
    assert cache.length == 3


@torch.no_grad()
@together("name", DECODERS, usual=is_usual)
def test_layers_that_share_weights_have_caches_of_their_own(name: str) -> None:
    model, x = model_of(name), tokens(2, 8)
    model.layers[1] = model.layers[0]
    cache = model.new_cache(2, 8)
    steps = [model(part, cache=cache) for part in x.split([5, 1, 2], dim=1)]
    assert_close(torch.cat(steps, dim=1), model(x))


@torch.no_grad()
@pytest.mark.parametrize("wide", ["encoding", "norms"])
def test_a_cache_has_the_dtype_of_the_keys(wide: str) -> None:
    """Biases or norms that stay in float32 in a bfloat16 model do not matter."""
    model = model_of("t5").bfloat16()
    for module in [model.encoding] if wide == "encoding" else [m for m in model.modules() if type(m) is nn.LayerNorm]:
        module.float()  # type: ignore[union-attr]
    model(tokens(2, 3).bfloat16(), cache=model.new_cache(2, 5))


class Adapted(nn.Module):
    """A linear layer with an adapter, as LoRA has it."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear, self.added = linear, nn.Parameter(0.3 * torch.randn_like(linear.weight))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x) + x @ self.added.T
        return y


@torch.no_grad()
@together("name", DECODERS, usual=is_usual)
def test_an_adapted_projection_is_the_merged_one(name: str) -> None:
    model, x = model_of(name), tokens(2, 8)
    merged = copy.deepcopy(model)
    for ours, theirs in zip(model.layers, merged.layers, strict=True):
        adapted = Adapted(ours.attention.queries_keys_values)  # type: ignore[union-attr, arg-type]
        ours.attention.queries_keys_values = adapted  # type: ignore[union-attr]
        theirs.attention.queries_keys_values.weight += adapted.added  # type: ignore[union-attr, operator]
    assert_close(model(x), merged(x), depth=len(model.layers))


@torch.no_grad()
@pytest.mark.parametrize("name", ["rolling", "learned-averaged", "rope"])
def test_an_offloaded_projection(name: str) -> None:
    """Weights that accelerate loads for the call of their module alone."""
    model, x = model_of(name), tokens(2, 8)
    y = model(x)
    for layer in model.layers:
        cpu_offload(layer, execution_device=torch.device("cpu"))
    assert_close(model(x), y)


@torch.no_grad()
@together("name", NAMES, usual=is_usual)
def test_an_offloaded_model(name: str) -> None:
    """Attention reads the encoding's weights, although no call of its module has accelerate load them."""
    model, x = model_of(name), tokens(2, 8)
    y = model(x)
    offloaded = copy.deepcopy(model)
    cpu_offload(offloaded, torch.device("cpu"))
    for _ in range(2):
        assert_close(offloaded(x), y)


@torch.no_grad()
@pytest.mark.parametrize("name", ["t5", "kerple-log", "fire"])
def test_a_bias_without_values_is_never_taken(name: str) -> None:
    model, x = model_of(name), tokens(2, 8)
    assert model.encoding is not None
    model.encoding.to("meta")
    with pytest.raises((ArgumentError, RuntimeError), match=r"on meta and the tokens are on cpu|device"):
        model(x)


def test_hooks_run_once_for_packed_tokens_without_a_batch() -> None:
    model, x, cu_seqlens = model_of("rope"), tokens(7), torch.tensor([0, 3, 7])
    model.register_forward_hook(lambda module, arguments, y: 2 * y)
    model.register_forward_pre_hook(lambda module, arguments: (3 * arguments[0],))
    assert_close(model(x, cu_seqlens=cu_seqlens), model(x[None], cu_seqlens=cu_seqlens)[0])


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.uint16, torch.uint32])
def test_segments_of_every_integer_dtype(dtype: torch.dtype) -> None:
    model, x, segment_ids = model_of("alibi"), tokens(2, 7), torch.tensor([[9, 9, 1, 1, 1, 4, 4], [0] * 7])
    assert_close(model(x, segment_ids=segment_ids.to(dtype)), model(x, segment_ids=segment_ids))


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.uint16, torch.uint32, torch.uint64])
@pytest.mark.parametrize("name", ["t5", "alibi", "kerple-log", "learned-averaged", "rope", "fire"])
def test_positions_of_every_integer_dtype(name: str, dtype: torch.dtype) -> None:
    """Also on both sides of the length from which on diagonals are computed, and where 0 follows 255."""
    model = model_of(name, layers=1)
    for length in (64, 116):
        ids = torch.cat((torch.arange(256 - length // 2, 256), torch.arange(length - length // 2)))
        x = tokens(1, length)
        assert_close(model(x, ids.to(dtype)), model(x, ids))


@together("name", DECODERS, usual=is_usual)
def test_a_cache_may_be_read_in_another_mode_than_it_was_written_in(name: str) -> None:
    model, x = model_of(name), tokens(1, 6)
    with torch.no_grad():
        expected = model(x)
    for first, then in ((torch.inference_mode, torch.no_grad), (torch.no_grad, torch.inference_mode)):
        with first():
            cache = model.new_cache(1, 6)
            model(x[:, :4], cache=cache)
        with then():
            assert_close(model(x[:, 4:], cache=cache), expected[:, 4:])


@torch.no_grad()
@together("name", NAMES, usual=is_usual)
def test_another_default_device(name: str) -> None:
    model, x, ids = model_of(name), tokens(2, 7), torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0] * 7])
    calls: list[dict[str, Tensor]] = [{}, {"mask": 1 - ids}, {"segment_ids": ids}]
    calls[1]["mask"][1] = 1
    expected = [model(x, **call) for call in calls]
    with torch.device("meta"):
        found = [model(x, **call) for call in calls]
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)


def test_initial_values_of_encodings_with_layers_inside_stay() -> None:
    class Mine(PositionEncoding):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.mix = nn.Embedding(8, DIM), nn.Linear(DIM, DIM)

    model = Decoder(dim=DIM, heads=HEADS, layers=1, encoding=Mine())
    before = copy.deepcopy(model.state_dict())
    gpt2_init_(model)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]) == key.startswith(("encoding.", "norm.", "layers.0.attention_norm.",
                                                                  "layers.0.mlp_norm.")), key  # fmt: skip
