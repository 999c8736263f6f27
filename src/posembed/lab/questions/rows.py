"""Which rows of a learned table are learned poorly, and which matter?"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from posembed.errors import ArgumentError
from posembed.lab.data.lengths import NAMES, counts_of
from posembed.lab.found import Axis, Found, Results
from posembed.lab.question import TrainedQuestion
from posembed.lab.tasks.row_specs import LEARNED, RowSpec, bands
from posembed.measure.metrics import Metric


class Rows(TrainedQuestion):
    name = "rows"
    Spec = RowSpec

    @property
    def compared(self) -> str:
        return "train_lengths"

    def canonical(self, text: str) -> str:
        """Returns "short" for "short+learned" and "short+"."""
        lengths, encoding = parts_of(text)
        return lengths if encoding == LEARNED else text

    def check_name(self, name: str) -> None:
        from posembed.nn.encodings import needs_window

        lengths, encoding = parts_of(name)
        counts_of(lengths)
        super().check_name(encoding)
        if needs_window(encoding):
            raise ArgumentError(
                f"{encoding!r} needs a window, and compare rows sets none, so that every token can attend to every "
                "earlier row; choose an encoding without a window, or use posembed compare lengths"
            )

    def specs(self, shared: RowSpec, names: Sequence[str], seeds: int, values: Sequence[str] = ()) -> list[RowSpec]:
        own = {name: parts_of(name) for name in names}
        counts = {name: counts_of(lengths) for name, (lengths, _) in own.items()}
        return [
            dataclasses.replace(spec, encoding=own[spec.compared][1], train_length_counts=counts[spec.compared])
            for spec in super().specs(shared, names, seeds, values)
        ]

    def axis(self, results: Results, metric: Metric) -> Axis:
        known = bands(results[0].spec.train_length)
        notes = {first: f"to {last:,}" for first, last in known.items() if last > first}
        return Axis(
            "tokens of earlier context", max(known), told=tuple(dict.fromkeys((min(known), max(known)))), notes=notes
        )

    def reference_of(self, found: Found, name: str) -> str | None:
        """Returns the run of the same encoding with the reference's lengths."""
        wanted = found.specs[found.reference or name].lengths_name, found.specs[name].encoding
        own = next((other for other, spec in found.specs.items() if (spec.lengths_name, spec.encoding) == wanted), None)
        return None if own == name else own


def parts_of(name: str) -> tuple[str, str]:
    """Splits "short+sinusoidal" into ("short", "sinusoidal") and "short" into ("short", "learned"). The name of a file
    may contain a "+"."""
    cuts = [index for index, letter in enumerate(name) if letter == "+"]
    for cut in (len(name), *cuts):
        if name[:cut] in NAMES or Path(name[:cut]).expanduser().is_file():
            return name[:cut], name[cut + 1 :] or LEARNED
    return name, LEARNED
