"""Errors for wrong calls: they suggest the intended name, or show the call with named arguments.

Users may expect the argument names or the argument order of similar layers in other libraries.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from posembed.errors import ArgumentError, CallError
from posembed.files import data_of
from posembed.words import listed

KnownT = TypeVar("KnownT")
KNOWN: dict[str, dict[str, str]] = data_of(__file__)
OTHER_NAMES = KNOWN["arguments"]
"""Maps an argument's name in posembed to its names in other libraries."""
OTHER_CLASSES = KNOWN["public names"]
"""Maps a public name of posembed to its names in tutorials, fairseq, timm, x-transformers, torchtune and Keras."""
NOTES = KNOWN["notes"]
"""Hints on arguments that some libraries define differently."""
AS_POSITIONS = KNOWN["positions"]
"""Maps an argument that ``position_ids`` replace, such as a mask, to the call of ``posembed.positions`` for the ids."""


def name_here(name: str, ours: Mapping[str, str]) -> str | None:
    """Returns the path of posembed's counterpart of another library's name, or of the nearest public name, or None.

    ours: maps each public name to its path below posembed.
    """
    known = next((here for here, theirs in OTHER_CLASSES.items() if name in theirs.split()), None)
    near = difflib.get_close_matches(name, list(ours), n=1, cutoff=0.8) if name[:1].isupper() else [name]
    return ours.get(known or next(iter(near), ""))


def wrong_call(
    name: str, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, own: int = 1
) -> CallError:
    """Returns the error for a call with unknown, missing or too many positional arguments.

    Args:
        name: the name that the caller wrote, such as a class name.
        args: all positional arguments that the caller wrote.
        kwargs: the arguments given by name, or only the unknown ones.
        own: 1 for a method, whose first argument the caller does not write.
    """
    parameters = [*inspect.signature(call).parameters.values()][own:]
    taken = {p.name: p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    if unknown_names := [given for given in kwargs if given not in taken]:
        refused = [f"{given}{_meant(given, taken)}" for given in unknown_names]
        return CallError(f"{name} does not take {listed(refused, 'or')}. It takes {listed(taken) or 'no argument'}")
    by_position = [p.name for p in taken.values() if p.kind is not p.KEYWORD_ONLY]
    needed = [p.name for p in taken.values() if p.default is p.empty]
    if (missing := [n for n in needed if n not in kwargs and n not in by_position[: len(args)]]) and (
        len(args) <= len(by_position)
    ):
        return CallError(f"{name} needs {listed(missing)}: {name}({', '.join(f'{n}=...' for n in needed)})")
    only = f"takes only {listed(by_position)} by position" if by_position else "takes its arguments by name"
    by_name = [p.name for p in taken.values() if p.kind is p.KEYWORD_ONLY and p.name not in kwargs]
    extra = len(args) - len(by_position)
    if extra > len(by_name) or any(_shown(value) is None for value in args):
        remedy = f"write {listed([f'{other}=...' for other in by_name], 'or')} for the others" if by_name else ""
        return CallError(f"{name} {only}, and got {len(args)} values{remedy and ': ' + remedy}")
    values = [*map(_shown, args[: len(by_position)])]
    by_name_too = {**dict(zip(by_name, args[len(by_position) :], strict=False)), **kwargs}
    values += [f"{other}={_shown(value) or '...'}" for other, value in by_name_too.items()]
    text, other_order = f"write {name}({', '.join(map(str, values))}) if that is their order", ""
    if not by_position and len(args) == 2 and not kwargs:
        other_order = f", or {name}({by_name[0]}={_shown(args[1])}, {by_name[1]}={_shown(args[0])})"
    return CallError(f"{name} {only}, and got {', '.join(map(str, map(_shown, args)))}: {text}{other_order}")


def unknown(what: str, name: str, known: Iterable[str], *, of: str = "", also: str = "") -> ArgumentError:
    """Returns the error for an unknown name, and suggests similar known names. Ignores suffixes such as "+window"."""
    known, base = tuple(known), name.partition("+")[0]
    near = [] if base in known else closest(base, known)
    meant = f" (did you mean {listed(near, 'or')}?)" if near else ""
    return ArgumentError(f"unknown {what} {name!r}{of}{meant}; choose from {', '.join(known)}{also}")


def named(what: str, name: str, known: Mapping[str, KnownT]) -> KnownT:
    """Returns what has this name. Raises the ArgumentError of ``unknown`` for another name."""
    if name not in known:
        raise unknown(what, name, known)
    return known[name]


def closest(name: str, known: Iterable[str], *, most: int = 3) -> list[str]:
    """Returns the known names that resemble a misspelled name, the most similar first: "ALiBi" -> ["alibi"].

    Case and punctuation are ignored. A part of a known name also matches: "yarn" -> ["rope-yarn"].
    """
    forms = {_folded(one): one for one in known}
    form = _folded(name)
    if form in forms:
        return [forms[form]]
    parts = [one for other, one in forms.items() if len(form) > 2 and form in other]
    return (parts or [forms[near] for near in difflib.get_close_matches(form, forms, n=most, cutoff=0.7)])[:most]


def _folded(name: str) -> str:
    return re.sub(r"[\W_]", "", name).casefold()


def _meant(given: str, taken: Iterable[str]) -> str:
    """Returns a parenthesized hint at the argument in ``taken`` that ``given`` probably means; "" if none is close."""
    ours = [name for name in taken if given in OTHER_NAMES.get(name, "").split()]
    if ours:
        return f" (here it is {listed([f'{n}, {NOTES[n]}' if n in NOTES else n for n in ours], 'or')})"
    ids = [call for name, call in AS_POSITIONS.items() if given in (name, *OTHER_NAMES.get(name, "").split())]
    if ids and "position_ids" in taken:
        return f" (pass position_ids={ids[0]}, from posembed.positions)"
    near = closest(given, taken, most=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _shown(value: Any) -> str | None:
    """Formats a number, a string, None, or a list or tuple of these as source code. Returns None for anything else."""
    if isinstance(value, tuple | list):
        return None if None in map(_shown, value) else repr(value)
    return repr(value) if value is None or isinstance(value, int | float | str) else None
