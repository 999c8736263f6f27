"""The rows of a learned table during training, at geometrically spaced steps: most changes happen early."""

from __future__ import annotations

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
    with written_whole(path) as temporary:
        save_file(
            {"initial": initial, **{f"step {step}": rows for step, rows in along.items()}, "final": final},
            temporary,
        )


def load_tables(path: Path, *, steps: int) -> dict[int, Tensor]:
    """Reads rows (N, D), float32, by the number of steps before them, ascending from 0 to ``steps``.

    Raises:
        RunFolderError: the file cannot be read.
    """
    try:
        tables = load(path.read_bytes())  # the path need not be UTF-8
        rows = {0: tables.pop("initial"), steps: tables.pop("final")}
        rows |= {int(name.removeprefix("step ")): kept for name, kept in tables.items()}
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise RunFolderError(
            f"{path} cannot be read ({error}); delete it to get the page without its figure"
        ) from error
    return {step: rows[step].float() for step in sorted(rows)}
