"""The errors that posembed raises for user mistakes.

Each message says what was expected, what was given, and what to do. The command line prints it as one line.
"""

from __future__ import annotations


class PosEmbedError(Exception):
    """The base class of posembed's errors. Catch it to catch every error that posembed raises on purpose."""


class ArgumentError(PosEmbedError, ValueError):
    """An argument that cannot be used: a width, a shape, a name."""


class CallError(PosEmbedError, TypeError):
    """A call with an argument that is unknown, or that must be given by name."""


class PositionError(PosEmbedError, IndexError, ValueError):
    """A position that has no row in a table. Raised before any row is read, so that the CUDA context survives."""


class DataError(PosEmbedError, ValueError):
    """Text, a dataset or a tokenizer that cannot be used."""


class CheckpointError(PosEmbedError, ValueError):
    """A model's files that cannot be read, understood or written."""


class RunFolderError(PosEmbedError, ValueError):
    """A run folder of the lab that cannot be read, written or continued."""
