"""What an ensemble says of classes: the mean of its members' probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from ensemble import metrics
from ensemble.metrics.checks import Floats
from ensemble.scoring.view import ClassView

LOG_PROBS, ENTROPIES = "log_probs", "entropies"
"""Entries of predictions: [M, N, C], of a member of several estimators the log of the mean over
these; and, of such members alone, [M, N] nats, the mean over these, for it does not follow from the
other."""


@dataclass(frozen=True, eq=False, kw_only=True)
class MeanOfSoftmax(ClassView):
    """What members say that predict log-probabilities; estimators are reduced to members."""

    @property
    def members_log_probs(self) -> Floats:
        """[M, N, C]."""
        found: Floats = self.shared("log_probs", _float64)[self.index]
        return found

    @cached_property
    def log_probs(self) -> Floats:  # type: ignore[override]
        each, weights = self.members_log_probs, self.estimator_weights
        if len(each) == 1:
            return each[0]
        if weights is not None or self.whole is None:
            return metrics.ensemble_log_probs(each, weights)
        # Of many subsets of members, without a logarithm for each.
        top, scaled = self.shared("scaled", _scaled)
        total = scaled[self.index].sum(axis=0)
        with np.errstate(divide="ignore"):
            mean = np.log(total) + top - np.log(len(each))
        lost = total == 0  # Impossible, or far below what another member says.
        if lost.any():
            mean[lost] = logsumexp(each[:, lost], axis=0) - np.log(len(each))
        return mean

    def with_factor(self, factor: float) -> MeanOfSoftmax:
        """The mixture at a temperature, which has no members."""
        # At 1 nothing is better than no temperature, and normalising again would only round.
        plain = self.log_probs
        tempered = plain if factor == 1 else metrics.apply_temperature(plain, factor)
        return MeanOfSoftmax(
            arrays={LOG_PROBS: tempered[None]}, targets=self.targets, asked=self.asked
        )

    @property
    def votes(self) -> NDArray:
        found: NDArray = self.shared("votes", lambda one: one.members_log_probs.argmax(axis=-1))
        return found[self.index]

    @cached_property
    def entropies(self) -> dict[str, Floats]:  # type: ignore[override]
        each = self.shared("entropies", _entropies)[self.index]
        total = metrics.entropies(self.log_probs)
        # Sorted, so that the order of the members does not change a bit.
        aleatoric = self.mean(each if self.estimator_weights is not None else np.sort(each, axis=0))
        # Entropy is concave, so only rounding can take the difference below zero.
        epistemic = np.maximum(total - aleatoric, 0.0)
        return {"total": total, "aleatoric": aleatoric, "epistemic": epistemic}


def _float64(view: MeanOfSoftmax) -> Floats:
    return np.asarray(view.arrays[LOG_PROBS], np.float64)


def _scaled(view: MeanOfSoftmax) -> tuple[Floats, Floats]:
    """The largest of the members' log-probabilities, and their ratios to it, in 0..1."""
    each = view.members_log_probs
    top = each.max(axis=0)
    top = np.where(np.isneginf(top), 0.0, top)
    return top, np.exp(each - top)


def _entropies(view: MeanOfSoftmax) -> Floats:
    """Entropies [M, N] of the members, nats."""
    kept = view.arrays.get(ENTROPIES)
    if kept is not None:
        return np.asarray(kept, np.float64)
    return np.stack([metrics.entropies(one) for one in view.members_log_probs])
