"""Which rows of a learned table are learned poorly, and which matter?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from posembed.errors import ArgumentError
from posembed.lab.by_seed import BySeed
from posembed.lab.data.lengths import FULL, NAMES, TrainLengths, counts_of, distribution
from posembed.lab.question import Compared, Loaded, Row, Summary, TrainedQuestion, presets_of
from posembed.lab.tasks.text_specs import LanguageSpec, corpus_of
from posembed.statistics import Estimate, estimate, paired_difference

LEARNED = "learned"
BAND_ENDS = (1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)
"""The ends of the bands of positions, as shares of the training length."""

ByPosition: TypeAlias = dict[int, Estimate | None]
"""Estimates by position, or by the first position of a band. None means not measured, or no reference."""


@dataclass(frozen=True)
class RowMeasurements:
    """Measurements of one run by position p, 0 to L - 1.

    loss: on held-out text in windows of L tokens, the loss of the token predicted at p, in nats.
    trained: the number of training sequences that had a token to predict at p, which is how often row p was trained.
    attention: the share of all attention that p receives, a mean over layers and heads. The shares sum to 1.
    text_increase: the increase in the loss of a text of L tokens, in nats, if row p alone is replaced with the mean
    row. own_increase: the same for the token predicted at p. neighbour_increase: the increase in the loss of the text
    if row p is replaced with row p + 1 (the last row: with the row before it), as if the position were off by one. All
    three are empty for encodings other than "learned".
    """

    loss: tuple[float, ...]
    trained: tuple[int, ...]
    attention: tuple[float, ...]
    text_increase: dict[int, float]
    own_increase: dict[int, float]
    neighbour_increase: dict[int, float]

    def later_increase(self, position: int) -> float | None:
        """The mean increase per token predicted after ``position``, if its row is replaced. None for the last row
        and for rows that were not replaced."""
        later = len(self.loss) - 1 - position
        if not later or position not in self.text_increase:
            return None
        return (self.text_increase[position] - self.own_increase[position]) / later

    def attention_ratio(self, position: int) -> float:
        """The attention that ``position`` receives, relative to heads that attend equally to all tokens they see."""
        length = len(self.attention)
        even = math.fsum(1 / seen for seen in range(position + 1, length + 1)) / length
        return self.attention[position] / even


@dataclass(frozen=True, kw_only=True)
class RowSpec(LanguageSpec):
    COMPARED: ClassVar[str] = "train_lengths"
    Measured = RowMeasurements

    train_lengths: str | None = None
    """The name that is compared, such as "short" or "short+sinusoidal"."""

    @cached_property
    def lengths_drawn(self) -> TrainLengths | None:
        return distribution(self.lengths_name, self.train_length_counts, self.train_length)

    @property
    def lengths_name(self) -> str:
        """The name of its lengths, such as "short" for "short+sinusoidal"."""
        return self.compared if self.encoding == LEARNED else self.compared.removesuffix(f"+{self.encoding}")

    def shared_settings(self) -> dict[str, Any]:
        own = ("encoding", "train_length_counts")
        return {name: value for name, value in super().shared_settings().items() if name not in own}


@dataclass(frozen=True, kw_only=True)
class RowRow(Row):
    """The results of one distribution of training lengths with one encoding. Intervals are over seeds.

    The keys are the first positions of bands, and a value is the mean over the band. Values that end in
    ``by_position`` have one key per position.
    """

    encoding: str
    trained: ByPosition
    """How often each row was trained."""
    loss: ByPosition
    versus_reference: ByPosition
    """The loss minus the loss of the same encoding with the reference's lengths, paired by seed."""
    beyond_control: ByPosition
    """``versus_reference`` minus the same difference of the control with the same lengths, paired by seed."""
    late_beyond_early: Estimate | None
    """``beyond_control`` of the last band minus that of the first band, paired by seed: what late rows cost."""
    text_increase: ByPosition
    """Defined in ``RowMeasurements``, like the next two."""
    own_increase: ByPosition
    later_increase: ByPosition
    """The increase per token predicted after the replaced row."""
    neighbour_increase: ByPosition
    attention: ByPosition
    """The attention received, relative to heads that attend equally to all tokens they see."""
    trained_by_position: ByPosition
    versus_reference_by_position: ByPosition
    text_increase_by_position: ByPosition
    neighbour_increase_by_position: ByPosition
    attention_by_position: ByPosition
    early_minus_late: dict[str, Estimate | None]
    """The difference between the first and the last band, paired by seed, by name of the value."""


@dataclass(frozen=True, kw_only=True)
class RowSummary(Summary):
    train_length: int
    steps: int
    sequences: int
    """The number of training sequences of a run."""
    bands: dict[int, int]
    """The last position of each band, by its first position."""
    reference_lengths: str
    """The name of the reference's lengths: "full" for "full+sinusoidal". Each encoding is compared with its own run
    on them."""
    control: str | None
    """The encoding without position parameters with which ``beyond_control`` compares; None if none was run with the
    same lengths."""
    rows: tuple[RowRow, ...]


class Rows(TrainedQuestion[RowSpec, RowMeasurements, RowSummary]):
    name = page = "rows"
    asks = "Which rows of a learned table are learned poorly, and which matter?"
    Spec = RowSpec
    usual = ("full", "short", "full+sinusoidal", "short+sinusoidal")
    usual_reference = FULL
    names_help = (
        "Training lengths to compare, separated by commas: full, uniform (1 to the training length), short (few are "
        "long), or a file with one length per line, or a length and a count. LENGTHS+ENCODING trains another encoding "
        "than the learned table."
    )
    presets = presets_of("rows")
    preset = "quick"
    presets_help = "quick (minutes), small (an hour on two cores) or gpt2 (a GPU)."

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

    def load(self, chosen: dict[str, Any]) -> Loaded:
        from posembed.lab.tasks.rows import TrainedRows

        corpus = corpus_of(chosen)
        return TrainedRows(corpus), {"data_sha256": corpus.sha256}

    def summary(self, runs: Sequence[BySeed[RowMeasurements]], spec: RowSpec, reading: Compared) -> RowSummary:
        for each in runs:
            if len({result.spec.train_length_counts for result in each.results}) > 1:
                raise ArgumentError(
                    f"the folder holds runs of several files called {each.results[0].spec.compared}, whose lengths "
                    "differ; choose another --out, or rename the file"
                )
        control, reference = control_of(runs), next(lengths_of(each) for each in runs if each.reference is None)
        return RowSummary(
            train_length=spec.train_length,
            steps=spec.steps,
            sequences=spec.steps * spec.batch,
            bands=bands(spec.train_length),
            reference_lengths=reference,
            control=control,
            rows=tuple(row_row(each, runs, spec, reference, control) for each in runs),
        )


def encoding_of(runs: BySeed[RowMeasurements]) -> str:
    return str(runs.results[0].spec.encoding)


def lengths_of(runs: BySeed[RowMeasurements]) -> str:
    return str(runs.results[0].spec.lengths_name)


def control_of(every: Sequence[BySeed[RowMeasurements]]) -> str | None:
    """Returns the encoding without position parameters that was run with the reference's lengths and with the most of
    the other lengths of the learned table; None if there is none."""
    reference = next(lengths_of(each) for each in every if each.reference is None)
    learned = {lengths_of(each) for each in every if encoding_of(each) == LEARNED}
    run_with: dict[str, set[str]] = {}
    for each in every:
        if each.measured and not each.row["position_parameters"]:
            run_with.setdefault(encoding_of(each), set()).add(lengths_of(each))
    shared = {name: len(learned & lengths) for name, lengths in run_with.items() if reference in lengths}
    best = max(shared, key=shared.__getitem__, default=None)
    return best if best is not None and shared[best] > 1 else None


def bands(length: int) -> dict[int, int]:
    """Returns the last position of each band, by its first position: {0: 7, 8: 15, 16: 31, 32: 47, 48: 63} for 64."""
    ends = list(dict.fromkeys(max(round(share * length), 1) for share in BAND_ENDS))
    return dict(zip([0, *ends[:-1]], [end - 1 for end in ends], strict=True))


Read: TypeAlias = Callable[[RowMeasurements, int], float | None]
"""Reads a value at a position; None if it was not measured."""


def band_mean(read: Read, first: int, last: int) -> Callable[[RowMeasurements], float | None]:
    """Returns a function that averages ``read`` over the positions of a band at which there is a value."""

    def mean(measured: RowMeasurements) -> float | None:
        found = [value for p in range(first, last + 1) if (value := read(measured, p)) is not None]
        return math.fsum(found) / len(found) if found else None

    return mean


VALUES: dict[str, Read] = {
    "text_increase": lambda m, p: m.text_increase.get(p),
    "own_increase": lambda m, p: m.own_increase.get(p),
    "later_increase": lambda m, p: m.later_increase(p),
    "neighbour_increase": lambda m, p: m.neighbour_increase.get(p),
    "attention": lambda m, p: m.attention_ratio(p),
}
"""How to read the values that tell which rows matter."""
TRAINED: Read = lambda m, p: m.trained[p]  # noqa: E731
LOSS: Read = lambda m, p: m.loss[p]  # noqa: E731
DRAWN = ("text_increase", "neighbour_increase", "attention")
"""The names in VALUES that the figure shows by position."""


def row_row(
    runs: BySeed[RowMeasurements],
    every: Sequence[BySeed[RowMeasurements]],
    spec: RowSpec,
    reference: str,
    control: str | None,
) -> RowRow:
    kinds = {(lengths_of(each), encoding_of(each)): each for each in every}
    lengths, encoding = lengths_of(runs), encoding_of(runs)
    own = None if reference == lengths else kinds.get((reference, encoding))
    others = [kinds.get((of, control or "")) for of in (lengths, reference)] if encoding == LEARNED else [None]

    def means(read: Read, parts: Mapping[int, int]) -> ByPosition:
        return {first: runs.mean(band_mean(read, first, last)) for first, last in parts.items()}

    def versus(parts: Mapping[int, int]) -> ByPosition:
        return {first: runs.less(own, band_mean(LOSS, first, last)) for first, last in parts.items()}

    def beyond(first: int, last: int) -> dict[int, float]:
        """Returns by seed how much more the learned table loses than the control."""
        if own is None or None in others:
            return {}
        read = band_mean(LOSS, first, last)
        ours, full, theirs, their_full = (each.values(read) for each in (runs, own, *others) if each is not None)
        shared = ours.keys() & full.keys() & theirs.keys() & their_full.keys()
        return {seed: (ours[seed] - full[seed]) - (theirs[seed] - their_full[seed]) for seed in sorted(shared)}

    def estimated(by_seed: Mapping[int, float]) -> Estimate | None:
        return estimate(list(by_seed.values())) if by_seed else None

    parts = bands(spec.train_length)
    each = {position: position for position in range(spec.train_length)}
    (first_band, *_), (last_band, *_) = list(parts.items()), list(parts.items())[::-1]
    return RowRow(
        **runs.row,
        encoding=encoding,
        trained=means(TRAINED, parts),
        loss=means(LOSS, parts),
        versus_reference=versus(parts),
        beyond_control={first: estimated(beyond(first, last)) for first, last in parts.items()},
        late_beyond_early=paired_difference(beyond(*last_band), beyond(*first_band)),
        **dict[str, Any]((name, means(read, parts)) for name, read in VALUES.items()),
        trained_by_position=means(TRAINED, each),
        versus_reference_by_position=versus(each),
        **dict[str, Any]((f"{name}_by_position", means(VALUES[name], each)) for name in DRAWN),
        early_minus_late={
            name: runs.less(runs, band_mean(read, *first_band), band_mean(read, *last_band))
            for name, read in VALUES.items()
        },
    )


def parts_of(name: str) -> tuple[str, str]:
    """Splits "short+sinusoidal" into ("short", "sinusoidal") and "short" into ("short", "learned"). The name of a file
    may contain a "+"."""
    cuts = [index for index, letter in enumerate(name) if letter == "+"]
    for cut in (len(name), *cuts):
        if name[:cut] in NAMES or Path(name[:cut]).expanduser().is_file():
            return name[:cut], name[cut + 1 :] or LEARNED
    return name, LEARNED
