"""Saves and loads the tensors of a run. An unfinished run has a checkpoint. A finished run keeps its attention by
distance, and the rows of its table at geometrically spaced steps, because most changes happen early."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor, nn

from posembed.errors import RunFolderError
from posembed.files import reason, written_whole
from posembed.lab.runs.spec import DRAWS

SNAPSHOTS = 12


@dataclass
class State:
    """The state of a run, except its weights and its optimizer. tables: the rows (N, D) of its table by step."""

    step: int = 0
    seconds: float = 0.0
    losses: list[tuple[int, float]] = field(default_factory=list)
    gradient_norms: list[tuple[int, float]] = field(default_factory=list)
    tables: dict[int, Tensor] = field(default_factory=dict)


def save_checkpoint(path: Path, model: nn.Module, optimizer: Any, state: State) -> None:
    """Writes a checkpoint. If the process is killed while writing, the previous checkpoint remains."""
    contents = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "state": vars(state), "draws": DRAWS}
    buffer = io.BytesIO()  # torch's own file does not say why it cannot be written
    torch.save(contents, buffer)
    with written_whole(path) as temporary:
        temporary.write_bytes(buffer.getbuffer())


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: State) -> None:
    """Restores the model, the optimizer and the state from the checkpoint, if it exists. Raises RunFolderError for a
    file that is damaged, or whose draws are those of another version."""
    try:
        contents = torch.load(path, map_location="cpu", weights_only=True)
        if contents.get("draws") != DRAWS:
            raise ValueError("its random draws are those of another version")
        model.load_state_dict(contents["model"])
        optimizer.load_state_dict(contents["optimizer"])
        vars(state).update(contents["state"])
    except FileNotFoundError:  # also if another process has finished this run and removed it
        return
    except Exception as error:  # torch.load raises many types for damaged files
        raise RunFolderError(
            f"the checkpoint {path} cannot be read ({reason(error)}); delete it, and its run starts again"
        ) from error


def snapshot_steps(steps: int) -> tuple[int, ...]:
    """Returns the steps after which to keep the table's rows: at most ``SNAPSHOTS`` steps, none of them the last."""
    spaced = (round(steps ** (index / SNAPSHOTS)) for index in range(SNAPSHOTS))
    return tuple(step for step in dict.fromkeys(spaced) if step < steps)


def save_tables(path: Path, tables: dict[int, Tensor]) -> None:
    """Writes the rows (N, D) of a table at several steps, each under a name such as "step 33"."""
    _save(path, {f"step {step}": rows for step, rows in tables.items()})


def load_tables(path: Path, steps: int) -> dict[int, Tensor]:
    """Returns the saved rows (N, D) of a table by step, in float32, from step 0 to the last step, ``steps``.

    Raises the same errors as ``load_attention``.
    """
    with _loaded(path) as tables:
        found = {int(name.removeprefix("step ")): rows.float() for name, rows in tables.items()}
        if not {0, steps} <= found.keys():
            raise ValueError("the first or the last rows are missing")
    return dict(sorted(found.items()))


def save_attention(path: Path, weights: Tensor) -> None:
    _save(path, {"by distance": weights.float()})


def load_attention(path: Path) -> Tensor:
    """Returns saved attention weights (layers, H, L), in float32. Raises RunFolderError if the file cannot be read."""
    with _loaded(path) as tensors:
        return tensors["by distance"]


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    with written_whole(path) as temporary:
        save_file(tensors, temporary)


@contextmanager
def _loaded(path: Path) -> Iterator[dict[str, Tensor]]:
    """Yields the tensors of a file. Raises RunFolderError if the file cannot be read or lacks an expected tensor."""
    try:
        yield load(path.read_bytes())  # the path need not be UTF-8
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise RunFolderError(
            f"{path} cannot be read ({reason(error)}); delete it to get the page without its figure"
        ) from error
