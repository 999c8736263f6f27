"""Finds rows (N, D) at the end of a table that few training texts were long enough to read.

Such rows are rough, or their norms differ from the norms of the rows before them. The thresholds are deliberately wide;
some come from a real table, all-MiniLM-L6-v2 (512 x 384).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

WINDOW = 8
"""The number of rows on either side that a row is compared with: few enough to follow a drift along the table."""

FEWEST_DIMENSIONS = 32
"""The fewest dimensions for calling a row outlying or never trained: with fewer, chance alone makes rows look alike
(two random rows have cosines around 1/sqrt(32) = .18) and their norms differ."""

ROUGH = 1.5
"""Rows at the end of a table look rarely trained if they are more than this many times as rough as its smoothest part.
Rows with few gradients stay noisy: in small language models, rows that under 6% of the texts read were 2 to 3 times as
rough as that part, and rows that all texts read at most 1.1 times."""

FEWEST_ROUGH = 4
"""There must be more such rows than this, because the last row or two are often marked."""

STEP = 0.08
"""The smallest relative step of the norms that looks like the end of most training texts. In MiniLM the step is .14 at
row 128, where BERT's shorter texts ended; elsewhere the norms change by at most .07."""

STEP_WINDOW = 16
"""The number of rows on either side whose median norms are compared for a step."""

STEP_SIGMAS = 8
"""The smallest step, in standard deviations of all such changes in the table."""

STEP_ABRUPT = 0.7
"""The smallest share of a step that must happen within four rows on either side. A drift has only a quarter there."""

STEP_ALONE = 0.6
"""The largest ratio of the second largest change to the step. In MiniLM the ratio is .49."""

LARGEST_STEP = 2.0
"""The largest ratio of the norms after a step to the norms before the step. Lengthened tables have larger steps."""

EVALUATE = "Evaluate the model on texts of this length before you rely on it, or train on more of them."
LOOKS_RARE = "It looks as if few training texts were long enough to reach these rows, but other causes are possible."
TRAINED_RARELY = "Few training texts were long enough to reach these rows, so they are noisier than the others."

RARE = 0.1
"""A row is rarely trained if it is trained less than this many times as often as the row that is trained most."""


def rough_end(rows: Tensor) -> tuple[int, float]:
    """Returns the index from which rows (N, D) look rarely trained because they are rough, and their median roughness
    relative to the table's smoothest part. Returns (N, 1.0) if there are no such rows.

    The roughness of a row is the norm of its second difference. Trained rows follow smooth curves; the noise of a few
    gradients does not. A row must be rough both absolutely and relative to the norms around it, because both may drift.
    """
    n, dim = rows.shape
    if n < 4 * WINDOW or dim < FEWEST_DIMENSIONS:
        return n, 1.0
    rough = roughness(rows)
    times = torch.minimum(_over_least(rough), _over_least(rough / local_median(rows.norm(dim=1))))
    # The medians of 5 rows, so that a single marked row is not enough.
    medians = F.pad(times[None], (2, 2), mode="replicate")[0].unfold(0, 5, 1).median(dim=1).values
    calm = (medians <= ROUGH).nonzero()[:, 0]
    start = int(calm[-1]) + 1 if len(calm) else n
    return (start, times[start:].median().item()) if n - start > FEWEST_ROUGH else (n, 1.0)


def _over_least(values: Tensor) -> Tensor:
    """Divides values by the smallest of their local medians. Returns ones if this median is 0."""
    least = local_median(values).min()
    return values / least if least > 0 else torch.ones_like(values)


def roughness(rows: Tensor) -> Tensor:
    """Returns the norm of the second difference of rows (N, D) around each row, (N,), N >= 3. The first and the last
    row get the value of their neighbours."""
    return F.pad((rows[2:] - 2 * rows[1:-1] + rows[:-2]).norm(dim=1)[None], (1, 1), mode="replicate")[0]


def norm_step(rows: Tensor) -> tuple[int, float]:
    """Returns the index of the first row after the largest step of the norms of rows (N, D), and the relative change.
    Returns (N, 0.0) if no step stands out.

    Texts that were truncated at a length train the rows below it more than the rows above it.
    """
    n, dim = rows.shape
    if n < 6 * STEP_WINDOW or dim < FEWEST_DIMENSIONS:
        return n, 0.0
    norms = rows.norm(dim=1).log()
    change = _changes(norms, STEP_WINDOW)
    largest = int(change.abs().argmax())
    step, row = change[largest].abs().item(), largest + STEP_WINDOW
    near = _changes(norms, 4)[max(row - 8, 0) - 4 : row + 8 - 4].abs().max().item()
    others = change.abs()[(torch.arange(len(change)) - largest).abs() >= 2 * STEP_WINDOW]
    deviation = 1.4826 * change.abs().median().item()
    stands_out = step > max(math.log1p(STEP), STEP_SIGMAS * deviation, others.max().item() / STEP_ALONE)
    if not stands_out or near < STEP_ABRUPT * step or step > math.log(LARGEST_STEP):
        return n, 0.0
    # The medians find the step only roughly. It is where two constants fit the norms around it best.
    around = norms[largest : largest + 2 * STEP_WINDOW]
    errors = [
        sum((part - part.median()).abs().sum().item() for part in (around[:cut], around[cut:]))
        for cut in range(WINDOW, 2 * STEP_WINDOW - WINDOW)
    ]
    start = largest + WINDOW + min(range(len(errors)), key=errors.__getitem__)
    return start, math.expm1(change[largest].item())


def _changes(values: Tensor, window: int) -> Tensor:
    """Returns the median of the ``window`` values from each index on, minus the median of the ``window`` values before
    it. Entry i is for index i + window."""
    medians = values.unfold(0, window, 1).median(dim=1).values
    return medians[window:] - medians[:-window]


def local_median(values: Tensor) -> Tensor:
    """Returns the median of the 2 WINDOW + 1 values around each value, within the table: (N,), N > 2 WINDOW."""
    n = len(values)
    medians = values.unfold(0, 2 * WINDOW + 1, 1).median(dim=1).values
    return medians[(torch.arange(n) - WINDOW).clamp(0, n - 2 * WINDOW - 1)]
