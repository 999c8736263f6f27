"""Settings: frozen dataclasses whose fields define which values are allowed and what they are for.

The command line, JSON files, calls from Python and the reference are derived from the fields. A field made by
``option`` or ``argument`` is set by users; any other field is computed. The field's type gives the bounds, such as
``Count``, ``Share`` or ``tuple[int, ...]``. Any type that pydantic can check is allowed.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import AfterValidator, BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from posembed.calls import unknown
from posembed.errors import ArgumentError
from posembed.words import listed

MOST = 10**12
"""The largest whole number that is allowed: PyTorch cannot count the entries of much larger tensors."""
LARGE = 10**6
"""Errors leave out bounds of at least this size, unless the value is above such a bound."""


@dataclasses.dataclass(frozen=True)
class Words:
    """The description of a type in errors, used instead of its bounds."""

    words: str


def _sides(value: Any) -> Any:
    """Reads "24x32" as (24, 32), and "24" or 24 as (24, 24)."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,6}(x\d{1,6}){0,2}", value):
        read = tuple(map(int, value.split("x")))
        return read if len(read) > 1 else read * 2
    return (value, value) if isinstance(value, int) else value


Whole: TypeAlias = Annotated[int, Ge(-MOST), Le(MOST)]
Count: TypeAlias = Annotated[int, Ge(1), Le(MOST)]
Amount: TypeAlias = Annotated[int, Ge(0), Le(MOST)]
TwoOrMore: TypeAlias = Annotated[int, Ge(2), Le(MOST)]
Positive: TypeAlias = Annotated[float, Gt(0), Lt(math.inf)]
NotNegative: TypeAlias = Annotated[float, Ge(0), Lt(math.inf)]
Share: TypeAlias = Annotated[float, Ge(0), Lt(1)]
Probability: TypeAlias = Annotated[float, Ge(0), Le(1)]
Seed: TypeAlias = Annotated[int, Ge(0), Lt(2**31)]
Pair: TypeAlias = tuple[Count, Count]
Sides: TypeAlias = Annotated[Pair, BeforeValidator(_sides), Words("a number or HEIGHTxWIDTH, such as 24x32")]
"""(height, width)."""
Cube: TypeAlias = Annotated[
    tuple[Count, Count, Count], BeforeValidator(_sides), Words("TIMExHEIGHTxWIDTH, such as 8x14x14")
]
"""(time, height, width)."""

ItemT = TypeVar("ItemT")
Ascending: TypeAlias = Annotated[tuple[ItemT, ...], MinLen(1), AfterValidator(lambda items: tuple(sorted(set(items))))]
"""One or more sizes, in ascending order, without duplicates."""
Name: TypeAlias = Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, int | float) else value)]
Different: TypeAlias = Annotated[
    tuple[ItemT, ...], MinLen(1), AfterValidator(lambda items: tuple(dict.fromkeys(items)))
]
"""One or more items, without duplicates."""
Names: TypeAlias = Different[Name]

SettingsT = TypeVar("SettingsT")
WORDS = {int: "a whole number", float: "a number", str: "text", bool: "True or False", Path: "a path"}
BOUNDS: dict[type[Any], tuple[str, str]] = {
    Ge: ("ge", "at least"),
    Gt: ("gt", "above"),
    Le: ("le", "at most"),
    Lt: ("lt", "below"),
}


def option(help: str, panel: str | None = None, **field: Any) -> Any:
    """Returns a dataclass field that a user may set. ``help``: its description. ``panel``: its group in ``--help``."""
    return dataclasses.field(metadata={"help": help, "panel": panel}, **field)


def argument(help: str, metavar: str) -> Any:
    """Returns a dataclass field that the command line takes by position."""
    return dataclasses.field(metadata={"help": help, "panel": None, "metavar": metavar})


def flag(help: str) -> Any:
    """Returns a field that is False unless the command line names it."""
    return dataclasses.field(metadata={"help": help, "panel": None, "flag": True}, default=False)


def options(settings: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """Returns the fields of a dataclass that a user may set, by name."""
    return {field.name: field for field in dataclasses.fields(settings) if "help" in field.metadata}


def types_of(settings: Any) -> dict[str, Any]:
    """Returns the types of the fields by name, with their bounds."""
    return _types_of(settings)


@cache  # for mypy, a class is no argument of a cached function
def _types_of(settings: Any) -> dict[str, Any]:
    return get_type_hints(settings, include_extras=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The base of settings. Converts each value to the type of its field: text such as "rope, alibi" to a tuple, and
    NumPy numbers to Python numbers. Raises ArgumentError for a value that the field does not allow."""

    def __post_init__(self) -> None:
        kinds = types_of(type(self))
        for field in dataclasses.fields(self):
            value = converted(field.name, getattr(self, field.name), kinds[field.name])
            object.__setattr__(self, field.name, value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part(Settings):
    """Settings of one alternative, such as one kind of model. ``belongs``: the name of the alternative in errors."""

    belongs: ClassVar[str] = ""


def take_parts(given: dict[str, Any], parts: Mapping[type[Part], bool], because: str) -> tuple[Any, ...]:
    """Removes the options of ``parts`` from ``given``. Returns the parts that apply. Raises ArgumentError for an option
    of a part that does not apply. ``because``: the reason, such as the alternative that was chosen."""
    taken = {kind: take(kind, given) for kind in parts}
    for kind, applies in parts.items():
        if taken[kind] and not applies:
            raise ArgumentError(f"{min(taken[kind])}: only for {kind.belongs}; {because}; leave it out")
    return tuple(settings_from(kind, taken[kind]) for kind, applies in parts.items() if applies)


def take(settings: type[Any], given: dict[str, Any]) -> dict[str, Any]:
    """Removes the options of ``settings`` from ``given``. Returns the values that are not None, converted."""
    taken = {name: given.pop(name, None) for name in options(settings)}
    kinds = types_of(settings)
    return {name: converted(name, value, kinds[name]) for name, value in taken.items() if value is not None}


def given_to(kind: type[SettingsT], given: dict[str, Any]) -> SettingsT:
    """Removes the options of ``kind`` from ``given`` and returns its settings."""
    return settings_from(kind, take(kind, given))


def checked_bounds(given: Mapping[str, Any], *kinds: type[Any], of: str = "") -> None:
    """Raises ArgumentError for an unknown name or a value that its option does not allow. Can run before it is known
    which options apply."""
    left = dict(given)
    for kind in kinds:
        take(kind, left)
    if left:
        raise unknown("option", min(left), [name for kind in kinds for name in options(kind)], of=of)


def settings_from(settings: type[SettingsT], given: Mapping[str, Any], *, of: str = "", **computed: Any) -> SettingsT:
    """Returns settings with the given values; None means the default. Raises ArgumentError for an unknown name.
    ``of``: what the options belong to, such as " of tune"."""
    left = dict(given)
    taken = take(settings, left)
    if left:
        raise unknown("option", min(left), options(settings), of=of)
    for name, field in options(settings).items():
        if name not in taken and field.default is field.default_factory is dataclasses.MISSING:
            raise ArgumentError(f"{name}: expected {expected(types_of(settings)[name])}; got none")
    return settings(**taken, **computed)


def converted(name: str, value: Any, kind: Any) -> Any:
    """Converts a value to the type of its option. Raises ArgumentError if it cannot be converted."""
    try:
        return _adapter(kind).validate_python(_plain(value, kind))
    except ValidationError as error:
        numbers = [each for each in error.errors()[0]["loc"] if isinstance(each, int)]  # other parts name types
        of_item = numbers and (item_of(kind) is not None or not isinstance(value, str))
        wrong = error.errors()[0]["input"] if of_item else value
        split = of_item and isinstance(value, str) and wrong != value
        item = f", in the list {value!r}; separate items by commas" if split else ""
        shown = wrong if isinstance(wrong, str) and bare(kind) in (int, float) and wrong else repr(wrong)
        words = expected(kind, hidden=0 if error.errors()[0]["type"].startswith("less") else LARGE)
        raise ArgumentError(f"{name}: expected {words}; got {shown}{item}") from None


def restored(kind: Any, value: Any) -> Any:
    """Restores a value of this type from JSON, which has no dataclasses, no tuples and only strings as keys.

    Raises ValueError for a value of another type.
    """
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    strict = ConfigDict(extra="forbid")
    return TypeAdapter(kind) if dataclasses.is_dataclass(get_origin(kind) or kind) else TypeAdapter(kind, config=strict)


def alternatives(kind: Any) -> list[Any]:
    """Returns the types of a union without None, or the type alone."""
    if get_origin(kind) in (Union, UnionType):
        return [part for part in get_args(kind) if part is not NoneType]
    return [kind]


def item_of(kind: Any) -> Any:
    """Returns the type of the items of a list of any length; None for another type."""
    kind = bare(kind)
    return get_args(kind)[0] if get_origin(kind) is tuple and Ellipsis in get_args(kind) else None


def bare(kind: Any) -> Any:
    """Returns a type without None and without bounds."""
    only = alternatives(kind)[0]
    only = get_args(only)[0] if get_origin(only) is Annotated else only
    return only if only is kind else bare(only)


def _plain(value: Any, kind: Any) -> Any:
    """Prepares a value for pydantic, which does not split text into lists and accepts True as a number."""
    item, only = item_of(kind), bare(kind)
    if item is not None and value is not None:
        parts = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        return (
            tuple(_plain(part, item) for part in parts)
            if isinstance(parts, Iterable) and not isinstance(parts, bytes)
            else value
        )
    if isinstance(value, bool) or only is bool:
        return value if only is bool and isinstance(value, bool) else None if value is None else _Refused(value)
    if isinstance(value, Integral | Real):
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, Path) and only is str:
        return str(value)
    if only is Path and isinstance(value, str | Path) and (not str(value) or "\0" in str(value)):
        return _Refused(value)
    return value


class _Refused:
    """Wraps a value so that no type accepts it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


def expected(kind: Any, *, hidden: float = LARGE) -> str:
    """Describes the values of a type, such as "a whole number of at least 1". ``hidden``: bounds of at least this size
    are left out, because users rarely meet them."""
    if (item := item_of(kind)) is not None:
        return "a list of names" if bare(item) is str else f"a list, each {expected(item, hidden=hidden)}"
    if get_origin(kind) is Annotated and NoneType in get_args(get_args(kind)[0]):
        return f"{expected(get_args(kind)[0], hidden=hidden)}, or none"
    if len(kinds := alternatives(kind)) > 1:
        return listed([expected(each, hidden=hidden) for each in kinds], "or")
    kind = kinds[0]
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is Annotated and (words := [each.words for each in get_args(kind) if isinstance(each, Words)]):
        return words[0]
    if get_origin(kind) is tuple:
        return f"a pair, each {expected(get_args(kind)[0], hidden=hidden)}"
    bounds = [
        f"{words} {limit:,}".removesuffix(".0")
        for each in (get_args(kind)[1:] if get_origin(kind) is Annotated else ())
        for attribute, words in [BOUNDS.get(type(each), ("", ""))]
        if attribute and (abs(limit := getattr(each, attribute)) < hidden or (not hidden and -LARGE < limit < math.inf))
    ]
    only = bare(kind)
    word = WORDS.get(only, f"a {getattr(only, '__name__', only)}")
    return f"{word} {'of ' * bounds[:1][0].startswith('at')}{listed(bounds)}" if bounds else word
