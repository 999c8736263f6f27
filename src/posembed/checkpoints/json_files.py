"""JSON files of a checkpoint: settings read with distrust, and one value replaced inside a large file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from posembed.checkpoints.tensor_files import open_file, without_repeats
from posembed.errors import CheckpointError
from posembed.files import as_bytes

LARGEST_SETTINGS = 32_000_000
LARGEST_VOCABULARY = 1_000_000_000
BLANK = " \t\n\r"


def read_json(path: Path, *, expected: type = dict) -> Any:
    """A JSON file of settings. Raises CheckpointError where it is not JSON of the kind that was expected."""
    text = read_bytes(path, LARGEST_SETTINGS)
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=without_repeats)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON ({str(error)[:80]})") from error
    if not isinstance(value, expected):
        kind = "an object" if expected is dict else "a list"
        raise CheckpointError(f"{path}: expected {kind}, found a {type(value).__name__}")
    return value


def json_text(value: Any, *, one_line: bool = False) -> str:
    """JSON in UTF-8. Lone surrogates, which UTF-8 cannot hold, stay escaped as they were."""
    if one_line:
        return encodable(json.dumps(value, separators=(",", ":"), ensure_ascii=False))
    return encodable(json.dumps(value, indent=2, ensure_ascii=False)) + "\n"


def encodable(text: str) -> str:
    r"""The text with each lone surrogate as ``\udXXX``."""
    return as_bytes(text).decode()


def read_bytes(path: Path, most: int) -> bytes:
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise CheckpointError(f"{path}: expected at most {most:,} bytes; it has {size:,}")
        return file.read(size)


class LargeJson:
    """A JSON object of which single values are read and replaced; all other bytes stay, and most are not parsed.

    A vocabulary of 100 MB as Python objects would need gigabytes.

    Raises:
        CheckpointError: not a JSON object, as far as it is looked at.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.text = read_bytes(path, LARGEST_VOCABULARY).decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{path}: not JSON ({error})") from error

    def get(self, *names: str) -> Any:
        """The value under these names, from the outermost in; None where there is none."""
        span = self._span(names)
        return None if span is None else json.loads(self.text[slice(*span)])

    def replace(self, *names: str, value: Any) -> None:
        """Put another value under these names, which must be there, into the text."""
        span = self._span(names)
        assert span is not None
        self.text = self.text[: span[0]] + json_text(value, one_line=True) + self.text[span[1] :]

    def _span(self, names: tuple[str, ...]) -> tuple[int, int] | None:
        start = 0
        try:
            for name in names:
                found = next((span for key, *span in members(self.text, start) if key == name), None)
                if found is None:
                    return None
                start, stop = found
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.path}: not JSON ({str(error)[:80]})") from error
        return start, stop


def members(text: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Each name of the object that begins at ``start``, with the start and stop of its value; none if no object.

    Raises ValueError where the text is not JSON. Values are parsed as they are passed, and dropped.
    """
    decoder = json.JSONDecoder()
    place = after_blanks(text, start)
    if text[place : place + 1] != "{":
        if start == 0:
            raise ValueError("expected an object")
        return
    place = after_blanks(text, place + 1)
    while text[place : place + 1] == '"':
        name, stop = decoder.raw_decode(text, place)
        place = after_blanks(text, stop)
        if text[place : place + 1] != ":":
            raise ValueError(f"expected ':' at character {place}")
        begin = after_blanks(text, place + 1)
        _, stop = decoder.raw_decode(text, begin)
        yield name, begin, stop
        place = after_blanks(text, stop)
        if text[place : place + 1] == ",":
            place = after_blanks(text, place + 1)
    if text[place : place + 1] != "}":
        raise ValueError(f"expected a name or '}}' at character {place}")


def after_blanks(text: str, place: int) -> int:
    while text[place : place + 1] in BLANK and place < len(text):
        place += 1
    return place
