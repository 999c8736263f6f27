"""The errors that posembed raises for user mistakes.

Each message says what was expected, what was given, and what to do. The command line prints it as one line.
"""

from __future__ import annotations


class PosEmbedError(Exception):
    """The base class of posembed's errors. Catch it to catch every error that posembed raises on purpose.

    Examples:
        >>> import posembed
        >>> try:
        ...     posembed.LearnedPositionalEmbedding(max_len=0, dim=64)
        ... except posembed.PosEmbedError as error:
        ...     print(error)
        max_len: expected a whole number of at least 1; got 0
    """


class ArgumentError(PosEmbedError, ValueError):
    """An argument that cannot be used: a width, a shape, a name.

    Examples:
        >>> import posembed
        >>> try:
        ...     posembed.RotaryEmbedding(head_dim=15)
        ... except posembed.errors.ArgumentError as error:
        ...     print(error)  # doctest: +ELLIPSIS
        RoPE rotates pairs of components, so head_dim must be even and positive, got 15...
    """


class CallError(PosEmbedError, TypeError):
    """A call with an argument that is unknown, is missing, or must be given by name.

    Examples:
        >>> import posembed
        >>> try:
        ...     posembed.LearnedPositionalEmbedding(max_len=512, d_model=64)
        ... except posembed.errors.CallError as error:
        ...     print(error)  # doctest: +ELLIPSIS
        LearnedPositionalEmbedding does not take d_model (here it is dim)...
    """


class PositionError(PosEmbedError, IndexError, ValueError):
    """A position that has no row in a table. Raised before any row is read, so that the CUDA context survives.

    Examples:
        >>> import torch, posembed
        >>> layer = posembed.LearnedPositionalEmbedding(max_len=512, dim=64)
        >>> try:
        ...     layer(torch.zeros(1, 513, 64))
        ... except posembed.errors.PositionError as error:
        ...     print(error)  # doctest: +ELLIPSIS
        position 512 has no row: ...
    """


class DataError(PosEmbedError, ValueError):
    """Text, a dataset or a tokenizer that cannot be used.

    Examples:
        >>> import posembed
        >>> try:
        ...     posembed.compare("lengths", data="no-such-folder", out="runs/mine")
        ... except posembed.errors.DataError as error:
        ...     print(error)  # doctest: +ELLIPSIS
        no file or folder no-such-folder...
    """


class CheckpointError(PosEmbedError, ValueError):
    """A model's files that cannot be read, understood or written.

    Examples:
        >>> import posembed
        >>> try:
        ...     posembed.inspect_checkpoint("no-such-folder/model.safetensors")
        ... except posembed.errors.CheckpointError as error:
        ...     print(error)  # doctest: +ELLIPSIS
        no-such-folder/model.safetensors: expected a folder, a weights file or a hub name...
    """


class RunFolderError(PosEmbedError, ValueError):
    """A folder of training runs that cannot be read, written or continued.

    Examples:
        >>> import posembed
        >>> try:
        ...     posembed.advise(length=512, longest=512, runs="no-such-folder")
        ... except posembed.errors.RunFolderError as error:
        ...     print(error)  # doctest: +ELLIPSIS
        no-such-folder is not a run folder of this version...
    """
