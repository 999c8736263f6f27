"""A message for the case that this process is ended and cannot print it itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# It reads until this process writes and closes the pipe, or ends. A live progress bar has hidden the cursor.
WITNESS = """
import sys
if not sys.stdin.read():
    shown = "\\x1b[?25h" if sys.stderr.isatty() else ""
    sys.stderr.write(shown + "\\n" + sys.argv[1] + "\\n")
"""


@contextmanager
def last_words(words: str) -> Iterator[None]:
    """Print the words on stderr if this process ends inside the block.

    A second process waits for that, since some libraries end the whole process from a thread of their own, where
    Python runs no handler and no exception is raised.
    """
    command = [sys.executable, "-I", "-S", "-c", WITNESS, words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as witness:
        try:
            yield
        finally:
            witness.communicate(b"left alive")
