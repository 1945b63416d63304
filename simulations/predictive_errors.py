"""Real samplers on a posterior whose predictive is known, which stop by the error of theirs.

The regressions and the chains are those of `stopping`, but for mclmc, which is tuned at once.
"""

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from ensemble.draws import diagnostics
from ensemble.draws.predictive_error import ERROR, error_of_chains, error_of_draws
from ensemble.methods.mcmc.chain_monitor import has_converged
from ensemble.methods.mcmc.kernels import Settings, make_sampler
from simulations.statement import Replicate, Statement
from simulations.stopping import NUM_DIMS, Chains, Problem, draw_problem

BELOW, NLL = "the predictive is off by less", "NLL of infinitely many draws"


def log_predictive(problem: Problem) -> NDArray:
    """Log density [N] of the test targets by the posterior itself."""
    spread = np.einsum("nd,de,ne->n", problem.inputs, problem.covariance, problem.inputs)
    variance = 1 + spread
    squares = (problem.targets - problem.inputs @ problem.mean) ** 2
    return -0.5 * (np.log(2 * np.pi * variance) + squares / variance)


def log_mixture(log_probs: NDArray) -> NDArray:
    """Log of the mean density [N] over draws [..., N]."""
    flat = log_probs.reshape(-1, log_probs.shape[-1])
    return logsumexp(flat, axis=0) - np.log(len(flat))


@functools.cache
def _mclmc(num_warmup: int, num_draws: int) -> Callable[..., jax.Array]:
    """Draws [C, T, D] of tuned chains, by keys, starts, and the posterior's mean and precision."""
    settings = Settings("mclmc", 0.1, 4, num_warmup=num_warmup)

    def chain(key: Any, start: jax.Array, mean: jax.Array, precision: jax.Array) -> jax.Array:
        def log_density(position: jax.Array) -> jax.Array:
            return -0.5 * (position - mean) @ precision @ (position - mean)

        sampler = make_sampler(settings, log_density)
        assert sampler.tune is not None

        def step(state: Any, t: jax.Array) -> tuple[Any, jax.Array]:
            state, _ = sampler.step(state, t)
            return state, state.state.position

        return jax.lax.scan(step, sampler.tune(sampler.init(key, start)), jnp.arange(num_draws))[1]

    return jax.jit(jax.vmap(chain, (0, 0, None, None)))


def _draw(rng: np.random.Generator, problem: Problem, chains: Chains) -> NDArray:
    if chains.method != "mclmc":
        return chains.draw(rng, problem)
    scale = np.sqrt(np.diag(problem.covariance))
    starts = problem.mean + 2 * scale * rng.normal(size=(chains.num_chains, NUM_DIMS))
    key = jax.random.split(jax.random.key(rng.integers(2**31)), chains.num_chains)
    precision = np.linalg.inv(problem.covariance)
    run = _mclmc(500, chains.most)
    return np.asarray(run(key, starts, problem.mean, precision), np.float64)


def stop(chains: Chains, every: int, error: float, num_examples: int = 10) -> Replicate:
    """Whether the predictive is as near to the posterior's as a run was to end by.

    Args:
        chains: how they are drawn.
        every: draws between two looks.
        error: that is asked for, nats.
        num_examples: whose predictions are tracked.
    """
    arviz = diagnostics.import_arviz()
    stop_at = types.SimpleNamespace(ess=0.0, rhat=0.0, predictive_error=error)

    def replicate(rng: np.random.Generator) -> Mapping[str, bool | None]:
        problem = draw_problem(rng, num_examples)
        log_probs = -problem.nll(_draw(rng, problem, chains))
        for end in range(every, chains.most + 1, every):
            seen = log_probs[:, :end]
            ess = min(float(arviz.ess(one, method="bulk")) for one in np.moveaxis(seen, -1, 0))
            found = error_of_draws(seen, ess)
            scalars = {"posterior/ess_bulk_min": ess}
            if found is not None and has_converged({**scalars, ERROR: found.bound}, stop_at):
                exact = log_predictive(problem)
                off = np.sqrt(np.mean((log_mixture(seen) - exact) ** 2))
                low, high = found.nll_interval
                return {BELOW: bool(off < error), NLL: bool(low <= -exact.mean() <= high)}
        return {BELOW: None, NLL: None}

    return replicate


def apart(num_chains: int, num_draws: int, share: float, num_examples: int = 10) -> Replicate:
    """Whether the predictive is off by less than is said, of chains that each stay in their place.

    Their places are drawn too, and all places together make the posterior.

    Args:
        num_chains: C.
        num_draws: of a chain, independent but for its place.
        share: of the posterior's variance that lies between the places.
        num_examples: whose predictions are tracked.
    """
    arviz = diagnostics.import_arviz()

    def replicate(rng: np.random.Generator) -> Mapping[str, bool | None]:
        problem = draw_problem(rng, num_examples)
        places = np.sqrt(share) * rng.normal(size=(num_chains, 1, NUM_DIMS))
        within = np.sqrt(1 - share) * rng.normal(size=(num_chains, num_draws, NUM_DIMS))
        root = np.linalg.cholesky(problem.covariance)
        log_probs = -problem.nll(problem.mean + (places + within) @ root.T)
        ess = min(float(arviz.ess(one, method="bulk")) for one in np.moveaxis(log_probs, -1, 0))
        found = error_of_draws(log_probs, ess)
        if found is None:
            return {BELOW: None, NLL: None}
        exact = log_predictive(problem)
        off = np.sqrt(np.mean((log_mixture(log_probs) - exact) ** 2))
        low, high = found.nll_interval
        return {BELOW: bool(off < found.bound), NLL: bool(low <= -exact.mean() <= high)}

    return replicate


def by_chains(chains: Chains, num_examples: int) -> Replicate:
    """Whether the interval of the NLL of infinitely many draws holds, by the means of chains alone.

    Args:
        chains: how they are drawn.
        num_examples: N of the test split.
    """

    def replicate(rng: np.random.Generator) -> Mapping[str, bool | None]:
        problem = draw_problem(rng, num_examples)
        log_probs = -problem.nll(_draw(rng, problem, chains))
        found = error_of_chains(np.stack([log_mixture(one) for one in log_probs]))
        if found is None:
            return {NLL: None}
        low, high = found.nll_interval
        return {NLL: bool(low <= -log_predictive(problem).mean() <= high)}

    return replicate


STATEMENTS = (
    Statement(
        name="posterior.stop_at_predictive_error",
        claim="When hmc, nuts or mclmc end by config.stop_at.predictive_error, the predictive is "
        "off by less, and the NLL of infinitely many draws is in its interval",
        over="chains",
        made_by=(
            "ensemble.draws.predictive_error.error_of_draws",
            "ensemble.draws.predictive_error._error",
            "ensemble.draws.predictive_error.predictive_section",
        ),
        settings={
            "hmc, C = 4, .05": {"chains": Chains(4, 400, "hmc"), "every": 50, "error": 0.05},
            "hmc, C = 4, .03, 60 looks": {
                "chains": Chains(4, 600, "hmc"), "every": 10, "error": 0.03,
            },
            "hmc, C = 4, one example, .02, 40 looks": {
                "chains": Chains(4, 800, "hmc"), "every": 20, "error": 0.02, "num_examples": 1,
            },
            "hmc, C = 4, slow, .04": {
                "chains": Chains(4, 2000, "hmc", 0.1, 2), "every": 100, "error": 0.04,
            },
            "hmc, C = 1, .05": {"chains": Chains(1, 2000, "hmc"), "every": 100, "error": 0.05},
            "hmc, C = 16, .03": {"chains": Chains(16, 300, "hmc"), "every": 25, "error": 0.03},
            "nuts, C = 4, .05": {"chains": Chains(4, 400), "every": 25, "error": 0.05},
            "nuts, C = 2, .05": {"chains": Chains(2, 800), "every": 25, "error": 0.05},
            "mclmc, C = 4, .05": {"chains": Chains(4, 2000, "mclmc"), "every": 100, "error": 0.05},
        },
        prepare=stop,
        at_least=True,
        num_replications=500,
    ),
    Statement(
        name="posterior.predictive_error",
        claim="The predictive is off by less than the error that is stated, and the NLL of "
        "infinitely many draws is in its interval, where chains stay in places of their own",
        over="chains",
        made_by=("ensemble.draws.predictive_error._error",),
        settings={
            "C = 4, T = 400, alike": {"num_chains": 4, "num_draws": 400, "share": 0.0},
            "C = 2, T = 400, alike": {"num_chains": 2, "num_draws": 400, "share": 0.0},
            "C = 4, T = 400, apart by .01": {"num_chains": 4, "num_draws": 400, "share": 0.01},
            "C = 4, T = 1000, apart by .03": {"num_chains": 4, "num_draws": 1000, "share": 0.03},
            "C = 2, T = 1000, apart by .03": {"num_chains": 2, "num_draws": 1000, "share": 0.03},
            "C = 8, T = 1000, apart by .03": {"num_chains": 8, "num_draws": 1000, "share": 0.03},
            "C = 4, T = 1000, one example, apart by .03": {
                "num_chains": 4, "num_draws": 1000, "share": 0.03, "num_examples": 1,
            },
        },
        prepare=apart,
        at_least=True,
    ),
    Statement(
        name="posterior.test_nll_by_chains",
        claim="More draws would move the NLL of this test split to [low, high]",
        over="chains",
        made_by=("ensemble.draws.predictive_error.error_of_chains",),
        settings={
            "hmc, C = 4, N = 100": {"chains": Chains(4, 200, "hmc"), "num_examples": 100},
            "hmc, C = 2, N = 100": {"chains": Chains(2, 200, "hmc"), "num_examples": 100},
            "hmc, C = 10, N = 100": {"chains": Chains(10, 100, "hmc"), "num_examples": 100},
            "hmc, C = 4, slow, N = 100": {
                "chains": Chains(4, 1000, "hmc", 0.1, 2), "num_examples": 100,
            },
            "nuts, C = 4, N = 1000": {"chains": Chains(4, 100), "num_examples": 1000},
            "nuts, C = 32, N = 100": {"chains": Chains(32, 50), "num_examples": 100},
        },
        prepare=by_chains,
        num_replications=1000,
    ),
)  # fmt: skip
