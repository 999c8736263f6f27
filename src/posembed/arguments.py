"""Checks the arguments of public calls against their annotations.

    Count, Share, Positive, ...         the bounds defined in ``settings``; numbers must be finite
    int, float, bool, str, None         strict: 2.0 is not an int. NumPy numbers and tensors of one integer become
                                        Python numbers, because torch.compile cannot trace them
    Tensor, Float[Tensor, "B L D"]      a tensor, its dtype (Float, Integer, Shaped) and rank; "... L" is at least 1
    tuple[Count, Count], Sequence[str]  each item; lists become tuples
    Literal["a", "b"], a class          one of the words, an instance

Constructors and functions check their arguments before they run. Methods that a forward pass calls check them only
after Python or PyTorch has raised an error, to name the wrong argument. A type that is imported only for type checkers,
such as a class of a library that is not loaded, accepts any value.
"""

from __future__ import annotations

import builtins
import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, wraps
from numbers import Real
from types import FunctionType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin
from weakref import WeakKeyDictionary

import torch
from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError
from torch import Tensor, nn
from torch.compiler import is_compiling

from posembed.calls import wrong_call
from posembed.errors import ArgumentError, PosEmbedError
from posembed.settings import LARGE, Whole, Words, expected

CallT = TypeVar("CallT", bound=Callable[..., Any])
RAW = (TypeError, AttributeError, RuntimeError, LookupError, ValueError, OverflowError)
"""The errors of Python and PyTorch for an argument of a wrong type or shape."""

IN_A_PASS = ("forward", "consecutive_rows", "training_positions", "auxiliary_loss", "given")
"""Methods that are called often and so do not check their arguments first, like all methods that take tensors."""


EXAMPLES = {
    "KeyValueCache": "new_cache(batch, max_len)",
    "PositionEncoding": "RotaryEmbedding(head_dim)",
    "Positions": "Positions(encoding, x)",
    "RotaryScaling": "LinearScaling(factor=4.0)",
    "ScoreBias": "T5Bias(heads)",
    "TableLayout": "TableLayout.roberta(pad_id=1)",
}


class ChecksCalls:
    """The base of classes whose constructors and public methods raise a PosEmbedError for wrong arguments.

    ``in_a_pass=True`` in a class definition means that forward passes build its objects: see ``explains_errors``. In a
    subclass outside posembed, only the names of the constructor's arguments are checked.
    """

    def __init_subclass__(cls, *, in_a_pass: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.__module__.startswith("posembed."):
            if "__init__" in vars(cls):
                cls.__init__ = _checked(cls.__init__, names_only=True)  # type: ignore[method-assign]
            return
        for name, method in list(vars(cls).items()):
            bare = method.__func__ if isinstance(method, classmethod) else method
            if not isinstance(bare, FunctionType) or (name.startswith("_") and name != "__init__"):
                continue
            rare = (
                not in_a_pass
                if name == "__init__"
                else name not in IN_A_PASS and "Tensor" not in str(inspect.signature(bare))
            )
            wrapped = (checks_arguments if rare else explains_errors)(bare)
            setattr(cls, name, classmethod(wrapped) if bare is not method else wrapped)


def checks_arguments(call: CallT) -> CallT:
    """Decorates a function, or a dataclass: a wrong argument raises a PosEmbedError before the call.

    Nothing is checked while torch.compile traces the call.
    """
    if not isinstance(call, type):
        return _checked(call)
    call.__init__ = _checked(call.__init__)  # type: ignore[misc]
    return call


def explains_errors(call: CallT) -> CallT:
    """Decorates a function: an error of Python or PyTorch is replaced by an error that names the wrong argument.

    If no argument is wrong, the error stays the same. A correct call only costs the call of the wrapper.
    """
    if inspect.unwrap(call) is not call:  # a method that a class took from another
        return call

    @wraps(call)
    def explained(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except RAW as error:
            if not isinstance(error, PosEmbedError) and not is_compiling():
                try:
                    _converted(call, args, kwargs)
                except PosEmbedError as wrong:
                    raise wrong from error
            raise

    return _with_own_code(explained)


def _checked(call: Callable[..., Any], *, names_only: bool = False) -> Any:
    @wraps(call)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not is_compiling():
            args, kwargs = _converted(call, args, kwargs, names_only=names_only)
        return call(*args, **kwargs)

    return _with_own_code(checked)


def _with_own_code(function: Any) -> Any:
    """Gives a closure its own code object, because torch.compile limits recompilations per code object."""
    function.__code__ = function.__code__.replace()
    return function


class Argument(NamedTuple):
    """The type that an argument must have, and the pydantic adapter that checks it."""

    kind: Any
    adapter: TypeAdapter[Any]

    def converted(self, name: str, value: Any) -> Any:
        """Returns the value, converted to Python's types. Raises ArgumentError if the value is wrong."""
        too_large = False
        for prepared in (lambda given: given, _in_python):
            plain = prepared(value)
            try:
                found = self.adapter.validate_python(plain)
            except ValidationError as failed:
                too_large = failed.errors(include_url=False)[0]["type"].startswith("less")
            else:
                if not isinstance(found, float) or isinstance(plain, Real):  # pydantic reads whatever has a float()
                    return found
        if isinstance(value, torch.SymInt) or torch.jit.is_tracing():  # a number whose value is not known yet
            return value
        words = expected(self.kind, hidden=0 if too_large else LARGE)
        if isinstance(value, Real) and not math.isfinite(value):
            words = words.replace("a number", "a finite number", 1)
        remedy = (
            ". Make them with .long() from the start" if "of integers" in words and isinstance(value, Tensor) else ""
        )
        raise ArgumentError(f"{name}: expected {words}; got {_shown(value, words)}{remedy}")


@cache
def _argument_of(kind: Any) -> Argument:
    strict = ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False)
    return Argument(kind, TypeAdapter(kind, config=strict))


def checked(name: str, value: Any, kind: Any) -> Any:
    """Returns one value, converted to Python's types. Raises ArgumentError if the value is not of type ``kind``."""
    return value if is_compiling() else _argument_of(kind).converted(name, value)


class Parameters(NamedTuple):
    """The parameters of a callable. The caller does not pass the first ``own`` of them (self or cls)."""

    own: int
    by_position: list[str]
    known: dict[str, Argument | None]
    required: set[str]
    open_positions: bool
    open_names: bool


_KNOWN: WeakKeyDictionary[Callable[..., Any], Parameters] = WeakKeyDictionary()
"""The parameters of each callable. The keys are weak references, so that users' classes can be freed."""


def _parameters(call: Callable[..., Any], names_only: bool) -> Parameters:
    if call in _KNOWN:
        return _KNOWN[call]
    every = [*inspect.signature(call).parameters.values()]
    own = int(every[0].name in ("self", "cls")) if every else 0
    taken = [p for p in every[own:] if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    names = _Names({**inspect.unwrap(call).__globals__, **_READ})
    known = {p.name: None if names_only else _argument(p.annotation, names) for p in taken}
    by_position = [p.name for p in taken if p.kind is not p.KEYWORD_ONLY]
    required = {p.name for p in taken if p.default is p.empty and not names_only}
    kinds = {p.kind for p in every}
    open_to = (kind in kinds for kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD))
    _KNOWN[call] = Parameters(own, by_position, known, required, *open_to)
    return _KNOWN[call]


def _converted(
    call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, names_only: bool = False
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns a call's arguments, converted to Python's types. Raises CallError or ArgumentError if one is wrong."""
    own, by_position, known, required, open_positions, open_names = _parameters(call, names_only)
    given = args[own:]
    too_much = not open_positions and len(given) > len(by_position)
    too_much |= not open_names and not kwargs.keys() <= known.keys()
    if too_much or not required <= {*by_position[: len(given)], *kwargs}:
        raise wrong_call(_name(call, args[:own]), call, given, kwargs, own=own)

    def read(name: str, value: Any) -> Any:
        argument = known.get(name)
        return value if argument is None else argument.converted(name, value)

    read_args = [read(name, value) for name, value in zip(by_position, given, strict=False)]
    return (*args[:own], *read_args, *given[len(read_args) :]), {n: read(n, value) for n, value in kwargs.items()}


def _name(call: Callable[..., Any], own: tuple[Any, ...]) -> str:
    """Returns the call's name for errors, with the most derived class that uses this method: "Decoder.new_cache"."""
    if not own:
        return call.__name__
    kinds = (own[0] if isinstance(own[0], type) else type(own[0])).__mro__
    found = next((k for k in kinds if inspect.unwrap(getattr(k, call.__name__, id)) is inspect.unwrap(call)), kinds[0])
    return found.__name__ + ("" if call.__name__ in ("__init__", "forward") else f".{call.__name__}")


def _that(words: str, fits: Callable[[Any], Any]) -> Any:
    """Returns an annotation for the values for which ``fits`` is true. words: their description in errors."""

    def check(value: Any) -> Any:
        with suppress(*RAW):
            if fits(value):
                return value
        raise ValueError

    return Annotated[Any, AfterValidator(check), Words(words)]


if TYPE_CHECKING:
    from jaxtyping import Float as Float
    from jaxtyping import Integer as Integer
    from jaxtyping import Shaped as Shaped
else:  # jaxtyping is not a dependency

    class Shaped:
        """Stands for jaxtyping's class of this name: ``Shaped[Tensor, "B L"]`` is a tensor of this rank."""

        words, fits = "", staticmethod(lambda tensor: True)

        def __class_getitem__(cls, of: tuple[Any, str]) -> Any:
            names = of[1].split()
            rank, more = len(names) - ("..." in names), "..." in names

            def fits(value: Any) -> bool:
                ranked = isinstance(value, Tensor) and (value.dim() >= rank if more else value.dim() == rank)
                return ranked and cls.fits(value)

            return _that(f"a tensor{cls.words} ({', '.join(names)}{',' * (len(names) == 1)})", fits)

    class Float(Shaped):
        words, fits = " of floats", staticmethod(Tensor.is_floating_point)

    class Integer(Shaped):
        words = " of integers"

        @staticmethod
        def fits(tensor: Tensor) -> bool:
            return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


_READ = {"Float": Float, "Integer": Integer, "Shaped": Shaped, "int": Whole}


class _Names(dict[str, Any]):
    """The global names of a file. A name that is imported only for type checkers becomes Any."""

    def __missing__(self, name: str) -> Any:
        return vars(builtins).get(name, Any)


def _argument(annotation: Any, names: _Names) -> Argument | None:
    """Returns the Argument of an annotation, or None if the annotation allows anything."""
    with suppress(TypeError, AttributeError):  # of what only a type checker sees
        kind = _kind(eval(annotation, {}, names) if isinstance(annotation, str) else Any)
        return None if kind is Any else _argument_of(kind)
    return None


def _kind(found: Any) -> Any:
    """Returns a type that pydantic checks by the rules above. A module may be any nn.Module, since it may be
    wrapped."""
    origin, args = get_origin(found), get_args(found)
    if origin in (Union, UnionType):
        kinds = [_kind(each) for each in args if each is not str or torch.device not in args]
        return Any if Any in kinds else Union[tuple(kinds)]  # noqa: UP007
    if origin in (tuple, list, Sequence):
        return origin[tuple(each if each is ... else _kind(each) for each in args)]
    if found in (Any, str, bool, float, type(None)) or origin in (Annotated, Literal, Callable):
        return found
    if origin in (dict, Mapping):
        example = ", such as module.state_dict()" if args[-1:] in ((Tensor,), (Any,)) else ""
        return _that(f"a mapping{example}", lambda value: isinstance(value, Mapping))
    if found is torch.device:
        return _that('a device, such as "cpu"', torch.device)
    if not isinstance(found, type):
        return Any
    of: Any = nn.Module if issubclass(found, nn.Module) else found
    example = f", such as {EXAMPLES[found.__name__]}" if found.__name__ in EXAMPLES else ""
    words = {Tensor: "a tensor", nn.Module: "a module"}.get(found, f"a {found.__name__}{example}")
    return _that(words, lambda value: isinstance(value, of))


def _in_python(value: Any) -> Any:
    """Converts NumPy numbers, tensors of one integer, devices, and sequences of these to Python's types."""
    if isinstance(value, tuple | list | range):
        return tuple(map(_in_python, value))
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")):
        return value if isinstance(value, Tensor) else bool(value)
    with suppress(TypeError, RuntimeError):  # not an integer, or a tensor without values
        return operator.index(value)
    return float(value) if isinstance(value, Real) else value


def _shown(value: Any, words: str) -> str:
    if isinstance(value, Tensor) or hasattr(value, "dtype"):
        shown = f"{value.dtype} of shape {tuple(value.shape)}{'' if isinstance(value, Tensor) else ' of numpy'}"
        if "tensor" in words:
            return shown if isinstance(value, Tensor) else f"{shown}, which torch.as_tensor converts"
        return f"{shown}, which .tolist() converts" if len(value.shape) == 1 else shown
    found = repr(value)
    return f"a {type(value).__name__}" if len(found) > 80 or "\n" in found else found
