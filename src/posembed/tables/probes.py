"""Linear probes that predict positions from a table's rows (Wang and Chen 2020, arXiv:2010.04903).

The positions are split into five folds, shuffled with a fixed seed, so every row is tested by a probe that never saw
it. The probes use one thread: on matrices this small, several threads would wait longer than they work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from posembed.tables.layout import float64_rows

# scikit-learn takes a second to import, so it is imported only when a probe runs.

FOLDS: Mapping[str, Any] = {"n_splits": 5, "shuffle": True, "random_state": 0}
FEWEST_ROWS = 10  # two per fold, so that every fold has a pair to put in order
PAIRS = 4096  # per fold: enough to estimate the error rate to within about 1%


def _features(table: Tensor) -> np.ndarray:
    """Scales rows (N, D) to a root mean square of 1, so that a penalty means the same for every table."""
    rows = float64_rows(table, at_least=FEWEST_ROWS).numpy()
    return rows / max(np.sqrt(np.mean(rows**2)), np.finfo(np.float64).tiny)


def position_error(table: Tensor) -> float:
    """Returns the mean error, in positions, of a linear regression from held-out rows (N, D) to their positions.

    Uninformative rows give about N / 4. This is a ridge regression, whose penalty is chosen in each fold by
    leave-one-out validation. With about as many dimensions as rows, plain least squares would fit noise and be worse
    than a guess.
    """
    from sklearn.linear_model import RidgeCV
    from sklearn.model_selection import KFold, cross_val_predict
    from threadpoolctl import threadpool_limits

    rows = _features(table)
    positions = np.arange(len(rows))
    with threadpool_limits(1):
        read = cross_val_predict(RidgeCV(np.logspace(-6, 6, 13)), rows, positions, cv=KFold(**FOLDS))
    return float(np.abs(read - positions).mean())


def order_error(table: Tensor) -> float:
    """Returns the error rate of a logistic regression that predicts j > i from [p_i; p_j]. A guess gives 0.5.

    Both positions of a test pair are held out.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import KFold
    from threadpoolctl import threadpool_limits

    rows = _features(table)
    generator = np.random.default_rng(0)

    def pairs(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        i, j = generator.choice(positions, (2, PAIRS))
        i, j = i[i != j], j[i != j]
        return np.hstack([rows[i], rows[j]]), j > i

    errors = []
    for seen, held_out in KFold(**FOLDS).split(rows):
        with threadpool_limits(1):
            reader = LogisticRegression(max_iter=1000).fit(*pairs(seen))
            errors.append(1 - reader.score(*pairs(held_out)))
    return float(np.mean(errors))
