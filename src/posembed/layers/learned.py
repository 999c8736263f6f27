"""A learned table: one trained row per position (Gehring et al. 2017, Radford et al. 2018, Devlin et al. 2019)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posembed.arguments import Float
from posembed.errors import ArgumentError
from posembed.layers.base import InputEncoding, adopted, copy_with, fill_, refuse_given
from posembed.positions.checks import check_offset, check_positions, no_row, require_integers
from posembed.positions.from_layout import consecutive
from posembed.settings import Count, NotNegative, Pair, Probability
from posembed.tables.fill import initial_rows
from posembed.tables.layout import PADDING, TableLayout
from posembed.tables.modules import table_of_module, table_of_state_dict
from posembed.tables.resize import resize_table
from posembed.tables.rows import table_rows

LearnedT = TypeVar("LearnedT", bound="LearnedPositionalEmbedding")


class LearnedPositionalEmbedding(InputEncoding):
    """Adds to each token the trained row of its position, then applies dropout.

    Call it as ``layer(x, position_ids=None, *, offset=0)``. Without ids, positions are 0 to L - 1. For padded texts,
    pass ``posembed.positions.from_mask(mask)``. A position without a row raises PositionError before the lookup, on CPU
    and CUDA, and also inside a compiled graph. The state dict holds ``weight`` (N, D) only.

    Args:
        max_len: the number of positions that the table holds.
        dim: the width D.
        dropout: the probability of dropout on the sum in training.
        init: "normal", "truncated_normal", "xavier", "sinusoidal" (amplitude 1), "zero", or a whole table
            (N, D), such as ``posembed.tables.sinusoidal_table(length=N, dim=D, base=500)``.
        std: the root mean square of normal, truncated normal or sinusoidal initial values. None means .02 for the
            first two and sqrt(1/2), an amplitude of 1, for sinusoids.
        layout: the roles of the rows, such as ``TableLayout.roberta(pad_id=1)``. By default, row i is position i.
        check_ids: False skips the check that every explicit id has a row. On CUDA the check waits for the GPU.
            Consecutive positions are always checked, at no cost.

    Raises:
        ArgumentError: an argument that cannot be used.

    Examples:
        >>> import torch
        >>> from posembed import LearnedPositionalEmbedding
        >>> positions = LearnedPositionalEmbedding(max_len=512, dim=64)
        >>> positions(torch.randn(2, 10, 64)).shape  # adds rows 0 to 9
        torch.Size([2, 10, 64])
        >>> positions(torch.randn(2, 1, 64), offset=10).shape  # the next token, after 10 in the cache
        torch.Size([2, 1, 64])
        >>> from posembed.positions import from_mask
        >>> ids = from_mask(torch.tensor([[0, 0, 1, 1]]))  # two tokens of padding, then positions 0 and 1
        >>> positions(torch.randn(1, 4, 64), ids).shape
        torch.Size([1, 4, 64])
        >>> positions.rows(torch.tensor([0, 511])).shape  # the rows alone
        torch.Size([2, 64])
    """

    def __init__(
        self,
        *,
        max_len: Count,
        dim: Count,
        dropout: Probability = 0.1,
        init: str | Tensor = "normal",
        std: NotNegative | None = None,
        layout: TableLayout = TableLayout(),  # noqa: B008 (it is frozen)
        check_ids: bool = True,
    ) -> None:
        super().__init__(dim, dropout)
        if layout.prefix or layout.tail or layout.grid:
            raise ArgumentError(f"a sequence has no prefix, tail or grid; got {layout}. Use LearnedGridEmbedding")
        self.max_len, self.layout, self.check_ids = max_len, layout, check_ids
        self.init, self.std = init if isinstance(init, str) else "given", std
        self.weight = nn.Parameter(torch.empty(layout.rows(max_len), dim))
        self._fill(init)

    @classmethod
    def from_state_dict(
        cls: type[LearnedT],
        state_dict: Mapping[str, Any],
        *,
        key: str | None = None,
        layout: TableLayout = TableLayout(),  # noqa: B008 (it is frozen)
        **arguments: Any,
    ) -> LearnedT:
        """Builds the layer with the position table of a state dict, of one module or of a whole model.

        The table is found by its name, such as ``position_embeddings.weight``, ``embed_positions.weight``,
        ``wpe.weight``, ``pos_embed`` or ``pe``, with any prefix; a state dict's only table may have any name, except
        one for token rows. Its values are copied as they are stored, with their dtype and device.

        Args:
            state_dict: names -> tensors. The table is (N, D), (1, N, D) or (N, 1, D).
            key: the table's key, or the path of its module, if several tensors could be it.
            layout: the roles of the table's rows, if some are reserved, as in ``TableLayout.roberta(pad_id=1)``.
            arguments: other arguments of the constructor, such as ``dropout``.

        Raises:
            ArgumentError: no tensor, or several, could be the table; or the layout leaves no row for a position.
        """
        return cls._around(table_of_state_dict(state_dict, key), layout, arguments)

    @classmethod
    def from_module(
        cls: type[LearnedT],
        module: nn.Module,
        *,
        key: str | None = None,
        layout: TableLayout | None = None,
        **arguments: Any,
    ) -> LearnedT:
        """Builds the layer with the position table of a module: an nn.Embedding, or a module that holds a table.

        Works like ``from_state_dict``, and also keeps ``requires_grad``. A parametrized table is read through its
        parametrization. In a module that also has linear layers, a table needs a usual name or ``key``. If the module
        scales or normalizes the rows when it reads them, as in x-transformers, this layer adds different values.

        Args:
            layout: the roles of the rows. None infers them from the module: the ``offset`` of BART and OPT, the
                padding row of RoBERTa and fairseq, or the first id in its buffer of position ids.

        Raises:
            ArgumentError: as in ``from_state_dict``; or the table has a ``padding_idx`` and no layout can be inferred.
        """
        return cls._around(*table_of_module(module, key, layout), arguments)

    @classmethod
    def _around(cls: type[LearnedT], table: Tensor, layout: TableLayout, arguments: dict[str, Any]) -> LearnedT:
        refuse_given(arguments, "max_len", "dim", "init", "std")
        if layout != TableLayout():  # some subclasses have no layout
            arguments["layout"] = layout
        rows, dim = table_rows(table).shape
        return adopted(cls(max_len=layout.length(rows), dim=dim, init="zero", **arguments), table)

    def reset_parameters(self) -> None:
        """Draws a new table."""
        self._fill(self.init)

    def table(self) -> Tensor:
        return self.weight

    def on_grid(self, grid: Pair, *, shared: bool = False) -> LearnedPositionalEmbedding:
        """Returns this table for images of ``grid``: one token, then the patches in a line.

        The patches' rows are interpolated linearly to the new number of patches; the token keeps its row.
        """
        cells = math.prod(grid)
        if cells == self.max_len - 1:
            return self
        layout = replace(self.layout, prefix=1)
        weight = resize_table(self.weight, length=cells, method="linear", layout=layout)
        changed = copy_with(self, shared=shared, weight=weight)
        changed.max_len = 1 + cells
        return changed

    def rows(self, position_ids: Tensor) -> Tensor:
        """Returns the rows (..., D) of position_ids, integers of any shape (...), without dropout.

        If the layout has a row for padding, the position ``PADDING`` (-1) reads that row, which is not trained.

        Raises:
            PositionError: a position without a row.
            ArgumentError: ids that are not integers.
        """
        return F.embedding(self.row_ids(position_ids), self.weight, padding_idx=self.layout.pad_row)

    def row_ids(self, position_ids: Tensor) -> Tensor:
        """Returns each position's row number, int64, in the shape of position_ids. Raises the errors of ``rows``."""
        if self.check_ids:
            lowest = 0 if self.layout.pad_row is None else PADDING
            position_ids = check_positions(position_ids, self.max_len, lowest=lowest)
        else:
            require_integers(position_ids, "position_ids")
        return self.layout.rows_of(position_ids)

    def consecutive_rows(self, length: int, offset: int = 0) -> Float[Tensor, "L D"]:
        """Returns a copy of the rows of positions offset .. offset + length - 1: (L, D). Creates no tensor of ids.

        Raises:
            PositionError: a position without a row.
        """
        check_offset(offset)
        if length < 0:
            raise ArgumentError(f"length counts tokens and cannot be negative; got {length}")
        if offset + length > self.max_len and length > 0:
            if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
                # torch.compile replaces an error raised while tracing; this one is raised when the graph runs.
                ids = consecutive(length, offset, device=self.weight.device)
                return F.embedding(check_positions(ids, self.max_len), self.weight)
            raise no_row(offset + length - 1, self.max_len, length=length)
        start = self.layout.front + offset
        return self.weight[start : start + length].clone()

    def _rows_of(self, x: Tensor, position_ids: Tensor | None, offset: int | Tensor) -> Tensor:
        if position_ids is None and not isinstance(offset, Tensor) and self._slices_rows():
            self._require_input(x)
            return self.consecutive_rows(x.shape[1], offset)
        return super()._rows_of(x, position_ids, offset)

    def _slices_rows(self) -> bool:
        """Returns False if a subclass overrides ``rows`` but not ``consecutive_rows``, which may then differ."""
        kind = type(self)
        changed = kind.consecutive_rows is not LearnedPositionalEmbedding.consecutive_rows
        return changed or kind.rows is LearnedPositionalEmbedding.rows

    def _require_input(self, x: Tensor) -> None:
        if x.is_floating_point():
            super()._require_input(x)
        else:
            require_integers(x, "x, unless it is (B, L, D) floats,")
            if x.dim() != 2:
                raise ArgumentError(f"integer x must be (B, L); got {tuple(x.shape)}")

    def _added(self, x: Tensor, rows: Tensor) -> Tensor:
        if not x.is_floating_point():  # a copy: rows may be shared by the batch or belong to a subclass
            return rows.expand(*x.shape, self.dim).clone(memory_format=torch.contiguous_format)
        return super()._added(x, rows)

    def _fill(self, init: str | Tensor) -> None:
        fill_(self.weight, initial_rows(init, self.layout, self.max_len, self.dim, std=self.std))

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Any, strict: bool, *lists: list[str]
    ) -> None:
        *_, errors = lists
        before = len(errors)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *lists)
        loaded = state_dict.get(f"{prefix}weight")  # after the hooks, which may change it
        if len(errors) > before and isinstance(loaded, Tensor) and loaded.shape != self.weight.shape:
            errors[before:] = [
                f"{prefix}weight is {tuple(loaded.shape)}, and this layer holds {tuple(self.weight.shape)}: "
                f"{self.max_len} positions in {self.layout}. Lengthen or shorten the table with "
                f"posembed.resize_table(table, length={self.max_len}), or build the layer at the table's own length"
            ]
