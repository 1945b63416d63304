"""The mean error of predicted numbers."""

import numpy as np

from ensemble.scoring.combine import Mean
from ensemble.scoring.score import score
from ensemble.scoring.view import IntervalView


@score(
    of=IntervalView,
    title="bias",
    combine=Mean(tail="light", over_groups="signed"),
    unit="target",
    better="nearest",
)
def bias(view):
    """Predictions less targets; NaN where a target is only bounded."""
    return np.where(view.is_known, view.point - view.y, np.nan)
