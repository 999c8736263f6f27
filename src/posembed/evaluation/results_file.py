"""Measurements that were made before, kept in a file: one line each, so that a second call adds to the first."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posembed.errors import DataError

Counted = Mapping[str, Sequence["float | None"]]
"""One number per text, by the name of the measurement; None if it is not finite."""


class Kept:
    """The lines of a results file by their keys; without a path, nothing is kept beyond this object.

    Raises:
        DataError: a file that cannot be read, or a line in it that is no measurement.
    """

    def __init__(self, path: str | Path | None) -> None:
        self.path = None if path is None else Path(path)
        self.values: dict[str, Counted] = {}
        if self.path is None or not self.path.exists():
            return
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.path}: cannot be read as a file of results ({error})") from error
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                self.values[entry["key"]] = dict(entry["values"])
            except (ValueError, KeyError, TypeError) as error:
                remedy = "delete that line, and it is measured again"
                if not self.values:
                    remedy = "expected a file of results; name another one"
                raise DataError(f"{self.path}: line {number} is no measurement ({error}); {remedy}") from error

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def __getitem__(self, key: str) -> Counted:
        return self.values[key]

    def add(self, key: str, values: Counted, **about: Any) -> None:
        """about: what a reader of the file wants to know; not read again."""
        self.values[key] = values
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                if file.tell() and file.seek(-1, os.SEEK_END) and file.read() != b"\n":
                    file.write(b"\n")  # an editor, or a killed process, left the last line open
                file.write(json.dumps({"key": key, **about, "values": values}).encode() + b"\n")
        except OSError as error:
            raise DataError(
                f"{self.path}: results cannot be kept there ({error.strerror}); name another file"
            ) from error
