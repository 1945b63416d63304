"""A number with Student's t noise: as the Gaussian, with tails that each member learns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble.likelihoods.continuous import Continuous
from ensemble.likelihoods.mixture_density import LOC, SCALE
from ensemble.likelihoods.parametric import positive

DF = "df"
MIN_DF = 2.1
"""The least degrees of freedom: at 2 and below there is no variance."""
_START = 5.0  # Degrees of freedom above the least, at raw 0.
_AT = np.linspace(-3.2, 3.2, 41)
_NODES = np.exp(math.pi / 2 * np.sinh(_AT))
_WEIGHTS = (_AT[1] - _AT[0]) * math.pi / 2 * np.cosh(_AT) * _NODES


class StudentT(Continuous):
    """Two outputs, location and scale; the degrees of freedom are a parameter of each member."""

    name = "student_t"
    num_outputs = 2
    can_be_censored = True

    def init(self, rng_key: jax.Array) -> dict[str, jax.Array]:
        """`raw_df` [], 0: some seven degrees of freedom."""
        return {"raw_df": jnp.zeros(())}

    def parameters(self, params: Mapping[str, Any], outputs: jax.Array) -> dict[str, jax.Array]:
        """Location, scale and degrees of freedom of the standardised target."""
        above = jax.nn.softplus(params["raw_df"] + math.log(math.expm1(_START)))
        df = jnp.broadcast_to(MIN_DF + above, outputs.shape[:-1])
        return {LOC: outputs[..., 0], SCALE: positive(outputs[..., 1]), DF: df}

    def standard_log_density(self, parts: Mapping[str, Any], z: Any, xp: Any, special: Any) -> Any:
        """The log density of Student's t distribution."""
        df = parts[DF]
        constant = special.gammaln((df + 1) / 2) - special.gammaln(df / 2)
        return constant - 0.5 * xp.log(df * math.pi) - (df + 1) / 2 * xp.log1p(z * z / df)

    def standard_cdf(self, parts: Mapping[str, Any], z: Any, xp: Any, special: Any) -> Any:
        """By the incomplete beta function, of an argument that is exact near z = 0."""
        df = parts[DF]
        half = special.betainc(0.5 + 0 * df, df / 2, z * z / (df + z * z)) / 2
        return 0.5 + xp.sign(z) * half

    def standard_log_survival(self, parts: Mapping[str, Any], z: Any, xp: Any, special: Any) -> Any:
        """By quadrature, which unlike the incomplete beta function has a derivative by df in JAX.

        Beyond z > 0 the density is integrated relative to its value at z, so that nothing vanishes:
        the rule for half-infinite intervals of Takahasi and Mori 1974, "Double exponential formulas
        for numerical integration". It errs by 1e-6 of the probability at most.
        """
        df, start = parts[DF][..., None], xp.abs(z)[..., None]
        length = (df + start**2) / ((df + 1) * xp.maximum(start, 1.0))  # On which densities fall.
        steps = length * _NODES
        fall = xp.log1p((start + steps) ** 2 / df) - xp.log1p(start**2 / df)
        mass = xp.sum(xp.exp(-(df + 1) / 2 * fall) * length * _WEIGHTS, axis=-1)
        beyond = self.standard_log_density(parts, z, xp, special) + xp.log(mass)
        # Below zero the rest is what lies beyond; at most a half, whatever the quadrature's error.
        rest = xp.log1p(-xp.exp(xp.minimum(beyond, -math.log(2))))
        return xp.where(z < 0, rest, beyond)

    def standard_variance(self, parts: Mapping[str, Any]) -> Any:
        """df / (df - 2)."""
        return parts[DF] / (parts[DF] - 2)
