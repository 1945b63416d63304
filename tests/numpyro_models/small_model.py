"""A NumPyro model in a file, which takes no arguments, for runs of the programs."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def schools():
    """Eight groups whose effects vary about a common mean."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", 8):
        effect = numpyro.sample("effect", dist.Normal(0, 1))
        theta = numpyro.deterministic("theta", mu + tau * effect)
        y = jnp.array([28.0, 8, -3, 7, -1, 1, 18, 12])
        sigma = jnp.array([15.0, 10, 16, 11, 9, 11, 10, 18])
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)
