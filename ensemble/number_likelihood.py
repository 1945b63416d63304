"""The contract of likelihoods of numbers: what an evaluation asks of them beside `Likelihood`."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ensemble.likelihood import Arrays, Likelihood
from ensemble.scoring.view import NumberView


class NumberDistribution(Protocol):
    """What an ensemble says of N targets that are numbers, in the targets' units."""

    def log_densities(self, targets: np.ndarray) -> np.ndarray:
        """Log densities or probabilities [M, N] of the members at the targets, nats."""

    def pit(self, targets: np.ndarray) -> np.ndarray:
        """CDF [N] of the mixture at the targets."""

    def moments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean of the mixture, mean of the variances and variance of the means, [N]."""

    def member_means(self) -> np.ndarray:
        """Means [M, N] of the members."""

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """Quantiles [Q, N] of the mixture."""

    def crps(self, targets: np.ndarray) -> np.ndarray:
        """CRPS [N]."""

    def terms(self, targets: np.ndarray) -> dict[str, np.ndarray]:
        """What the scores are means of, [N] by the name of the score; of `rmse` its square."""


class NumberLikelihood(Likelihood, Protocol):
    """What likelihoods of numbers say to their evaluator."""

    is_of_counts: bool  # Whether the NLL is of probabilities of counts, and not of densities.

    @property
    def units(self) -> tuple[float, float]:
        """A typical target, and the size of differences between targets."""

    def view(
        self, arrays: Arrays, targets: Any, member_of: Any = None, weights: Any = None
    ) -> NumberView:
        """What is scored, as of `Likelihood.view`."""

    def distribution(self, arrays: Arrays) -> NumberDistribution:
        """What an ensemble says, from predictions [M, N, ...] of its members."""

    def scaled(self, arrays: Arrays, factor: float, weights: Any = None) -> dict[str, np.ndarray]:
        """Predictions of members whose mixture is as wide times a factor.

        Raises:
            ValueError: there is no such thing for these predictions.
        """

    def tolerance(self, wanted: float | None) -> float:
        """The largest distance of a median from its target that is no error."""

    def widest(self, threshold: float) -> float:
        """The width of 90% intervals that a threshold on `View.doubt` stands for."""
