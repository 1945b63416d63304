"""A Gaussian that says how much of its variance is noise, and how much a teacher's members' doubt.

One network then keeps what an ensemble knows beside its prediction: the aleatoric and the epistemic
part of the variance of a target.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble.likelihood import Arrays, weighted_mean
from ensemble.likelihoods.gaussian import Gaussian
from ensemble.likelihoods.mixture_density import SCALE, MixtureDensity

SHARE = "epistemic_share"
"""The epistemic share of the variance, [M, N], 0..1."""


class GaussianSplit(Gaussian):
    """Three outputs: those of a Gaussian, and the logit of the epistemic share of its variance."""

    name = "gaussian_split"
    num_outputs = 3
    needs_teacher = True  # Targets say nothing about the share.

    def parameters(self, params: Mapping[str, Any], outputs: jax.Array) -> dict[str, jax.Array]:
        """The parameters of a Gaussian, and the share."""
        return {**super().parameters(params, outputs), SHARE: jax.nn.sigmoid(outputs[..., 2])}

    def expected_log_prob(
        self, params: Mapping[str, Any], outputs: jax.Array, taught: Mapping[str, jax.Array]
    ) -> jax.Array:
        """The objective of a Gaussian [B], and the cross-entropy between the teacher's split and
        the share."""
        share = taught["epistemic"] / (taught["aleatoric"] + taught["epistemic"])
        logit = outputs[..., 2].astype(jnp.float32)
        split = share * jax.nn.log_sigmoid(logit) + (1 - share) * jax.nn.log_sigmoid(-logit)
        return super().expected_log_prob(params, outputs, taught) + split

    def check_predictions(self, arrays: Arrays, targets: np.ndarray | None = None) -> None:
        """Checks predictions that were read from a file.

        Raises:
            ValueError: as of a Gaussian, or there is no share.
        """
        super().check_predictions(arrays, targets)
        if SHARE not in arrays or not ((arrays[SHARE] >= 0) & (arrays[SHARE] <= 1)).all():
            raise ValueError(f"{SHARE} must be there, and from 0 to 1")

    def distribution(self, arrays: Arrays, weights: Any = None) -> MixtureDensity:
        """The distribution of a Gaussian, with the split that was learned."""
        return _Split(self, arrays, weights)

    def exported(
        self,
        predicted: Mapping[str, Any],
        temperature: float | None,
        threshold: float = 1,
        weights: Any = None,
    ) -> dict[str, jax.Array]:
        """The same as JAX arrays by name."""
        found = super().exported(predicted, temperature, threshold, weights)
        doubts = _doubts({name: found[f"member_{name}"] for name in (SHARE, SCALE)})
        doubt = weighted_mean(doubts, weights)
        return {
            **found,
            "aleatoric": found["aleatoric"] - doubt,
            "epistemic": found["epistemic"] + doubt,
        }


class _Split(MixtureDensity):
    """A mixture whose members' variances are in part epistemic."""

    def moments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean of the mixture, and the parts of its variance as they were learned, [N]."""
        mean, noise, disagreement = super().moments()
        doubt = self.averaged(_doubts(self.arrays))
        return mean, noise - doubt, disagreement + doubt


def _doubts(arrays: Mapping[str, Any]) -> Any:
    """The epistemic part of each member's own variance, [M, N], in the target's units, squared."""
    return arrays[SHARE] * arrays[SCALE] ** 2
