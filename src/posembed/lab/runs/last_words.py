"""What is said if this process is ended without a chance to say it itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# It reads until this process closes the pipe, or ends and leaves that to the system. A live bar hides the cursor.
WITNESS = """
import sys
if not sys.stdin.read():
    shown = "\\x1b[?25h" if sys.stderr.isatty() else ""
    sys.stderr.write(shown + "\\n" + sys.argv[1] + "\\n")
"""


@contextmanager
def last_words(words: str) -> Iterator[None]:
    """Inside it, a second process waits for the end of this one, and says the words on stderr if it comes there.

    Some libraries end the whole process from a thread of their own, where no exception and no handler is run.
    """
    command = [sys.executable, "-I", "-S", "-c", WITNESS, words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as witness:
        try:
            yield
        finally:
            witness.communicate(b"left alive")
