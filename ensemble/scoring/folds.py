"""Whether a factor that calibrates predictions helps, as its own calibration split tells."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ensemble.metrics.analytic_intervals import LEVEL, Interval
from ensemble.scoring.score import scores_of
from ensemble.scoring.view import View

_NUM_FOLDS = 5


def change_on_folds(view: View, groups: NDArray | None = None) -> Interval | None:
    """What a factor brings on other examples, as far as the calibration split can tell.

    Args:
        view: of the calibration split.
        groups: of its rows [N], of which each lies in one fold; None: of one row each.
    """
    if not view.tells_factor:
        return None
    units = np.arange(view.num_rows)
    if groups is not None:
        units = np.unique(groups, return_inverse=True)[1]
    order = np.random.default_rng(0).permutation(units.max() + 1)
    folds, nll = (np.argsort(order) % _NUM_FOLDS)[units], scores_of(view)["nll"]
    both: list[list[NDArray]] = [[], []]
    for k in range(_NUM_FOLDS):
        try:
            factor = view.rows(folds != k).fit_factor()
        except ValueError:
            return None
        inside = view.rows(folds == k)
        for terms, each in zip(both, (inside, inside.with_factor(factor)), strict=True):
            terms.append(nll.terms(each))
    before, after = map(np.concatenate, both)
    order = np.argsort(folds, kind="stable")
    found: Interval | None = nll.combine.change(
        before, after, LEVEL, None if groups is None else np.asarray(groups)[order]
    )
    return found
