"""Linear probes that predict positions from a table's rows (Wang and Chen 2020, arXiv:2010.04903).

The positions are split into five folds, shuffled with a fixed seed, so every row is tested by a probe that never saw
it. The probes use one thread: on matrices this small, several threads would wait longer than they work.

Both probes compute what scikit-learn's ``RidgeCV`` and ``LogisticRegression`` compute, with the same penalties and
tolerances, but faster, since all inputs are rows of one table. Tests compare them with scikit-learn.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from posembed.tables.rows import float64_rows

FOLDS = 5
FEWEST_ROWS = 10  # two per fold, so that every fold has a pair to put in order
PAIRS = 4096  # per fold: enough to estimate the error rate to within about 1%
PENALTIES = np.logspace(-6, 6, 13)
MOST_STEPS, GRADIENT, LOSS = 1000, 1e-4, 64 * np.finfo(np.float64).eps  # when the logistic regression stops


def _features(table: Tensor) -> np.ndarray:
    """Scales rows (N, D) to a root mean square of 1, so that a penalty means the same for every table."""
    rows = float64_rows(table, at_least=FEWEST_ROWS).numpy()
    return rows / max(np.sqrt(np.mean(rows**2)), np.finfo(np.float64).tiny)


def _folds(count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the positions to fit and the positions to test, each ascending."""
    shuffled = np.random.RandomState(0).permutation(count)
    for held_out in np.array_split(shuffled, FOLDS):
        yield np.setdiff1d(shuffled, held_out), np.sort(held_out)


def position_error(table: Tensor) -> float:
    """Returns the mean error, in positions, of a linear regression from held-out rows (N, D) to their positions.

    Uninformative rows give about N / 4. This is a ridge regression, whose penalty is chosen in each fold by
    leave-one-out validation. With about as many dimensions as rows, plain least squares would fit noise and be worse
    than a guess.

    Raises:
        ArgumentError: fewer than 10 rows, or a table that is not finite.

    Examples:
        >>> from posembed.tables import sinusoidal_table
        >>> from posembed.tables.probes import position_error
        >>> position_error(sinusoidal_table(64, 32)) < 0.1
        True
    """
    from threadpoolctl import threadpool_limits

    rows = _features(table)
    errors = np.empty(len(rows))
    with threadpool_limits(1):
        for seen, held_out in _folds(len(rows)):
            errors[held_out] = np.abs(_ridge(rows[seen], seen, rows[held_out]) - held_out)
    return float(errors.mean())


def _ridge(rows: np.ndarray, positions: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Predicts the positions of other rows, with the penalty whose leave-one-out error on ``rows`` is the smallest."""
    centre, middle = rows.mean(axis=0), positions.mean()
    left, values, right = np.linalg.svd(rows - centre, full_matrices=False)
    along = left.T @ (positions - middle)

    def left_out(penalty: float) -> float:
        kept = values**2 / (values**2 + penalty)
        residuals = positions - middle - left @ (kept * along)
        leverage = left**2 @ kept + 1 / len(rows)
        return float(np.mean((residuals / (1 - leverage)) ** 2))

    penalty = min(PENALTIES, key=left_out)
    weights = right.T @ (values / (values**2 + penalty) * along)
    return middle + (others - centre) @ weights


def order_error(table: Tensor) -> float:
    """Returns the error rate of a logistic regression that predicts j > i from the rows [p_i; p_j]. A guess gives 0.5.

    Both positions of a test pair are held out.

    Raises:
        ArgumentError: fewer than 10 rows, or a table that is not finite.

    Examples:
        >>> from posembed.tables import sinusoidal_table
        >>> from posembed.tables.probes import order_error
        >>> order_error(sinusoidal_table(64, 32)) < 0.01
        True
    """
    from threadpoolctl import threadpool_limits

    rows = _features(table)
    generator = np.random.default_rng(0)

    def pairs(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        i, j = generator.choice(positions, (2, PAIRS))
        return i[i != j], j[i != j]

    errors = []
    with threadpool_limits(1):
        for seen, held_out in _folds(len(rows)):
            first, second, shift = _order(rows, *pairs(seen))
            i, j = pairs(held_out)
            errors.append(np.mean(((rows @ first)[i] + (rows @ second)[j] + shift > 0) != (j > i)))
    return float(np.mean(errors))


def _order(rows: np.ndarray, i: np.ndarray, j: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Fits a logistic regression to whether j > i. Returns its weights for row i and for row j, and its intercept.

    The score of a pair is a sum of two products, one with each row. Each row is therefore multiplied once, and not once
    for each of its pairs.
    """
    from scipy.optimize import minimize  # takes a third of a second to import
    from scipy.special import expit

    count, dim = rows.shape
    sign = np.where(j > i, 1.0, -1.0)

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        first, second = weights[:dim], weights[dim : 2 * dim]
        margins = sign * ((rows @ first)[i] + (rows @ second)[j] + weights[-1])
        slopes = -sign * expit(-margins)
        gradients = [rows.T @ np.bincount(at, slopes, count) for at in (i, j)]
        penalised = np.append(weights[:-1], 0)
        total = np.logaddexp(0, -margins).sum() + penalised @ penalised / 2
        return total / len(i), (np.concatenate([*gradients, [slopes.sum()]]) + penalised) / len(i)

    stop = {"maxiter": MOST_STEPS, "gtol": GRADIENT, "ftol": LOSS}
    found = minimize(loss, np.zeros(2 * dim + 1), jac=True, method="L-BFGS-B", options=stop).x
    return found[:dim], found[dim : 2 * dim], float(found[-1])
