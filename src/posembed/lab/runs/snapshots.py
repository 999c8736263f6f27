"""The tensors that a run keeps: the rows of its table at geometrically spaced steps, since most changes happen early,
and its attention by distance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from posembed.errors import RunFolderError
from posembed.files import written_whole

SNAPSHOTS = 12


def snapshot_steps(steps: int, count: int = SNAPSHOTS) -> tuple[int, ...]:
    """Returns the steps after which to keep the rows: about ``count``, from the first to before the last."""
    spaced = (round(steps ** (index / count)) for index in range(count))
    return tuple(step for step in dict.fromkeys(spaced) if step < steps)


def save_tables(path: Path, *, initial: Tensor, along: dict[int, Tensor], final: Tensor) -> None:
    """Writes rows (N, D) from before training, after some steps and from its end: "initial", "step 33", "final"."""
    save(path, {"initial": initial, **{f"step {step}": rows for step, rows in along.items()}, "final": final})


def load_tables(path: Path, *, steps: int) -> dict[int, Tensor]:
    """Reads rows (N, D), float32, by the number of steps before them, ascending from 0 to ``steps``.

    Raises:
        RunFolderError: the file cannot be read.
    """
    with refusing(path) as tables:
        rows = {0: tables.pop("initial"), steps: tables.pop("final")}
        rows |= {int(name.removeprefix("step ")): kept for name, kept in tables.items()}
    return {step: rows[step].float() for step in sorted(rows)}


def save_attention(path: Path, weights: Tensor) -> None:
    save(path, {"by distance": weights.float()})


def load_attention(path: Path) -> Tensor:
    """Returns saved weights, (layers, H, L) float32. Raises RunFolderError for a file that cannot be read."""
    with refusing(path) as tensors:
        return tensors["by distance"]


def save(path: Path, tensors: dict[str, Tensor]) -> None:
    with written_whole(path) as temporary:
        save_file(tensors, temporary)


@contextmanager
def refusing(path: Path) -> Iterator[dict[str, Tensor]]:
    """Yields the tensors of a file. Raises RunFolderError if it cannot be read or lacks one."""
    try:
        yield load(path.read_bytes())  # the path need not be UTF-8
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise RunFolderError(
            f"{path} cannot be read ({error}); delete it to get the page without its figure"
        ) from error
