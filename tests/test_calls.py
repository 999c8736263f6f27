"""A call that is wrong never passes in silence, and its error is the right call: for every public module."""

from __future__ import annotations

import abc
import gc
import inspect
import math
import pickle
import re
import weakref
from typing import Any, Generic, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import posembed
from every_layer import LAYERS, SMALL, public_layers
from posembed import inputs
from posembed.calls import AS_POSITIONS, OTHER_NAMES, closest, unknown
from posembed.errors import ArgumentError, CallError, PositionError
from posembed.nn import ENCODINGS, Sizes, encoding_by_name
from together import together

SIZES = {
    "max_len", "dim", "heads", "head_dim", "vocab_size", "grid", "window", "near_window", "image_size", "patch_size",
}  # fmt: skip
BY_ITSELF = [name for name, layer in LAYERS.items() if layer.contract != "both"]
"""The layers of ``every_layer`` that have a ``forward``."""


def public_modules() -> dict[str, type[nn.Module]]:
    found = {name: getattr(room, name) for room in (posembed.layers, inputs, posembed.nn) for name in dir(room)}
    bases = ("PositionEncoding", "TextInput")  # whose constructors are nn.Module's
    return {
        name: kind
        for name, kind in sorted(found.items())
        if isinstance(kind, type) and issubclass(kind, nn.Module) and name not in bases
    }


MODULES = public_modules()
T = TypeVar("T")


def parameters(call: Any) -> dict[str, inspect.Parameter]:
    return {
        p.name: p
        for p in inspect.signature(call).parameters.values()
        if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    }


def foreign(taken: Any) -> list[tuple[str, str]]:
    """The pairs (another library's name, ours) that a call with these parameters must answer."""
    return [(theirs, ours) for ours in taken for theirs in OTHER_NAMES.get(ours, "").split() if theirs not in taken]


def test_every_layer_is_here() -> None:
    assert public_layers() <= set(MODULES)


# Constructors


@together("name", MODULES)
def test_two_sizes_are_never_given_by_position(name: str) -> None:
    sizes = [p for p in parameters(MODULES[name]).values() if p.name in SIZES and p.default is p.empty]
    assert len(sizes) < 2 or all(p.kind is p.KEYWORD_ONLY for p in sizes)
    if len(sizes) > 1:
        values = [(8, 8) if p.name == "grid" else 8 for p in sizes]
        shown = ", ".join(f"{p.name}={value}" for p, value in zip(sizes, values, strict=True))
        with pytest.raises(CallError) as caught:
            MODULES[name](*values)
        assert "takes its arguments by name, and got 8" in str(caught.value).replace("(8, 8)", "8")
        assert f"write {name}({shown})" in str(caught.value)


@together("name", MODULES)
def test_other_names_of_an_argument_are_answered_with_ours(name: str) -> None:
    taken = parameters(MODULES[name])
    for theirs, ours in foreign(taken):
        with pytest.raises(TypeError, match=rf"^{name} does not take {theirs} \(here it is [^)]*\b{ours}\b"):
            MODULES[name](**{theirs: 8})


@together("name", MODULES)
def test_a_misspelt_argument_is_answered_with_the_nearest(name: str) -> None:
    for ours in parameters(MODULES[name]):
        if len(ours) > 4:
            with pytest.raises(CallError, match=rf"does not take {ours}z \(did you mean {ours}\?\). It takes "):
                MODULES[name](**{f"{ours}z": 8})


def test_all_wrong_names_are_answered_at_once() -> None:
    expected = (
        "Attention|LearnedPositionalEmbedding does not take d_model (here it is dim) or bias. It takes max_len, dim,"
    )
    with pytest.raises(CallError) as caught:
        posembed.LearnedPositionalEmbedding(d_model=8, bias=True)  # type: ignore[call-arg]
    assert str(caught.value).startswith(expected.partition("|")[2])


def test_what_is_given_stays_in_the_call_that_is_shown() -> None:
    with pytest.raises(CallError, match=r"write RotaryEmbedding\(64, base=500.0, pairing='interleaved'\) if that is"):
        posembed.RotaryEmbedding(64, 500.0, pairing="interleaved")  # type: ignore[misc]
    with pytest.raises(CallError, match="KerpleLog takes only heads by position, and got 2"):
        posembed.layers.KerpleLog(8, 16)  # type: ignore[call-arg]


class Narrow(posembed.LearnedPositionalEmbedding):
    """A user's subclass with names of its own."""

    def __init__(self, d_model: int, *, wrong: bool = False) -> None:
        if wrong:
            super().__init__(16, d_model)  # type: ignore[misc]
        super().__init__(max_len=16, dim=d_model)


def test_a_subclass_has_the_names_that_it_chooses() -> None:
    assert Narrow(8).dim == Narrow(d_model=8).dim == 8
    with pytest.raises(
        CallError, match=r"^LearnedPositionalEmbedding .* write LearnedPositionalEmbedding\(max_len=16, d"
    ):
        Narrow(8, wrong=True)
    with pytest.raises(CallError, match=r"^Narrow does not take dim\b"):
        Narrow(dim=8)  # type: ignore[call-arg]


def test_a_subclass_may_have_other_bases() -> None:
    class Other(posembed.LearnedPositionalEmbedding, abc.ABC, Generic[T]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

    assert Other(max_len=4, dim=8).dim == 8
    with pytest.raises(CallError, match=r"^LearnedPositionalEmbedding takes its arguments by name, and got 4, 8"):
        Other(4, 8)


def whole_sizes(name: str) -> dict[str, Any]:
    required = [p for p in parameters(MODULES[name]).values() if p.default is p.empty]
    return {p.name: (8, 8) if p.name in ("grid", "image_size") else 8 for p in required}


@together("whole", [np.int64, np.int32, torch.tensor, np.array])
@together("name", [name for name in MODULES if whole_sizes(name).keys() <= SIZES | {"layers"}])
def test_sizes_of_other_libraries_become_python_s(name: str, whole: Any) -> None:
    sizes = whole_sizes(name)
    given = {n: tuple(map(whole, size)) if isinstance(size, tuple) else whole(size) for n, size in sizes.items()}
    layer = MODULES[name](**given)
    assert repr(layer) == repr(MODULES[name](**sizes))
    for size in sizes.keys() & SIZES:
        assert isinstance(getattr(layer, size, 8), int | tuple)


@pytest.mark.parametrize("whole", [np.int64, torch.tensor])
def test_sizes_of_other_libraries_can_be_compiled(whole: Any) -> None:
    layer = posembed.LearnedPositionalEmbedding(max_len=whole(6), dim=whole(8), dropout=0.0)
    x = torch.randn(2, 5, 8)
    assert torch.equal(torch.compile(layer, backend="eager", fullgraph=True)(x), layer(x))


NOT_NUMBERS: tuple[Any, ...] = (float("nan"), float("inf"), -1.0, "1", torch.tensor(1.0), [1.0])
NO_VALUES: dict[str, tuple[Any, ...]] = {
    "base": (*NOT_NUMBERS, 0, None),
    "std": NOT_NUMBERS,
    "dropout": (*NOT_NUMBERS, None, nn.Dropout(0.1)),
    "layout": (None, "roberta", 1, posembed.tables.TableLayout.roberta),
    "init": (None, nn.init.normal_, [1.0], nn.Embedding(8, 8)),
    "scaling": ("linear", {"rope_type": "linear", "factor": 4.0}, 4.0),
    "registers": (None, 1.5, "1"),
    "c": (*NOT_NUMBERS, 0.0),
    "threshold": (*NOT_NUMBERS, 0.0),
    **dict.fromkeys(("width", "kv_heads", "hidden"), (*NOT_NUMBERS, 0, 2.5)),
    "heads_without": (*NOT_NUMBERS, 2.5),
}
"""Arguments -> values that are refused by name, before the layer gives NaN or an error from inside it."""


@together("name", [name for name in MODULES if whole_sizes(name).keys() <= SIZES | {"layers"}])
def test_a_value_that_cannot_be_used_is_refused_by_its_name(name: str) -> None:
    sizes = whole_sizes(name)
    refused = {argument: NO_VALUES[argument] for argument in parameters(MODULES[name]).keys() & NO_VALUES.keys()}
    for size, usual in sizes.items():
        refused[size] = tuple((n, 8) if isinstance(usual, tuple) else n for n in (0, -3, 2.5, "8", math.nan))
    for argument, values in refused.items():
        for value in values:
            with pytest.raises(ArgumentError, match=argument):
                MODULES[name](**sizes | {argument: value})


@together("name", MODULES)
def test_a_constructor_shows_its_own_signature(name: str) -> None:
    _, *written = inspect.signature(inspect.unwrap(MODULES[name].__init__)).parameters.values()
    assert [*inspect.signature(MODULES[name]).parameters.values()] == written


# Forward


@together("name", [*BY_ITSELF, "Attention", "EncoderLayer", "DecoderLayer", "Encoder", "Decoder"])
def test_forward_answers_as_a_constructor_does(name: str) -> None:
    if name in LAYERS:
        layer, arguments = LAYERS[name].make(SMALL), LAYERS[name].arguments(SMALL)
    else:
        layers = {"layers": 1} if name in ("Encoder", "Decoder") else {}
        layer, arguments = MODULES[name](dim=8, heads=2, encoding="rope", **layers), (torch.randn(2, 5, 8),)
    taken = parameters(layer.forward)
    first = list(taken)[: len(arguments)]
    for theirs, ours in foreign(taken):
        with pytest.raises(TypeError, match=rf"^{name} does not take {theirs} \(here it is [^)]*\b{ours}\b"):
            layer(*arguments, **{theirs: torch.zeros(1)})
    for wrong in ("bias", "key_padding_mask", "is_causal"):
        with pytest.raises(CallError, match=rf"^{name} does not take {wrong}.* It takes {first[0]}\b"):
            layer(*arguments, **{wrong: None})
    by_position = sum(p.kind is not p.KEYWORD_ONLY for p in taken.values())
    rest = [p.name for p in taken.values() if p.kind is p.KEYWORD_ONLY]
    more = [*arguments, *[torch.zeros(2, 5)] * (by_position + 1 - len(arguments))]
    with pytest.raises(
        CallError, match=rf"^{name} takes only {first[0]}.*by position, and got {by_position + 1}"
    ) as caught:
        layer(*more)
    assert all(f"{other}=..." in str(caught.value) for other in rest)


@together("name", BY_ITSELF)
def test_a_forward_of_a_subclass_gets_the_answer_of_the_class_that_it_calls(name: str) -> None:
    layer, arguments = LAYERS[name].make(SMALL), LAYERS[name].arguments(SMALL)
    kind: Any = type(layer)

    class Own(kind):
        def forward(self, *args: Any, key_padding_mask: Any = None) -> Any:
            return super().forward(*args, key_padding_mask=key_padding_mask)

    with pytest.raises(CallError) as expected:
        layer(*arguments, key_padding_mask=None)
    layer.__class__ = Own
    with pytest.raises(CallError) as caught:
        layer(*arguments)
    assert str(caught.value) == str(expected.value)
    assert f"{kind.__name__} does not take key_padding_mask" in str(caught.value)


# What a wrapped constructor must not change


def test_errors_are_caught_as_what_they_are() -> None:
    assert issubclass(PositionError, IndexError)
    assert issubclass(PositionError, ValueError)
    assert issubclass(CallError, TypeError)
    for kind in (PositionError, CallError, ArgumentError):
        again = pickle.loads(pickle.dumps(kind("position 8 has no row")))
        assert (type(again), str(again)) == (kind, "position 8 has no row")


# Names of things


@together(
    ("name", "near"),
    [
        ("ALiBi", ["alibi"]),
        ("RoPE", ["rope"]),
        ("yarn", ["rope-yarn"]),
        ("YaRN", ["rope-yarn"]),
        ("learnt", ["learned"]),
        ("sinusoid", ["sinusoidal", "sinusoidal-2d"]),
        ("kerple", ["kerple-log", "kerple-power"]),
        ("kerple_log", ["kerple-log"]),
        ("T5", ["t5"]),
        ("xyzzy", []),
        ("", []),
    ],
)
def test_the_nearest_names(name: str, near: list[str]) -> None:
    assert closest(name, ENCODINGS) == near


@together("name", ENCODINGS)
def test_any_spelling_of_a_name_finds_it(name: str) -> None:
    for spelt in (name.upper(), name.title().replace("-", "_"), f" {name}", name.replace("-", "")):
        assert closest(spelt, ENCODINGS) == [name]


def test_the_nearest_name_is_in_the_error() -> None:
    sizes = Sizes(dim=8, heads=2, max_len=4)
    for name, near in {"ALiBi": "alibi", "yarn": "rope-yarn", "learnt": "learned", "RoPE+window": "rope"}.items():
        with pytest.raises(ArgumentError) as caught:
            encoding_by_name(name, sizes)
        assert f"unknown encoding {name!r} (did you mean {near}?); choose from learned, rolling" in str(caught.value)
    with pytest.raises(ArgumentError, match=r"unknown thing 'xyzzy'; choose from a, b$"):
        raise unknown("thing", "xyzzy", ["a", "b"])


# What an outsider found


def test_a_layer_never_cuts_its_input_off() -> None:
    """Integers, bools and complex numbers for floats are refused, if rows are added to them."""
    wrong = []
    for name, layer in LAYERS.items():
        made, arguments = layer.make(SMALL), layer.arguments(SMALL)
        if type(made).__name__ == "Called":  # what it is called with, a Linear of torch reads first
            continue
        floats = [at for at, given in enumerate(arguments) if isinstance(given, Tensor) and given.is_floating_point()]
        for dtype in (torch.int64, torch.uint8, torch.bool, torch.complex64) if floats else ():
            given = [value.to(dtype) if at in floats else value for at, value in enumerate(arguments)]
            try:
                if not torch.equal(made(*given), given[0]):  # NoPosition adds nothing
                    wrong.append((name, dtype, "accepted"))
            except posembed.PosEmbedError:
                continue
            except Exception as error:
                wrong.append((name, dtype, repr(error)[:200]))
    assert wrong == []


@pytest.mark.parametrize("name", MODULES)
def test_a_missing_argument_is_named(name: str) -> None:
    needed = [p.name for p in parameters(MODULES[name]).values() if p.default is p.empty]
    if needed:
        with pytest.raises(CallError, match=rf"^{name} needs {needed[0]}\b.*{needed[-1]}=\.\.\.\)"):
            MODULES[name]()


def test_a_number_in_a_pass_is_no_bool_and_not_too_large() -> None:
    x, q = torch.zeros(1, 4, 8), torch.zeros(1, 2, 4, 8)
    rope = posembed.RotaryEmbedding(head_dim=8)
    for call in (
        lambda offset: posembed.LearnedPositionalEmbedding(max_len=16, dim=8)(x, offset=offset),
        lambda offset: posembed.SinusoidalPositionalEmbedding(dim=8)(x, offset=offset),
        lambda offset: rope(q, q, offset=offset),
    ):
        for offset in (True, 10**20, -(10**20)):
            with pytest.raises((ArgumentError, PositionError), match="offset"):
                call(offset)


def test_positions_of_queries_and_keys_are_called_by_their_names() -> None:
    q, right, rope = torch.zeros(1, 2, 4, 8), torch.arange(4), posembed.RotaryEmbedding(head_dim=8)
    for wrong in (torch.arange(5), torch.arange(4.0), torch.zeros(2, 4, dtype=torch.int64)):
        with pytest.raises(ArgumentError, match="q_positions"):
            rope.at_queries_keys(q, q, wrong, right)
        with pytest.raises(ArgumentError, match="k_positions"):
            rope.at_queries_keys(q, q, right, wrong)
    with pytest.raises(ArgumentError, match="d=8"):
        rope.at_queries_keys(q, torch.zeros(1, 2, 4, 6), right, right)


def test_classes_of_users_are_freed() -> None:
    def freed() -> weakref.ref[type]:
        class Mine(posembed.LearnedPositionalEmbedding):
            def __init__(self, rows: int) -> None:
                super().__init__(max_len=rows, dim=8)

        Mine(4)(torch.zeros(1, 2, 8))
        with pytest.raises(CallError):
            Mine(row=4)  # type: ignore[call-arg]
        return weakref.ref(Mine)

    kind = freed()
    gc.collect()
    assert kind() is None


@together("name", AS_POSITIONS)
def test_a_layer_that_takes_no_mask_names_the_ids_that_a_mask_gives(name: str) -> None:
    layer, function = posembed.LearnedPositionalEmbedding(max_len=8, dim=4), AS_POSITIONS[name].partition("(")[0]
    advice = f"(pass position_ids={AS_POSITIONS[name]}, from posembed.positions)"
    for given in (name, *OTHER_NAMES.get(name, "").split()):
        with pytest.raises(CallError, match=re.escape(advice)):
            layer(torch.randn(1, 3, 4), **{given: torch.ones(1, 3)})
    assert name in inspect.signature(getattr(posembed.positions, function)).parameters
