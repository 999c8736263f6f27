"""A callback for the transformers Trainer that logs what a position table learns, and draws it at the end."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from posembed.checkpoints.find import find_tables
from posembed.errors import ArgumentError
from posembed.integrations.install import path_of
from posembed.layers.base import PositionEncoding
from posembed.tables.monitor import TableMonitor
from posembed.versions import names_versions

with names_versions("transformers"):
    from transformers import Trainer, TrainerCallback

PREFIX = "positions/"
FIGURE = "position_table.png"


class TableCallback(TrainerCallback):
    """Logs ``TableMonitor.state()`` whenever a Trainer logs, and draws a figure at the end of training.

        trainer.add_callback(TableCallback(trainer))

    The numbers are logged as ``positions/norm_mean`` and so on. The figure is ``position_table.png`` in the output
    folder. At the end, a warning names the rows that were rarely trained (``TableMonitor.rare``). Only the first
    process logs, draws and warns.

    Args:
        trainer: the Trainer, whose ``log`` sends the numbers to its trackers.
        layer: the layer or table to watch, as for ``TableMonitor``. None means the table of the encoding from
            ``replace_positions``, or else the model's own table.

    Raises:
        ArgumentError: the model has no table, or several.

    Examples:
        >>> from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
        >>> from posembed.integrations.transformers import TableCallback
        >>> sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> model = BertForSequenceClassification(BertConfig(**sizes, intermediate_size=16))
        >>> trainer = Trainer(model, TrainingArguments(output_dir="out", report_to="none"))
        >>> callback = TableCallback(trainer)
        >>> trainer.add_callback(callback)
        >>> callback.monitor.state()["rows"]
        512.0
    """

    def __init__(self, trainer: Trainer, layer: nn.Module | Tensor | None = None) -> None:
        self.trainer, self.layer = trainer, layer
        self.monitor = TableMonitor(table_of(trainer.model) if layer is None else layer)
        self.history: list[dict[str, float]] = []
        """The logged states, each with its ``step``."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        table = table_of(self.trainer.model) if self.layer is None else self.layer
        if table is not self.monitor.layer:  # a Trainer with model_init has built another model
            self.monitor = TableMonitor(table)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if control.should_log and state.is_world_process_zero:
            now = self.monitor.state()
            self.history.append({"step": float(state.global_step), **now})
            self.trainer.log({PREFIX + name: value for name, value in now.items()})
            control.should_log = True  # log turns it off, and the Trainer has its own numbers still to log

    on_epoch_end = on_step_end

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            folder = Path(args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            self.draw(folder / FIGURE)
            for finding in self.monitor.findings():
                logging.getLogger(__name__).warning("the position table: %s", finding)

    def draw(self, path: Path) -> None:
        """Draws the norm of each row, the similarity of rows by distance, and the effective rank by step."""
        from matplotlib.figure import Figure  # which training does not need

        from posembed import plots
        from posembed.plots.canvas import dress

        figure = Figure(figsize=(12, 3.5), layout="constrained")
        norms, cosines, rank = figure.subplots(1, 3)
        plots.norms({"at the start": self.monitor.initial, "now": self.monitor.rows()}, ax=norms)
        plots.similarity_by_distance(self.monitor.rows(), ax=cosines)
        rank.plot([now["step"] for now in self.history], [now["effective_rank"] for now in self.history], marker=".")
        dress(rank, title="effective rank", x="step", grid="y").set_ylim(bottom=0)
        figure.savefig(path, dpi=120)


def table_of(model: Any) -> nn.Module | Tensor:
    """Returns a model's encoding that has a table, or else the model's own position table."""
    encodings = [module for module in model.modules() if isinstance(module, PositionEncoding)]
    tables: list[nn.Module | Tensor] = [module for module in encodings if module.table() is not None]
    if not encodings and hasattr(model, "config"):
        config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
        found = find_tables(config, {key: tensor.detach() for key, tensor in model.state_dict().items()})
        tables = [model.get_parameter(path_of(table, model)) for table in found.understood]
    if len(tables) != 1:
        raise ArgumentError(
            f"{type(model).__name__} has {len(tables)} position tables, but a TableCallback watches one: pass layer="
        )
    return tables[0]
