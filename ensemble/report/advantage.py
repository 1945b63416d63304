"""By how much predictions are better than a constant, on the same examples."""

import math
from typing import NamedTuple

import numpy as np

from ensemble.likelihood import Constant, ExampleTerms
from ensemble.metrics.analytic_intervals import Interval, mean_interval


class Advantage(NamedTuple):
    """Of a predictor over a constant: paired 95% intervals over the scored examples.

    Attributes:
        ensemble: of what the headline score is the mean of, positive where the ensemble is better.
        members: the same of each member.
        loss: of the ensemble's loss, positive where it is lower.
        member_losses: the same of each member.
    """

    ensemble: Interval
    members: list[Interval]
    loss: Interval
    member_losses: list[Interval]


def advantage(terms: ExampleTerms, constant: Constant) -> Advantage:
    """Compares with a constant, example by example.

    Args:
        terms: of the predictions.
        constant: on the same examples.
    """
    sign = 1 if constant.higher_is_better else -1

    def gain(ours: np.ndarray) -> Interval:
        return _interval(sign * (ours - constant.terms))

    def saving(ours: np.ndarray) -> Interval:
        return _interval(constant.losses - ours)

    members, losses = map(gain, terms.members), map(saving, terms.member_losses)
    return Advantage(gain(terms.ensemble), [*members], saving(terms.losses), [*losses])


def _interval(gains: np.ndarray) -> Interval:
    """Of a mean; anything is possible where there are fewer than two examples that have a score."""
    known = gains[~np.isnan(gains)]
    if np.isneginf(known).any():  # A target of probability 0: no other examples change that.
        return (-math.inf, -math.inf)
    return mean_interval(known) if len(known) > 1 else (-math.inf, math.inf)
