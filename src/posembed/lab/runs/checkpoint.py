"""The checkpoint of an unfinished run, and signals that arrive in the middle of a step."""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from posembed.errors import RunFolderError
from posembed.files import written_whole


@dataclass
class State:
    """The progress of a run, apart from its weights and its optimizer. tables: the encoding's rows after some steps."""

    step: int = 0
    seconds: float = 0.0
    losses: list[tuple[int, float]] = field(default_factory=list)
    tables: dict[int, Tensor] = field(default_factory=dict)


def save(path: Path, model: nn.Module, optimizer: Any, state: State) -> None:
    """Writes a checkpoint. A kill leaves the previous one."""
    contents = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "state": vars(state)}
    with written_whole(path) as temporary:
        torch.save(contents, temporary)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: State) -> None:
    """Restores all three from the checkpoint, if there is one."""
    try:
        contents = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(contents["model"])
        optimizer.load_state_dict(contents["optimizer"])
        vars(state).update(contents["state"])
    except FileNotFoundError:  # also if another process has finished this run and removed it
        return
    except Exception as error:  # torch.load raises whatever the bytes lead it to
        raise RunFolderError(
            f"the checkpoint {path} cannot be read ({error}); delete it, and its run starts again"
        ) from error


class Interrupt:
    """A context in which Ctrl-C and SIGTERM wait for the end of the step. A second one does not wait."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.came = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():  # Python accepts handlers only here
            self._before = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is None:  # the block ended without an error, and has not checked
            self.stop_if_it_came()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.came:
            raise KeyboardInterrupt
        self.came = True

    def stop_if_it_came(self) -> None:
        if self.came:
            raise KeyboardInterrupt
