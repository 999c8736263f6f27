"""A learned table's rows along its training: kept at steps that are spaced geometrically, since most of what
happens to a table happens early."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from posembed.errors import RunFolderError
from posembed.files import written_whole

SNAPSHOTS = 12


def snapshot_steps(steps: int, count: int = SNAPSHOTS) -> tuple[int, ...]:
    """After which steps of a training to keep the rows: about ``count``, from the first to before the last."""
    spaced = (round(steps ** (index / count)) for index in range(count))
    return tuple(step for step in dict.fromkeys(spaced) if step < steps)


def save_tables(path: Path, *, initial: Tensor, along: dict[int, Tensor], final: Tensor) -> None:
    """Rows (N, D) before, after some steps, and at the end, as "initial", "step 33" and "final"."""
    with written_whole(path) as temporary:
        save_file(
            {"initial": initial, **{f"step {step}": rows for step, rows in along.items()}, "final": final},
            temporary,
        )


def load_tables(path: Path, *, steps: int) -> dict[int, Tensor]:
    """Rows (N, D), float32, by the steps that were done, ascending: 0, those kept on the way, ``steps``.

    Raises:
        RunFolderError: the file cannot be read.
    """
    try:
        tables = load(path.read_bytes())  # a name need not be UTF-8
        rows = {0: tables.pop("initial"), steps: tables.pop("final")}
        rows |= {int(name.removeprefix("step ")): kept for name, kept in tables.items()}
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise RunFolderError(
            f"{path} cannot be read ({error}); delete it to have the page without its picture"
        ) from error
    return {step: rows[step].float() for step in sorted(rows)}
