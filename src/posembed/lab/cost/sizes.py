"""Parameters of position tables, and their share of the embeddings and of the model."""

from __future__ import annotations

from dataclasses import dataclass

from posembed.files import data_of


@dataclass(frozen=True)
class Size:
    """The sizes of a model's embeddings. layers: 0 for a table without a model.

    rows: rows of the position table, including reserved rows. vocabulary: rows of the token table; 0 for images.
    types: rows of the segment table. source: the source of a published model's sizes.
    """

    name: str
    rows: int
    width: int
    vocabulary: int = 0
    layers: int = 0
    types: int = 0
    source: str = ""

    @property
    def table(self) -> int:
        """Parameters of the position table."""
        return self.rows * self.width

    @property
    def tokens(self) -> int:
        return self.vocabulary * self.width

    @property
    def share_of_embeddings(self) -> float | None:
        """The share of the position table in the position and token parameters; None without a token table."""
        return self.table / (self.table + self.tokens) if self.vocabulary else None

    @property
    def model(self) -> int | None:
        """Parameters of the Transformer: embeddings, layers with biases and an MLP of 4 D, one final norm.

        A layer has 4 D^2 + 4 D in attention, 8 D^2 + 5 D in the MLP, 4 D in its norms. Heads, poolers and patch
        projections are not counted. None without layers.
        """
        if not self.layers:
            return None
        of_layers = self.layers * (12 * self.width**2 + 13 * self.width)
        return self.table + self.tokens + self.types * self.width + of_layers + 2 * self.width

    @property
    def share_of_model(self) -> float | None:
        return self.table / self.model if self.model else None


KNOWN = tuple(Size(**size) for size in data_of(__file__))
