"""A wrong argument of any public callable works as it reads, or raises a PosEmbedError: the promise of docs/errors.md.

The calls come from the signatures: each parameter in turn gets values of ``WRONG``, the others are right. Without
--whole it gets every third, of each kind some, and of the next parameter others.
"""

from __future__ import annotations

import copy
import inspect
import math
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import posembed
from posembed import PosEmbedError
from posembed.layers.base import Content
from posembed.nn import Memory, Positions, Sizes
from posembed.tables import TableLayout
from public_names import public_names
from together import asked, by_turns

plt = pytest.importorskip("matplotlib.pyplot")

RESULTS = (
    "Comparison",
    "Finding",
    "LongRopeSearch",
    "integrations.transformers.TableCallback",
    "integrations.transformers.from_pretrained",
)
"""What posembed builds, in each pass or as a result, and what transformers calls or loads with errors of its own."""

STEPS = ("formula", "scaled", "turned", "stored", "attend", "read", "project", "queries_keys_and_values", "weights",
         "of_tokens", "of_logits", "at_content", "write_values")  # fmt: skip
"""Methods that only layers call, with shapes that ``forward`` has checked (docs/errors.md)."""

NUMBERS = (2.5, -1, 0, True, 2**63, float("nan"), float("inf"))
OTHERS = ((2.5, 3), (-1, 2), (0, 0), (1, 2, 3), [], [1, 2], "./no/such", b"bytes", None, {"a": 1.5}, object())
ARRAYS = (np.ones((2, 3)), np.arange(3))
TENSORS = (
    torch.tensor(1.5),
    torch.tensor([1.5, 2.5]),
    torch.arange(3),
    torch.tensor(-1),
    torch.ones(2, 3),
    torch.ones(2, 2, 2, 2, 2, 2),
    torch.zeros(0),
    torch.zeros(2, 0, 3),
    torch.tensor([True, False]),
    torch.ones(2, 3, dtype=torch.complex64),
)
WRONG = (*NUMBERS, *OTHERS, *ARRAYS, *TENSORS)


def x() -> Tensor:
    return torch.randn(2, 5, 8)


CONTENT = Content(torch.zeros(2, 5, 2), torch.arange(5), torch.arange(5), lambda: None, lambda: None)
RIGHT: dict[str, Any] = {
    "index": torch.tensor([1, 0]),
    "present": None,
    "counted": True,
    "frequencies": torch.ones(4),
    "width": 2,
    "tensor": torch.randn(16, 8),
    "like": torch.randn(16, 8),
    "v": torch.randn(2, 2, 5, 8),
    "other": Memory(x()),
    "text_length": 5,
    "a": torch.randn(16, 8),
    "b": torch.randn(16, 8),
    "base": 100.0,
    "batch": 2,
    "between": posembed.Alibi(2),
    "cu_seqlens": torch.tensor([0, 2, 5]),
    "digit_ids": torch.arange(3),
    "dim": 8,
    "bias": posembed.layers.KerpleLog(2),
    "encoding": posembed.layers.NoPosition(),
    "encodings": [posembed.layers.NoPosition()],
    "logits": torch.randn(2, 5, 2),
    "content": CONTENT,
    "of_tokens": torch.zeros(2, 5, 2),
    "values": torch.zeros(2, 5, 2),
    "equals_id": 4,
    "factor": 2.0,
    "families": ("bert",),
    "generator": torch.Generator(),
    "grid": (2, 2),
    "head": 1,
    "head_dim": 8,
    "heads": 2,
    "height": 2,
    "images": torch.randn(2, 3, 8, 8),
    "image_size": 8,
    "k": torch.randn(2, 2, 5, 8),
    "k_positions": torch.arange(5),
    "keys": {},
    "layer": torch.randn(16, 8),
    "layers": 1,
    "length": 5,
    "long_factors": (1.0,) * 4,
    "longest": 16,
    "loss": lambda scaling: 1.0,
    "mask": torch.ones(2, 5),
    "max_len": 16,
    "max_shift": 2,
    "memory": Memory(x()),
    "module": nn.Embedding(16, 8),
    "name": "learned",
    "new": torch.randn(16, 8),
    "old": torch.randn(16, 8),
    "offset": 0,
    "original_length": 16,
    "pad_id": 1,
    "patch_size": 4,
    "position_ids": torch.arange(5),
    "positions": Positions(posembed.layers.NoPosition(), x()),
    "project": lambda rows: torch.cat((rows, rows), dim=-1),
    "q": torch.randn(2, 2, 5, 8),
    "q_length": 5,
    "q_positions": torch.arange(5),
    "question": "nothing",
    "rank": 0,
    "rows": torch.randn(16, 8),
    "separators": [2],
    "segment_ids": torch.tensor([1, 1, 2, 2, 2]),
    "short_factors": (1.0,) * 4,
    "size": 8,
    "sizes": Sizes(dim=8, heads=2, max_len=16),
    "source": "./no-such-folder/model.safetensors",
    "sources": ["./no-such-folder/model.safetensors"],
    "collection": "./no-such-folder/model.safetensors",
    "text": "no-such-file",
    "out": "no-such-folder/out",
    "state_dict": {"weight": torch.randn(16, 8)},
    "table": torch.randn(16, 8),
    "token_ids": torch.tensor([[1, 2, 4, 2, 1]] * 2),
    "tokens": torch.randn(6, 8),
    "vocab_size": 10,
    "window": 4,
    "world_size": 1,
    "x": x(),
    "model": nn.Embedding(16, 8),
    "device": torch.device("cpu"),
}
OWN: dict[str, dict[str, Any]] = {
    "Axis": {"name": "height"},
    "LearnedGridEmbedding.from_module": {"module": nn.Embedding(5, 8)},
    "LearnedGridEmbedding.from_state_dict": {"state_dict": {"weight": torch.randn(5, 8)}},
    "SampledPositionalEmbedding.from_module": {"module": nn.Embedding(16, 8), "sampler": "shifted"},
    "SampledPositionalEmbedding.from_state_dict": {"state_dict": {"weight": torch.randn(16, 8)}, "sampler": "shifted"},
    "HouseholderPath.at_content": {"content": CONTENT._replace(of_tokens=torch.zeros(2, 5, 18))},
    "LinearScaling": {"factor": 2.0},
    "NTKScaling": {"factor": 2.0},
    "SampledPositionalEmbedding": {"sampler": "shifted"},
    "TableLayout.resized": {"sizes": {}},
    "TableMonitor.count": {"rows": torch.arange(5)},
    "advise": {"runs": "./no/such"},
    "linear_shift": {"k": 1},
    "nn.KeyValueCache": {"keys": torch.zeros(1, 2, 2, 16, 4)},
    "nn.KeyValueCache.write_values": {"layer": 0},
    "nn.PerLayer.in_place": {"layer": 0},
    "nn.Positions.of_layer": {"layer": 0},
    "nn.Sizes.given": {"name": "max_len"},
    "positions.zigzag_shard": {"length": 8},
    "resize_table": {"length": 20},
    "resize_model_": {"length": 20},
    "search_longrope_factors": {"length": 20},
}
"""Arguments that mean something else in one callable."""


def public() -> dict[str, Any]:
    """All public functions and classes, each once, by name below posembed, posembed.layers or posembed.tables."""
    found = {
        id(thing): (re.sub(r"^posembed\.((layers|tables)\.)?", "", name), thing)
        for name, thing in reversed(public_names().items())
    }
    return {
        name: thing
        for name, thing in sorted(found.values(), key=lambda pair: pair[0])
        if callable(thing)
        and name not in RESULTS
        and not name.startswith("plots.")
        and not (isinstance(thing, type) and issubclass(thing, Exception))
    }


def parameters(call: Any) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p for p in inspect.signature(call).parameters.values() if p.kind not in kinds]


def right(name: str, call: Any) -> dict[str, Any]:
    taken = {p.name: p for p in parameters(call)}
    own = OWN.get(name, {})
    return {n: RIGHT[n] for n, p in taken.items() if p.default is p.empty and n not in own} | own


def calls() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every function, constructor and public method."""
    for name, thing in public().items():
        yield name, thing
        if not isinstance(thing, type) or name == "inputs.TextInput":  # a base class, which nobody can build
            continue
        built = thing(**right(name, thing))
        for method in sorted({*dir(thing)} - {*dir(nn.Module)} | {"forward"} & {*dir(thing)}):
            static = inspect.getattr_static(thing, method)
            function = getattr(static, "__func__", static)
            ours = isinstance(function, types.FunctionType) and function.__module__.startswith("posembed.")
            if ours and not method.startswith("_") and method != "wrong_forward":
                yield f"{name}.{method}", Fresh(built, method)


class Fresh:
    """A method of a copy of an object, so that no call changes the next."""

    def __init__(self, built: Any, method: str) -> None:
        self.built, self.method = built, method
        self.__signature__ = inspect.signature(getattr(built, method))

    def __call__(self, **arguments: Any) -> Any:
        return getattr(copy.deepcopy(self.built), self.method)(**arguments)


WHOLE = {"int": -(2**62), "Amount": 0, "Count": 1, "TwoOrMore": 2}
"""Annotations of whole numbers, and the least of each."""
NUMBERS = {"float": -math.inf, "NotNegative": 0, "Probability": 0, "Positive": 1e-9}
OTHERS_OF = {"bool": bool, "str": str, "Tensor": Tensor, "TableLayout": TableLayout}


def in_a_pass(call: Any) -> bool:
    """Whether a forward pass makes this call, so that only errors of Python and PyTorch are explained."""
    made = call.__init__ if isinstance(call, type) else call
    return isinstance(call, Fresh) or made.__code__.co_name == "explained"


def cannot_mean(value: Any, annotation: str) -> bool:
    """Whether no reading of an annotation takes this value."""
    base = annotation.removesuffix(" | None")
    value = int(value) if isinstance(value, Tensor) and str((value.dtype, value.dim())) == "(torch.int64, 0)" else value
    if value is None:
        return base == annotation and base in {*WHOLE, *NUMBERS, *OTHERS_OF, "Pair"}
    if base in WHOLE:
        return not (type(value) is int and WHOLE[base] <= value < 2**62)
    if base in NUMBERS:
        return not (type(value) in (int, float) and NUMBERS[base] <= value < math.inf)
    if base == "Pair":
        return not (
            isinstance(value, tuple | list) and len(value) == 2 and all(type(v) is int and v > 0 for v in value)
        )
    named = "Tensor" if base.startswith(("Float[", "Integer[", "Shaped[")) and base.endswith("]") else base
    return named in OTHERS_OF and not isinstance(value, OTHERS_OF[named])


def without_a_driver(error: Exception) -> bool:
    """Whether an error is PyTorch's own about a GPU: without one, a PyTorch that is built for GPUs refuses device 0."""
    return not torch.cuda.is_available() and "no NVIDIA driver" in str(error)


def error_of(call: Callable[..., Any], arguments: dict[str, Any]) -> Exception | None:
    try:
        call(**arguments)
    except Exception as error:
        return None if without_a_driver(error) else error
    finally:
        plt.close("all")
    return None


def shown(value: Any) -> str:
    return f"{type(value).__name__} {tuple(value.shape)} {value.dtype}" if hasattr(value, "dtype") else repr(value)


@pytest.mark.filterwarnings("ignore")
def test_a_wrong_argument_works_as_it_reads_or_raises_our_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    failures, tried, turn = [], 0, 0
    for name, call in calls():
        for parameter in parameters(call):
            turn += 1
            for value in by_turns(WRONG, turn):
                error = error_of(call, {**right(name, call), parameter.name: value})
                tried += 1
                what = f"{name}({parameter.name}={shown(value)}): {parameter.annotation}"
                if error is None and not in_a_pass(call) and cannot_mean(value, str(parameter.annotation)):
                    failures.append(f"{what} is taken")
                elif error and not isinstance(error, PosEmbedError) and name.rpartition(".")[2] not in STEPS:
                    failures.append(f"{what} raises {type(error).__name__}: {str(error)[:200]}")
    assert tried > (20_000 if asked["whole"] else 20_000 // 3)
    assert not failures, "\n".join(failures)
