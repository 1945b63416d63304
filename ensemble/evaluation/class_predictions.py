"""Predictions of classes, as evaluations read them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ensemble.likelihood import Arrays
from ensemble.likelihoods.classes import ENTROPIES, LOG_PROBS
from ensemble.storage.predictions import MemberPredictions, StoredPredictions


class ClassPredictions(NamedTuple):
    """What the live members say of N inputs.

    Attributes:
        log_probs: [M, N, C] float32; of a chain, the log of the mean over its draws.
        entropies: [M, N] float32, nats: of a chain, the mean over its draws. None where members
            are single networks, whose entropies follow from `log_probs`.
    """

    log_probs: np.ndarray
    entropies: np.ndarray | None = None

    @classmethod
    def of(cls, arrays: Arrays) -> ClassPredictions:
        """Those of named arrays."""
        return cls(arrays[LOG_PROBS], arrays.get(ENTROPIES))

    @property
    def arrays(self) -> MemberPredictions:
        """The same by name."""
        entropies = {} if self.entropies is None else {ENTROPIES: self.entropies}
        return MemberPredictions({LOG_PROBS: self.log_probs, **entropies})


class LabelledPredictions(NamedTuple):
    """What the live members say of one split with labels.

    Attributes:
        log_probs: as of `ClassPredictions`.
        targets: int [N], the labels.
        members: int [M], their numbers.
        entropies: as of `ClassPredictions`.
    """

    log_probs: np.ndarray
    targets: np.ndarray
    members: np.ndarray
    entropies: np.ndarray | None = None

    @classmethod
    def of(cls, stored: StoredPredictions) -> LabelledPredictions:
        """Those of named arrays."""
        found = ClassPredictions.of(stored.arrays)
        return cls(found.log_probs, stored.targets, stored.members, found.entropies)
