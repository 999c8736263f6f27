"""Problems of a table, as findings that a user can act on, and the tests of rows (N, D) that find them.

The thresholds are deliberately wide: a finding should be worth a person's time, and a sound table has none. Some come
from a real table, all-MiniLM-L6-v2 (512 x 384), whose rows 0, 127, 510 and 511 are "marked": unlike all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from posembed.arguments import Float, checks_arguments
from posembed.errors import ArgumentError
from posembed.tables.layout import TableLayout
from posembed.tables.rare_rows import (
    EVALUATE,
    FEWEST_DIMENSIONS,
    LOOKS_RARE,
    WINDOW,
    local_median,
    norm_step,
    rough_end,
)
from posembed.tables.rows import table_rows
from posembed.tables.similarity import neighbour_cosine
from posembed.tables.sources import Table, table_in

SIGMAS = 6
"""The number of standard deviations beyond which a value is not noise. Normal noise exceeds 6 twice in 10^9."""

DEAD = 2.0**-8
"""A row this small relative to the others is rounded away in bfloat16 (8 bits) when it is added to a token."""

NORM_CHANGE = 0.25
"""The smallest relative difference to the local median norm that counts as outlying. In MiniLM, the difference is at
least .47 for the marked rows and at most .14 for the other rows."""

COSINE_DROP = 0.2
"""A row is outlying if its cosine to the more similar neighbour is this far below the local median. In MiniLM, the
cosine drops by at least .29 for three marked rows and by at most .08 for other rows; row 510 has .14, but an outlying
norm."""

FRESH = 4.0
"""The mean of D cos^2 between a row and its neighbours below which the row looks random. For random rows, D cos^2 is 1
on average, and its mean over 16 neighbours exceeds 4 once in 10^7. MiniLM's lowest mean is 35; in a small language
model the median was 8 after 100 steps of training, 43 after 600."""

TOKEN_RATIO = 3.0
"""The largest ratio of the rows' norm to the tokens' norm. At 3, position makes up 9/10 of the variance of the sum."""

ROW_RATIO = 20.0
"""The largest ratio of the tokens' norm to the rows' norm. At 20, position makes up 1/400 of the sum's variance."""

FEW = 0.01
"""The largest share of repeated rows with which a table is searched for rarely trained rows; one row is always allowed.
Without many repeated ones, the others look rough."""

SHOWN = 4
"""The largest number of rows whose values ``figure`` lists."""

UNTRAINED = "Train the table, or check whether its key was found when the checkpoint was loaded."
UNREACHED = (
    "If inputs reach them, train on longer inputs, or truncate the table before them and lengthen it from there."
)


@dataclass(frozen=True)
class Finding:
    """A problem of a table. ``what`` and ``rows`` are for programs; ``figure``, ``meaning`` and ``remedy`` are text.

    Examples:
        >>> from posembed.tables import check_table, sinusoidal_table
        >>> table = sinusoidal_table(64, 64)
        >>> table[10] = 0
        >>> [finding] = check_table(table)
        >>> finding.what, finding.rows
        ('dead', (10,))
    """

    what: str
    """"not finite", "dead", "like random", "repeated", "outlying", "rarely trained", "scale"; of relative rows, "never
    trained"; of a checkpoint, "wrong ids"."""
    rows: tuple[int, ...]
    """Row numbers of the table, ascending."""
    figure: str
    meaning: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}, {describe_rows(self.rows)}: {self.figure}. {self.meaning} {self.remedy}"


def describe_rows(rows: tuple[int, ...]) -> str:
    """Formats row numbers: (0, 127, 510, 511) -> "rows 0, 127, 510-511"."""
    runs: list[tuple[int, int]] = []
    for row in rows:
        if runs and row == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], row)
        else:
            runs.append((row, row))
    named = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return ("row " if len(rows) == 1 else "rows ") + ", ".join(named)


@checks_arguments
def check_table(
    table: Table,
    *,
    layout: TableLayout | None = None,
    token_norm: float | None = None,
) -> tuple[Finding, ...]:
    """Lists a table's problems, the worst first. The list for a sound table is empty.

    Args:
        table: a floating tensor or array (N, D), (1, N, D) or (N, 1, D), or a module that is or holds one table.
        layout: the roles of its rows. Only rows of positions are judged, but all rows are checked for NaN and infinity.
            None means the layer's layout or, without one, that all rows are positions.
        token_norm: the mean norm of the token rows that the table is added to, times the model's factor on token rows
            (sqrt(D) in the original Transformer). None skips the check of scale.

    Raises:
        ArgumentError: a table, layout or norm that cannot be used, such as a model of transformers or a path.

    Examples:
        >>> import torch
        >>> from posembed.tables import check_table, sinusoidal_table
        >>> check_table(sinusoidal_table(512, 64))  # nothing is wrong
        ()
        >>> for finding in check_table(torch.zeros(512, 64)):
        ...     print(finding.what)
        dead
    """
    if token_norm is not None and not token_norm > 0:
        raise ArgumentError(f"token_norm is the mean norm of the token rows, above 0; got {token_norm}")
    values, own = table_in(table)
    return tuple(_findings(table_rows(values).detach().to("cpu", torch.float64), layout or own, token_norm))


def check_relative(rows: Tensor) -> tuple[Finding, ...]:
    """Lists the problems of relative rows (N, D), such as biases by difference or by bucket: rows that are not finite,
    and rows of zeros. A small row is no problem: it says that a distance changes nothing."""
    rows = rows.detach().to("cpu", torch.float64)
    zeros = (rows == 0).all(dim=1)
    unread = Finding(
        "never trained",
        tuple(zeros.nonzero()[:, 0].tolist()),
        "all zeros, which is the initial value in many models",
        "Attention does not depend on these differences of positions.",
        UNTRAINED if zeros.all() else UNREACHED,
    )
    return (*_not_finite(rows), *([unread] if zeros.any() else []))


def _not_finite(rows: Tensor) -> Iterator[Finding]:
    finite = rows.isfinite().all(dim=1)
    if not finite.all():
        yield Finding(
            "not finite",
            tuple((~finite).nonzero()[:, 0].tolist()),
            f"NaN or infinity in {int((~finite).sum())} of {len(rows)} rows",
            "Every sequence that reads one of them becomes NaN.",
            "Go back to a checkpoint from before training diverged, or overwrite these rows.",
        )


def _findings(rows: Tensor, layout: TableLayout, token_norm: float | None) -> Iterator[Finding]:
    finite = rows.isfinite().all(dim=1)
    places = torch.arange(layout.front, layout.front + layout.length(len(rows)))
    yield from _not_finite(rows)
    places = places[finite[places]]
    rows = rows[places]
    dead = dead_rows(rows)
    if dead.any():
        largest = rows[dead].norm(dim=1).max().item()
        yield Finding(
            "dead",
            tuple(places[dead].tolist()),
            f"norm {largest:.1g} or less, {rows.norm(dim=1).median():.2g} at the median" if largest else "all zeros",
            "These positions add nothing to their tokens, so the model cannot tell them apart.",
            UNTRAINED if dead.all() else UNREACHED,
        )
    rows, places = rows[~dead], places[~dead]
    if not len(rows):
        return

    fresh = fresh_rows(rows)
    if fresh.any():
        yield Finding(
            "like random",
            tuple(places[fresh].tolist()),
            f"cosine to the more similar neighbour {nearer_cosine(rows)[fresh].mean():.2f}, as for random rows",
            "They look like initial values: training gave them no order.",
            UNTRAINED if fresh.all() else UNREACHED,
        )
    first = first_equal_row(rows)
    repeated = first != torch.arange(len(rows))
    if repeated.any():
        example = int(repeated.nonzero()[0])
        yield Finding(
            "repeated",
            tuple(places[repeated].tolist()),
            f"equal to an earlier row; row {places[example]} repeats row {places[first[example]]}",
            "The model cannot tell these positions from the ones they repeat.",
            "After tiling this is intended, and fine-tuning separates them; otherwise look for positions computed in a "
            "narrow dtype (bfloat16 cannot count past 256).",
        )
    outlying = outlying_rows(rows) & ~fresh
    if outlying.any():
        cosine = nearer_cosine(rows)
        yield Finding(
            "outlying",
            tuple(places[outlying].tolist()),
            f"{_listed(norm_over_median(rows)[outlying])} times the norm of the surrounding rows, cosine to the more "
            f"similar neighbour {_listed(cosine[outlying])} where "
            f"{local_median(cosine)[outlying].median():.2f} is usual",
            "Marked positions: the first row often marks the start, others mark where training sequences ended.",
            "This is not a fault, but tiling repeats the marks and interpolation blurs them: evaluate a resized table.",
        )
    if not layout.axes and repeated.sum() <= max(1, FEW * len(rows)):
        known = ~fresh & ~repeated
        yield from _of_rare(rows[known], places[known])
    if token_norm is not None:
        yield from _of_scale(rows, places, token_norm)


def _of_rare(rows: Tensor, places: Tensor) -> Iterator[Finding]:
    """Yields a finding if the last rows (N, D) of a table look rarely trained. places: the row numbers."""
    start, change = norm_step(rows)
    rough, times = rough_end(rows)
    if start < len(rows):
        figure = f"from row {places[start]} on, the norms are {1 + change:.2f} times those of the rows before it"
    else:
        start, figure = rough, f"{times:.1f} times as rough as the smoothest part of the table"
    if start < len(rows):
        yield Finding("rarely trained", tuple(places[start:].tolist()), figure, LOOKS_RARE, EVALUATE)


@checks_arguments
def check_scale(
    tokens: Float[Tensor, "... D"], table: Table, *, layout: TableLayout | None = None
) -> tuple[Finding, ...]:
    """Compares the scales of tokens and of the rows added to them. Returns one finding if either is far larger.

    A table of zeros, which a model fills by training, gives no finding.

    Args:
        tokens: embedded tokens (..., D), floating, as they are just before the rows are added.
        table: as in ``check_table``.
        layout: as in ``check_table``.

    Raises:
        ArgumentError: tokens and rows of different widths, or a layer without a table.

    Examples:
        >>> import torch
        >>> from posembed.tables import check_scale
        >>> [finding] = check_scale(torch.ones(2, 10, 64), torch.full((512, 64), 0.02))
        >>> finding.remedy
        "Start from rows of the tokens' scale (std=1), or from tokens of the rows' scale (std=0.02)."
    """
    values, own = table_in(table)
    rows, layout = table_rows(values).detach().to("cpu", torch.float64), layout or own
    if tokens.shape[-1] != rows.shape[1]:
        raise ArgumentError(f"tokens must be (..., D={rows.shape[1]}); got {tuple(tokens.shape)}")
    places = torch.arange(layout.front, layout.front + layout.length(len(rows)))
    places = places[rows[places].isfinite().all(dim=1)]
    token_norm = tokens.detach().float().norm(dim=-1).mean().item()
    return tuple(_of_scale(rows[places], places, token_norm)) if token_norm > 0 and rows[places].any() else ()


def _of_scale(rows: Tensor, places: Tensor, token_norm: float) -> Iterator[Finding]:
    """Yields a finding if the rows (N, D) drown the tokens or the tokens drown the rows. places: the row numbers."""
    norm, root = rows.norm(dim=1).median().item(), rows.shape[1] ** 0.5
    if norm > TOKEN_RATIO * token_norm:
        figure = f"{norm / token_norm:.3g} times the tokens' {token_norm:.3g}"
        meaning = "Added to the tokens, these rows dominate them, above all early in training."
    elif token_norm > ROW_RATIO * norm > 0:
        figure = f"and the tokens' is {token_norm / norm:.3g} times that, {token_norm:.3g}"
        meaning = "Added to tokens of this scale, these rows hardly change them, above all early in training."
    else:
        return
    yield Finding(
        "scale",
        tuple(places.tolist()),
        f"norm {norm:.3g}, {figure}",
        meaning,
        f"Start from rows of the tokens' scale (std={token_norm / root:.2g}), or from tokens of the rows' "
        f"scale (std={norm / root:.2g}).",
    )


def _listed(values: Tensor) -> str:
    shown = ", ".join(f"{value:.2f}" for value in values[:SHOWN].tolist())
    return shown + (" ..." if len(values) > SHOWN else "")


def dead_rows(rows: Tensor) -> Tensor:
    """Flags rows (N, D) that are zero, or negligible compared with the median norm of the nonzero rows."""
    norms = rows.norm(dim=1)
    return norms <= DEAD * norms[norms > 0].median() if norms.any() else torch.ones_like(norms, dtype=torch.bool)


def fresh_rows(rows: Tensor) -> Tensor:
    """Flags rows that look newly initialized: as different from their neighbours as random rows, and of equal norm.

    Weight decay shrinks all unread rows by the same factor, so both properties remain. A few rows may differ from their
    neighbours for a reason, so only runs of 2 WINDOW rows or more count.
    """
    n, dim = rows.shape
    if n <= 2 * WINDOW or dim < FEWEST_DIMENSIONS:
        return torch.zeros(n, dtype=torch.bool)
    directions = F.normalize(rows, dim=1)
    likeness, pairs = torch.zeros(n, dtype=rows.dtype), torch.zeros(n, dtype=rows.dtype)
    for distance in range(1, WINDOW + 1):
        squared = (directions[:-distance] * directions[distance:]).sum(dim=1) ** 2
        for side in (slice(None, -distance), slice(distance, None)):
            likeness[side] += squared
            pairs[side] += 1
    unlike = dim * likeness / pairs < FRESH
    norms = rows.norm(dim=1)
    # The norm of a normal draw has the relative standard deviation 1/sqrt(2 D); truncated and uniform draws have less.
    alike = (norms / norms[unlike].median() - 1).abs() < SIGMAS / (2 * dim) ** 0.5 if unlike.any() else unlike
    return _runs(unlike & alike, 2 * WINDOW)


def first_equal_row(rows: Tensor) -> Tensor:
    """Returns, for each row i, the index of the first row equal to it (i itself if no earlier row is equal)."""
    _, group = torch.unique(rows, dim=0, return_inverse=True)
    places = torch.arange(len(rows))
    return torch.full_like(places, len(rows)).scatter_reduce(0, group, places, "amin")[group]


def outlying_rows(rows: Tensor) -> Tensor:
    """Flags rows whose norm, or cosine to the more similar neighbour, is far from the median around them.

    Only the more similar neighbour counts, because both rows next to a marked row differ from one neighbour.
    """
    n, dim = rows.shape
    if n <= 2 * WINDOW or dim < FEWEST_DIMENSIONS:
        return torch.zeros(n, dtype=torch.bool)
    change = norm_over_median(rows) - 1
    cosine = nearer_cosine(rows)
    drop = local_median(cosine) - cosine
    # The cosine of two unrelated rows has the standard deviation 1/sqrt(D): four of them are still chance.
    least_drop = max(COSINE_DROP, 4 / dim**0.5)
    return (change.abs() > _limit(change, NORM_CHANGE)) | (drop > _limit(drop, least_drop))


def norm_over_median(rows: Tensor) -> Tensor:
    """Returns each row's norm as a multiple of the median around it. Needs N > 2 WINDOW and no dead rows."""
    norms = rows.norm(dim=1)
    return norms / local_median(norms)


def nearer_cosine(rows: Tensor) -> Tensor:
    """Returns each row's cosine to the more similar of its neighbours. The first and last row have only one."""
    cosine = neighbour_cosine(rows)
    return torch.maximum(F.pad(cosine, (1, 0), value=-1), F.pad(cosine, (0, 1), value=-1))


def _runs(flags: Tensor, shortest: int) -> Tensor:
    """Keeps the flags that belong to an unbroken run of at least ``shortest``."""
    starts = flags.unfold(0, shortest, 1).all(dim=1)
    return torch.stack([F.pad(starts, (k, shortest - 1 - k)) for k in range(shortest)]).any(dim=0)


def _limit(deviations: Tensor, floor: float) -> float:
    """Returns six standard deviations of the bulk, estimated from the median deviation, or ``floor`` if larger."""
    bulk = 1.4826 * (deviations - deviations.median()).abs().median()
    return max(floor, SIGMAS * bulk.item())
