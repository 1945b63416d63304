"""Real samplers on a posterior whose predictive is known, which stop by the error of theirs.

The regressions and the chains are those of `stopping`.
"""

import types

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from ensemble.draws import diagnostics
from ensemble.draws.predictive_error import ERROR, PredictiveError, error_of_chains, error_of_draws
from ensemble.methods.mcmc.chain_monitor import has_converged
from simulations.settings import named
from simulations.statement import Outcome, Statement, holds, replication
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


def _ess(log_probs: NDArray) -> float:
    """The least bulk ESS of predictions [C, T, N]."""
    arviz = diagnostics.import_arviz()
    return min(float(arviz.ess(one, method="bulk")) for one in np.moveaxis(log_probs, -1, 0))


def _outcome(problem: Problem, log_probs: NDArray, found: PredictiveError, error: float) -> Outcome:
    exact = log_predictive(problem)
    off = np.sqrt(np.mean((log_mixture(log_probs) - exact) ** 2))
    return {BELOW: bool(off < error), NLL: holds(found.nll_interval, -exact.mean())}


@replication
def stop(
    rng: np.random.Generator, chains: Chains, every: int, error: float, num_examples: int = 10
) -> Outcome:
    """Whether the predictive is as near to the posterior's as a run was to end by.

    Args:
        rng: of the draws.
        chains: how they are drawn.
        every: draws between two looks.
        error: that is asked for, nats.
        num_examples: whose predictions are tracked.
    """
    stop_at = types.SimpleNamespace(ess=0.0, rhat=0.0, predictive_error=error)
    problem = draw_problem(rng, num_examples)
    log_probs = -problem.nll(chains.draw(rng, problem))
    for end in range(every, chains.most + 1, every):
        seen = log_probs[:, :end]
        ess = _ess(seen)
        found = error_of_draws(seen, ess)
        scalars = {"posterior/ess_bulk_min": ess}
        if found is not None and has_converged({**scalars, ERROR: found.bound}, stop_at):
            return _outcome(problem, seen, found, error)
    return {BELOW: None, NLL: None}


@replication
def apart(
    rng: np.random.Generator, num_chains: int, num_draws: int, share: float, num_examples: int = 10
) -> Outcome:
    """Whether the predictive is off by less than is said, of chains that each stay in their place.

    Their places are drawn too, and all places together make the posterior.

    Args:
        rng: of the draws.
        num_chains: C.
        num_draws: of a chain, independent but for its place.
        share: of the posterior's variance that lies between the places.
        num_examples: whose predictions are tracked.
    """
    problem = draw_problem(rng, num_examples)
    places = np.sqrt(share) * rng.normal(size=(num_chains, 1, NUM_DIMS))
    within = np.sqrt(1 - share) * rng.normal(size=(num_chains, num_draws, NUM_DIMS))
    root = np.linalg.cholesky(problem.covariance)
    log_probs = -problem.nll(problem.mean + (places + within) @ root.T)
    found = error_of_draws(log_probs, _ess(log_probs))
    if found is None:
        return {BELOW: None, NLL: None}
    return _outcome(problem, log_probs, found, found.bound)


@replication
def by_chains(rng: np.random.Generator, chains: Chains, num_examples: int) -> Outcome:
    """Whether the interval of the NLL of infinitely many draws holds, by the means of chains alone.

    Args:
        rng: of the draws.
        chains: how they are drawn.
        num_examples: N of the test split.
    """
    problem = draw_problem(rng, num_examples)
    log_probs = -problem.nll(chains.draw(rng, problem))
    found = error_of_chains(np.stack([log_mixture(one) for one in log_probs]))
    return {NLL: holds(found and found.nll_interval, -log_predictive(problem).mean())}


_stop = named("chains every error num_examples")
_apart = named("num_chains num_draws share num_examples")
_chains = named("chains num_examples")
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
            "hmc, C = 4, .05": _stop(Chains(4, 400, "hmc"), 50, 0.05),
            "hmc, C = 4, .03, 60 looks": _stop(Chains(4, 600, "hmc"), 10, 0.03),
            "hmc, C = 4, one example, .02, 40 looks": _stop(Chains(4, 800, "hmc"), 20, 0.02, 1),
            "hmc, C = 4, slow, .04": _stop(Chains(4, 2000, "hmc", 0.1, 2), 100, 0.04),
            "hmc, C = 1, .05": _stop(Chains(1, 2000, "hmc"), 100, 0.05),
            "hmc, C = 16, .03": _stop(Chains(16, 300, "hmc"), 25, 0.03),
            "nuts, C = 4, .05": _stop(Chains(4, 400), 25, 0.05),
            "nuts, C = 2, .05": _stop(Chains(2, 800), 25, 0.05),
            "mclmc, C = 4, .05": _stop(Chains(4, 2000, "mclmc", 0.1), 100, 0.05),
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
            "C = 4, T = 400, alike": _apart(4, 400, 0.0),
            "C = 2, T = 400, alike": _apart(2, 400, 0.0),
            "C = 4, T = 400, apart by .01": _apart(4, 400, 0.01),
            "C = 4, T = 1000, apart by .03": _apart(4, 1000, 0.03),
            "C = 2, T = 1000, apart by .03": _apart(2, 1000, 0.03),
            "C = 8, T = 1000, apart by .03": _apart(8, 1000, 0.03),
            "C = 4, T = 1000, one example, apart by .03": _apart(4, 1000, 0.03, 1),
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
            "hmc, C = 4, N = 100": _chains(Chains(4, 200, "hmc"), 100),
            "hmc, C = 2, N = 100": _chains(Chains(2, 200, "hmc"), 100),
            "hmc, C = 10, N = 100": _chains(Chains(10, 100, "hmc"), 100),
            "hmc, C = 4, slow, N = 100": _chains(Chains(4, 1000, "hmc", 0.1, 2), 100),
            "nuts, C = 4, N = 1000": _chains(Chains(4, 100), 1000),
            "nuts, C = 32, N = 100": _chains(Chains(32, 50), 100),
        },
        prepare=by_chains,
        num_replications=1000,
    ),
)
