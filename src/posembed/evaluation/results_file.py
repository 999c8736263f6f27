"""The file that keeps the counts of earlier evaluations, one JSON line for each, so that none is made twice."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posembed.errors import DataError

Counts = Mapping[str, Sequence["float | None"]]
"""One number per text under the name of each count; None if it is not finite."""


class ResultsFile(dict[str, Counts]):
    """Counts by their keys, read from a file and appended to it. Without a path, they live only in memory.

    Raises:
        DataError: the file cannot be read, or one of its lines is not a result.
    """

    def __init__(self, path: str | Path | None) -> None:
        super().__init__()
        self.path = None if path is None else Path(path)
        if self.path is None or not self.path.exists():
            return
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.path}: cannot be read as a results file ({error}); name another file") from error
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                self[entry["key"]] = dict(entry["values"])
            except (ValueError, KeyError, TypeError) as error:
                remedy = "delete that line to measure it again" if self else "name another file"
                raise DataError(
                    f"{self.path}: expected a results file; line {number} is not a result ({error}); {remedy}"
                ) from error

    def add(self, key: str, counts: Counts, **about: Any) -> None:
        """Keep counts. about: extra fields of the line for a person who reads the file."""
        self[key] = counts
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                if file.tell() and file.seek(-1, os.SEEK_END) and file.read() != b"\n":
                    file.write(b"\n")  # an editor or a killed process left the last line without its end
                file.write(json.dumps({"key": key, **about, "values": counts}).encode() + b"\n")
        except (OSError, ValueError) as error:
            raise DataError(f"{self.path}: results cannot be written there ({error}); name another file") from error
