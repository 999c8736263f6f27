"""Many small cases in one test: ``together`` instead of ``pytest.mark.parametrize``.

A test with a thousand cases spends most of its time on being a thousand tests.
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import count, product
from typing import Any

import pytest
import torch

seed = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed
"""Where no GPU is, ``torch.manual_seed`` notes the whole call stack for one to come: as long as a small test."""
numbers = count()
asked = {"whole": False}
"""Whether every case was asked for, with --whole."""


settled = {"modules": 0}
"""How many modules were imported when the garbage collector was last told to pass over what there is."""


def settle() -> None:
    """Imported modules stay to the end: the collector, which accelerate runs behind a training, passes over them."""
    if len(sys.modules) > settled["modules"] + 50:
        gc.collect()
        gc.freeze()
        settled["modules"] = len(sys.modules)


def pairwise(one: Iterable[Any], other: Iterable[Any]) -> list[Any]:
    """Every pair of two values, for ``pytest.mark.parametrize``. Without --whole, each value is in at least one."""
    one, other = list(one), list(other)
    few = {(i % len(one), i % len(other)) for i in range(max(len(one), len(other)))}
    marks = {pair: () if pair in few else (pytest.mark.whole,) for pair in product(range(len(one)), range(len(other)))}
    return [pytest.param(one[i], other[j], marks=marked) for (i, j), marked in marks.items()]


def by_turns(cases: Iterable[Any], turn: int) -> list[Any]:
    """Every third case from number ``turn`` on; all cases with --whole. For a loop inside the case of a test."""
    return [case for number, case in enumerate(cases) if asked["whole"] or number % 3 == turn % 3]


def together(
    names: str | tuple[str, ...], cases: Iterable[Any], *, usual: Callable[..., bool] = lambda *case: True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Runs every case of a test in one test, each from the same seed, and reports all that fail.

    A case is the value of the only name, or a tuple with a value of each. Each case has a folder below tmp_path, and
    undoes what it changed with monkeypatch; it shares the other fixtures of the test.

    usual: the case -> whether it also runs without --whole.
    """
    arguments = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    values = [(case,) if len(arguments) == 1 else tuple(case) for case in cases]
    assert values

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def every(**fixtures: Any) -> None:
            failed, skipped = [], []
            chosen = values if asked["whole"] else [case for case in values if usual(*case)]
            assert chosen, f"no case of {arguments} is usual"
            for case in chosen:
                seed(0)
                settle()
                with ExitStack() as undone:
                    own = dict(zip(arguments, case, strict=True))
                    if "tmp_path" in fixtures:
                        own["tmp_path"] = fixtures["tmp_path"] / str(next(numbers))
                        own["tmp_path"].mkdir()
                    if "monkeypatch" in fixtures:
                        own["monkeypatch"] = undone.enter_context(fixtures["monkeypatch"].context())
                    for name in {"capsys", "capfd"} & fixtures.keys():
                        fixtures[name].readouterr()
                    try:
                        test(**fixtures | own)
                    except pytest.skip.Exception as reason:
                        skipped.append(str(reason))
                    except (Exception, pytest.fail.Exception) as error:
                        told = str(error) if isinstance(error, pytest.fail.Exception) else traceback.format_exc()
                        failed.append(f"{arguments} = {case}\n{told}")
                if "matplotlib.pyplot" in sys.modules:
                    sys.modules["matplotlib.pyplot"].close("all")
            if failed:
                pytest.fail(f"{len(failed)} of {len(chosen)} cases failed\n" + "\n".join(failed), pytrace=False)
            if len(skipped) == len(chosen):
                pytest.skip(skipped[0])

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in arguments]
        del every.__wrapped__  # pytest would ask it for its arguments
        every.__signature__ = signature.replace(parameters=left)
        return every

    return decorated
