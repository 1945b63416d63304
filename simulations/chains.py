"""Chains whose law is known."""

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter


def autoregressive(
    rng: np.random.Generator, starts: NDArray, num_draws: int, correlation: float
) -> NDArray:
    """Chains [C, T] whose law is normal(0, 1) in the long run.

    Args:
        rng: of the draws.
        starts: [C], before the first draw.
        num_draws: T.
        correlation: of neighbouring draws.
    """
    noise = rng.normal(size=(len(starts), num_draws)) * np.sqrt(1 - correlation**2)
    return lfilter([1], [1, -correlation], noise, axis=1, zi=correlation * starts[:, None])[0]
