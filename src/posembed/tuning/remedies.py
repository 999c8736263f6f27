"""What to do when a fine-tuning cannot write its files, or does not fit into memory."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from posembed.errors import CheckpointError
from posembed.evaluation.runnable import Runnable
from posembed.files import reason

NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.EXDEV)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns errors of writing in the block into a CheckpointError that says how to continue."""
    from safetensors import SafetensorError

    def remedy(error: BaseException | None) -> str:
        first = "make it writable" if getattr(error, "errno", None) in NOT_WRITABLE else "make room"
        return f"{first}, and repeat the command; it continues from {folder}"

    try:
        yield
    except CheckpointError as error:
        if isinstance(error.__cause__, OSError):
            raise CheckpointError(f"{error}; {remedy(error.__cause__)}") from error.__cause__
        raise
    except MemoryError as error:
        raise CheckpointError(
            f"not enough memory; free some, and repeat the command; it continues from {folder}"
        ) from error
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: cannot be written: {reason(error)}; {remedy(error)}") from error


PLANNING = "not enough memory to read the checkpoint and the data; nothing was written; free some, or give less data"


def too_large(length: int, original: Runnable) -> str:
    pictures = original.kind == "images"
    what = f"an image of {length:,} x {length:,} pixels" if pictures else f"a window of {length:,} tokens"
    remedy = f"give --checkpointing, a smaller --{'image-size' if pictures else 'length'} or another --device"
    return f"{what} does not fit into memory; {remedy}"


@contextmanager
def memory(said: str, *, retried: bool = False) -> Iterator[None]:
    """Turns an error of too little memory in the block into a CheckpointError; with ``retried``, ends the block."""
    try:
        yield
    except (CheckpointError, RuntimeError, MemoryError) as error:
        cause = error.__cause__ if isinstance(error, CheckpointError) else error
        if cause is None or not out_of_memory(cause):
            raise
        if not retried:
            raise CheckpointError(said) from error


def out_of_memory(error: BaseException) -> bool:
    from accelerate.utils.memory import should_reduce_batch_size

    return isinstance(error, MemoryError) or (isinstance(error, Exception) and should_reduce_batch_size(error))
