"""By how much predictions are better than a constant, on the same examples."""

from typing import NamedTuple

import numpy as np

from ensemble.likelihood import Arrays, Constant
from ensemble.metrics.analytic_intervals import Interval
from ensemble.metrics.groups import group_intervals
from ensemble.task import Scored


class Advantage(NamedTuple):
    """Of a predictor over a constant: paired 95% intervals over the scored examples.

    Attributes:
        ensemble: of the constant's headline score, positive where the ensemble is better.
        members: the same of each member.
        loss: of the ensemble's loss, positive where it is lower.
    """

    ensemble: Interval
    members: list[Interval]
    loss: Interval


def advantage(scored: Scored, split: str, arrays: Arrays, constant: Constant) -> Advantage:
    """Compares with a constant, group by group of the examples.

    Args:
        scored: what predictions are scored by.
        split: that they are of.
        arrays: predictions of the live members, [M, N, ...] by name.
        constant: on the same split.
    """
    likelihood = scored.likelihood
    train, targets = scored.dataset.targets("train"), scored.dataset.targets(split)
    is_root = constant.score == "rmse"  # Squares have means, and roots do not.

    def gains(chosen: np.ndarray) -> dict[str, float]:
        some = {name: one[:, chosen] for name, one in arrays.items()}
        summary = likelihood.summarise(some, targets[chosen])
        beside = likelihood.constant(train, targets[chosen])

        def gain(value: float) -> float:
            ours, other = (value**2, beside.value**2) if is_root else (value, beside.value)
            return ours - other if constant.higher_is_better else other - ours

        members = summary["members"][constant.score]
        return {
            "ensemble": gain(summary["ensemble"][constant.score]),
            **{f"member {i}": gain(value) for i, value in enumerate(members)},
            "loss": beside.loss - summary["ensemble"][likelihood.loss],
        }

    found = group_intervals(gains, len(targets))
    loss, ensemble = found.pop("loss"), found.pop("ensemble")
    return Advantage(ensemble, list(found.values()), loss)
