"""What tells two objectives of a user apart, so that a continued fine-tuning cannot mix them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from posembed.errors import ArgumentError
from posembed.tuning.own import identity


def closure(value: Any) -> Any:
    def loss(model: Any, ids: Any, mask: Any) -> Any:
        return value

    return loss


def with_default(value: Any) -> Any:
    def loss(model: Any, ids: Any, mask: Any, weight: Any = value) -> Any:
        return weight

    return loss


def recursive(value: Any) -> Any:
    def loss(model: Any, ids: Any, mask: Any) -> Any:
        return loss if value else value

    return loss


class Weighted:
    def __init__(self, weight: Any) -> None:
        self.weight = weight

    def __call__(self, model: Any, ids: Any, mask: Any) -> Any:
        return self.weight

    def loss(self, model: Any, ids: Any, mask: Any) -> Any:
        return self.weight


class WeightedModule(torch.nn.Module):
    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = weight


HOLDERS = {
    "closure": closure,
    "default": with_default,
    "recursive": recursive,
    "partial": lambda value: partial(closure(0), weight=value),
    "partial of a closure": lambda value: partial(closure(value)),
    "object": Weighted,
    "method": lambda value: Weighted(value).loss,
    "module": WeightedModule,
    "closure in a closure": lambda value: closure(closure(value)),
}
VALUES: list[tuple[Any, Any]] = [
    (1, 2),
    (1, 1.0),
    ("a", b"a"),
    ([1, {"a": (2, None)}], [1, {"a": (2, False)}]),
    ({"a", "b"}, {"a", "c"}),
    (torch.ones(2), torch.ones(2, dtype=torch.bfloat16)),
    (torch.zeros(()), torch.zeros(1)),
]


@pytest.mark.parametrize("holder", HOLDERS)
def test_values_that_an_objective_holds_tell_it_apart(holder: str) -> None:
    make = HOLDERS[holder]
    seen = [identity(make(value)) for pair in VALUES for value in pair]
    assert len(set(seen)) == len({(type(value), repr(value)) for pair in VALUES for value in pair})
    for pair in VALUES:
        for value in pair:
            assert identity(make(value)) == identity(make(value))


def test_code_tells_functions_apart() -> None:
    found = [lambda model: 1, lambda model: 2, lambda other: 1, lambda model: model.a, lambda model: model.b]
    assert len({identity(each) for each in found}) == len(found)
    assert identity(None) == ""
    assert identity(Weighted) != identity(WeightedModule)


def test_a_value_that_cannot_be_kept_is_refused() -> None:
    with (
        open(__file__) as file,
        pytest.raises(ArgumentError, match="objective: it holds a TextIOWrapper, which cannot be pickled"),
    ):
        identity(closure(file))
