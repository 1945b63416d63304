"""By how much predictions are better than a constant, on the same examples."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ensemble.likelihood import Likelihood
from ensemble.metrics.analytic_intervals import Interval, mean_interval
from ensemble.metrics.checks import Floats
from ensemble.scoring.score import scores_of
from ensemble.scoring.sections import member_terms, score_split, terms_of
from ensemble.scoring.view import View


class Beaten(NamedTuple):
    """A constant, which any ensemble should beat, and its scores on some examples.

    Attributes:
        what: it says, such as "always answering 'cat'".
        score: the name of its headline score.
        value: of this score.
        higher_is_better: of this score.
        loss: the mean of `losses`.
        terms: [N], what the headline score is made of; NaN where a target has no such score.
        losses: [N].
    """

    what: str
    score: str
    value: float
    higher_is_better: bool
    loss: float
    terms: Floats
    losses: Floats


def beaten(likelihood: Likelihood, train_targets: Any, targets: Any) -> Beaten:
    """Scores the constant of a likelihood.

    Args:
        likelihood: of the run.
        train_targets: [N] that it is made of.
        targets: [N] that it is scored on.
    """
    constant = likelihood.constant(train_targets)
    plain, learned = constant.views(targets)
    one = plain.parts[0] if plain.parts else plain
    losses = terms_of(learned, likelihood.loss)
    return Beaten(
        constant.what,
        constant.score,
        score_split(plain, names=[constant.score])["scores"][constant.score]["value"],
        scores_of(one)[constant.score].better == "higher",
        float(losses.mean()),
        terms_of(plain, constant.score),
        losses,
    )


class Advantage(NamedTuple):
    """The advantage of a predictor over a constant: paired 95% intervals over the scored examples.

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


def advantage(view: View, constant: Beaten, loss: str) -> Advantage:
    """Compares with a constant, example by example.

    Args:
        view: of the predictions.
        constant: on the same examples.
        loss: the name of the loss.
    """
    sign = 1 if constant.higher_is_better else -1

    def gain(ours: Floats) -> Interval:
        return _interval(sign * (ours - constant.terms))

    def saving(ours: Floats) -> Interval:
        return _interval(constant.losses - ours)

    members, losses = (member_terms(view, name) for name in (constant.score, loss))
    return Advantage(
        gain(terms_of(view, constant.score)),
        [*map(gain, members)],
        saving(terms_of(view, loss)),
        [*map(saving, losses)],
    )


def _interval(gains: Floats) -> Interval:
    """The interval of a mean; anything is possible where there are fewer than two examples that
    have a score."""
    known = gains[~np.isnan(gains)]
    if np.isneginf(known).any():  # A target of probability 0: no other examples change that.
        return (-math.inf, -math.inf)
    return mean_interval(known) if len(known) > 1 else (-math.inf, math.inf)
