"""A user's own objective: a loss, or a class with the methods of ``Objective``."""

from __future__ import annotations

import functools
import hashlib
import inspect
import pickle
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posembed.errors import ArgumentError
from posembed.evaluation.api import check
from posembed.evaluation.plan import Plan
from posembed.evaluation.results import Evaluation, ResultsFile
from posembed.evaluation.runnable import Runnable
from posembed.evaluation.texts import special_tokens
from posembed.modelfiles.safetensors import tensor_sha256
from posembed.statistics import Estimate
from posembed.tuning.draws import padded, pieces, window_of
from posembed.tuning.objectives import Objective, Progress, Setup
from posembed.tuning.texts import Texts

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""A function of the model, token ids (B, L) with special tokens, and their mask (B, L), which is 0 at the padding. It
returns the mean loss of the rows, ()."""
METHODS = ("windows_once", "prepare", "loss", "plan", "by_document", "kept")


class OwnLoss:
    """A user's loss, measured as models of this kind are. See ``Objective`` for the methods."""

    def __init__(self, setup: Setup[Texts], function: Loss, of_kind: Objective) -> None:
        self.setup, self.function, self.of_kind = setup, function, of_kind
        self.before, self.after = (torch.tensor(each, dtype=torch.long) for each in special_tokens(setup.tokenizer))

    @property
    def windows_once(self) -> float:
        return 0

    def prepare(self, folder: Path, progress: Progress) -> None:
        """Computes nothing: the loss gets only the model and the texts."""

    def loss(self, model: nn.Module, items: Sequence[int], *, length: int, seed: int) -> Tensor:
        windows, device = self.setup.texts.windows, next(model.parameters()).device
        parts = pieces(self.setup.texts.width, length - len(self.before) - len(self.after))
        ids = [windows[window_of(item, len(windows), seed)].ids for item in items]
        rows = [torch.cat([self.before, each[part], self.after]) for each in ids for part in parts]
        fed, mask = padded(rows, self.setup.tokenizer.pad_token_id or 0)
        found = self.function(model, fed.to(device), mask.to(device))
        valid = isinstance(found, Tensor) and found.shape == () and found.requires_grad
        expected = "a function that returns a differentiable loss, a tensor of shape ()"
        check(valid, "objective", expected, getattr(found, "shape", found))
        return found

    def plan(self, tuned: Runnable, original: Runnable, old: Runnable | None, kept: ResultsFile) -> Plan:
        return self.of_kind.plan(tuned, original, old, kept)

    def by_document(self, evaluation: Evaluation) -> Evaluation:
        return self.of_kind.by_document(evaluation)

    def kept(self, tuned: Runnable) -> Estimate | None:
        return self.of_kind.kept(tuned)


def own_objective(own: Any, of_kind: Callable[[Setup[Any]], Objective]) -> Callable[[Setup[Any]], Objective]:
    """Returns what makes a user's objective: a class itself, or a function as the loss of the model's kind.

    Raises ArgumentError if it is neither, or if the class lacks a method.
    """
    check(callable(own), "objective", "a loss, a class with the methods of Objective, or None", own)
    if not isinstance(own, type):
        return lambda setup: OwnLoss(setup, own, of_kind(setup))
    if missing := [name for name in METHODS if not hasattr(own, name)]:
        base = f"{of_kind.__module__}.{of_kind.__qualname__}"
        raise ArgumentError(
            f"objective: expected a class with {', '.join(METHODS)}; {own.__name__} has no {', '.join(missing)}; "
            f"derive it from {base}"
        )
    return own


def identity(own: Any) -> str:
    """Returns a hash of an objective, which a continued fine-tuning must share; "" for None.

    It depends on the source, and on the values that the objective holds: a function's defaults and the variables that
    it closes over, the arguments of a ``functools.partial``, and the attributes of an object that can be called. Raises
    ArgumentError for a value that cannot be pickled, because two such values cannot be told apart later.
    """
    digest = hashlib.sha256()
    for part in () if own is None else parts_of(own, seen=set()):
        digest.update(len(part).to_bytes(8, "little") + part)
    return "" if own is None else digest.hexdigest()


def parts_of(value: Any, seen: set[int]) -> Iterator[bytes]:
    """Yields what tells a value apart from others. seen: the ids of the values around it, which may hold each other."""
    if id(value) in seen:
        yield b"itself"
        return
    seen = {*seen, id(value)}
    held: Any = ()
    if isinstance(value, functools.partial):
        held = (value.func, value.args, value.keywords)
    elif isinstance(value, types.MethodType):
        held = (value.__func__, value.__self__)
    elif isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
        held = (value.__defaults__, value.__kwdefaults__, cells)
    elif isinstance(value, Tensor):
        yield f"{value.dtype} {tuple(value.shape)} {tensor_sha256(value.detach().cpu())}".encode()
        return
    elif isinstance(value, nn.Module):
        held = (value.state_dict(), {name: each for name, each in vars(value).items() if not name.startswith("_")})
    elif isinstance(value, Mapping):
        held = list(value.items())
    elif isinstance(value, list | tuple):
        held = list(value)
    elif isinstance(value, set | frozenset):
        held = sorted(value, key=repr)
    elif callable(value) and not isinstance(value, type) and hasattr(value, "__dict__"):
        held = vars(value)
    elif not isinstance(value, type | types.BuiltinFunctionType):
        yield pickled(value)
        return
    yield f"{type(value).__qualname__} {source_of(value)}".encode()
    for each in held.items() if isinstance(held, dict) else held:
        yield from parts_of(each, seen)


def source_of(value: Any) -> str:
    """Returns the code of a function, or the name and the source of a class or of an object's class."""
    if isinstance(value, types.FunctionType):
        return f"{value.__qualname__} {code_of(value.__code__)}"
    named = value if isinstance(value, type | types.BuiltinFunctionType) else type(value)
    try:
        return f"{named.__module__} {named.__qualname__} {inspect.getsource(named)}"
    except (OSError, TypeError):  # typed into an interpreter, or built in
        return f"{named.__module__} {named.__qualname__}"


def code_of(code: types.CodeType) -> str:
    """Returns what a function does, without the names and the lines of its file."""
    constants = [
        code_of(each)
        if isinstance(each, types.CodeType)
        # The order of a set differs between processes.
        else repr(sorted(each, key=repr) if isinstance(each, frozenset) else each)
        for each in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"


def pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:  # each class raises its own errors
        raise ArgumentError(
            f"objective: it holds a {type(value).__qualname__}, which cannot be pickled, so a continued fine-tuning "
            "could not tell whether it is the same; give a function of numbers, tensors and modules, or a class"
        ) from error
