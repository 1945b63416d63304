"""Real samplers on a posterior that is known, which stop by what they say of test labels.

The posterior is that of a linear regression, whose targets, and so which test labels are tracked,
are drawn anew each time. The chains are those of `make_sampler`.
"""

import functools
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from ensemble.draws import diagnostics
from ensemble.methods.mcmc.chain_monitor import has_converged
from ensemble.methods.mcmc.kernels import Settings, make_sampler
from ensemble.metrics.analytic_intervals import mean_interval
from simulations.posteriors import judged
from simulations.settings import named
from simulations.statement import VERDICT, Outcome, Statement, holds, replication

NUM_DIMS, NUM_TRAINED, NUM_TRACKED = 2, 20, 4
NUM_AVERAGED = 300
"""Draws of which predictions are averaged, at most."""
NUM_LEFT_OUT, NUM_TUNED = 30, 500
_LOG_TAU = float(np.log(2 * np.pi))


class Problem(NamedTuple):
    """A regression y = x w + e, with standard normal w, x and e.

    Attributes:
        weights: that made the targets [D].
        mean: of the posterior [D].
        covariance: of the posterior [D, D].
        inputs: of the test split [N, D].
        targets: of the test split [N].
    """

    weights: NDArray
    mean: NDArray
    covariance: NDArray
    inputs: NDArray
    targets: NDArray

    def nll(self, weights: NDArray) -> NDArray:
        """The NLL of test targets, by weights [..., D]: [..., N]."""
        return 0.5 * (_LOG_TAU + (self.targets - weights @ self.inputs.T) ** 2)

    def truths(self) -> dict[str, float]:
        """What intervals are about, over the posterior or over new examples."""
        inputs = np.random.default_rng(0).normal(size=(4000, NUM_DIMS))
        spread = np.einsum("nd,de,ne->n", self.inputs, self.covariance, self.inputs)
        variance = 1 + np.einsum("nd,de,ne->n", inputs, self.covariance, inputs)
        squares = 1 + ((self.mean - self.weights) @ inputs.T) ** 2
        return {
            "parameter": float(self.mean[0]),
            "NLL of single draws": float(np.mean(self.nll(self.mean) + 0.5 * spread)),
            "NLL on new examples": float(
                np.mean(0.5 * (_LOG_TAU + np.log(variance) + squares / variance))
            ),
        }


def draw_problem(rng: np.random.Generator, num_examples: int) -> Problem:
    """Draws weights, data of so many test examples, and the posterior that is exact for them."""
    weights = rng.normal(size=NUM_DIMS)
    train, test = (rng.normal(size=(n, NUM_DIMS)) for n in (NUM_TRAINED, num_examples))
    covariance = np.linalg.inv(np.eye(NUM_DIMS) + train.T @ train)
    mean = covariance @ train.T @ (train @ weights + rng.normal(size=NUM_TRAINED))
    return Problem(weights, mean, covariance, test, test @ weights + rng.normal(size=num_examples))


@functools.cache
def _sampler(method: str, step_size: float, steps: int, num_draws: int) -> Callable[..., jax.Array]:
    """Draws [C, T, D] of chains by keys, starts, and the posterior's mean and precision."""
    is_tuned = method == "mclmc"
    settings = Settings(method, step_size, steps, num_warmup=NUM_TUNED * is_tuned)
    num_left_out = 0 if is_tuned else NUM_LEFT_OUT

    def chain(key: Any, start: jax.Array, mean: jax.Array, precision: jax.Array) -> jax.Array:
        def log_density(position: jax.Array) -> jax.Array:
            return -0.5 * (position - mean) @ precision @ (position - mean)

        sampler = make_sampler(settings, log_density)

        def step(state: Any, t: jax.Array) -> tuple[Any, jax.Array]:
            state, _ = sampler.step(state, t)
            return state, state.state.position

        first = sampler.init(key, start)
        if is_tuned and sampler.tune is not None:
            first = sampler.tune(first)
        return jax.lax.scan(step, first, jnp.arange(num_left_out + num_draws))[1][num_left_out:]

    return jax.jit(jax.vmap(chain, (0, 0, None, None)))


class Chains(NamedTuple):
    """How chains are drawn: C, of at most T draws, by a method with a step size and a length.

    Those of mclmc are tuned at once, whatever the step size.
    """

    num_chains: int
    most: int
    method: str = "nuts"
    step_size: float = 0.15
    num_leapfrog_steps: int = 4

    def draw(self, rng: np.random.Generator, problem: Problem) -> NDArray:
        """Draws [C, T, D], from starts that are spread wider than the posterior is."""
        scale = np.sqrt(np.diag(problem.covariance))
        starts = problem.mean + 2 * scale * rng.normal(size=(self.num_chains, NUM_DIMS))
        key = jax.random.split(jax.random.key(rng.integers(2**31)), self.num_chains)
        run = _sampler(self.method, self.step_size, self.num_leapfrog_steps, self.most)
        precision = np.linalg.inv(problem.covariance)
        return np.asarray(run(key, starts, problem.mean, precision), np.float64)


def _tracked(problem: Problem, draws: NDArray) -> list[NDArray]:
    """The scalars [C, T] that a run without a validation split tracks."""
    moved = draws - problem.mean
    inverse = np.linalg.inv(problem.covariance)
    log_density = -0.5 * np.einsum("ctd,de,cte->ct", moved, inverse, moved)
    return [log_density, *np.moveaxis(problem.nll(draws)[..., :NUM_TRACKED], -1, 0)]


def _end(scalars: list[NDArray], every: int, stop_at: Any) -> int:
    """The draw at which a run ends that is looked at now and then, or its last."""
    arviz, most = diagnostics.import_arviz(), scalars[0].shape[1]
    for end in range(every, most, every):
        ess = np.inf
        for one in scalars:
            ess = min(ess, float(arviz.ess(one[:, :end], method="bulk")))
            if not ess > max(stop_at.ess, diagnostics.MIN_ESS):
                break
        else:
            rhat = max(diagnostics._rhat(one[:, :end]) for one in scalars) if stop_at.rhat else 1.0
            found = {"posterior/ess_bulk_min": ess, "posterior/rhat_max": rhat}
            if has_converged(found, stop_at):
                return end
    return most


@replication
def stop(
    rng: np.random.Generator,
    num_examples: int,
    chains: Chains,
    every: int,
    ess: float = 0.0,
    rhat: float = 0.0,
) -> Outcome:
    """Whether intervals hold when a run ends by what it says of its test labels.

    Args:
        rng: of the draws.
        num_examples: N of the test split.
        chains: how they are drawn.
        every: draws between two looks.
        ess: that is asked for.
        rhat: that is asked for.
    """
    stop_at = types.SimpleNamespace(ess=ess, rhat=rhat, predictive_error=0.0)
    problem = draw_problem(rng, num_examples)
    draws = chains.draw(rng, problem)
    draws = draws[:, : _end(_tracked(problem, draws), every, stop_at)]
    nll = problem.nll(draws)
    flat = nll.reshape(-1, num_examples)
    flat = flat[:: -(-len(flat) // NUM_AVERAGED)]
    surprisals = np.log(len(flat)) - logsumexp(-flat, axis=0)
    found = {
        "parameter": diagnostics.mean_interval(draws[..., 0]),
        "NLL of single draws": diagnostics.mean_interval(nll.mean(axis=-1)),
        "NLL on new examples": mean_interval(surprisals),
    }
    truths = problem.truths()
    return {name: holds(one, truths[name]) for name, one in found.items()}


@replication
def verdict(rng: np.random.Generator, chains: Chains, missed: int = 0) -> Outcome:
    """Whether "agree" and "do not agree" are wrong of real chains.

    Args:
        rng: of the draws.
        chains: how they are drawn; those of one posterior agree.
        missed: how many of them sample a posterior that lies elsewhere.
    """
    problem = draw_problem(rng, NUM_TRACKED)
    draws = chains.draw(rng, problem)
    draws[:missed] += 2 * np.sqrt(np.diag(problem.covariance))
    return judged(_tracked(problem, draws), bool(missed), not missed)


_setting = named("num_examples chains every ess rhat")
STATEMENTS = (
    Statement(
        name="posterior.stop_at_on_test_labels",
        claim="A parameter's mean, single draws' NLL, and the NLL on new examples, when hmc or "
        "nuts end by config.stop_at on scores of the test split",
        over="chains, or test examples",
        made_by=("ensemble.methods.mcmc.chain_monitor.has_converged",),
        settings={
            "hmc, C = 4, N = 50, R-hat 1.01, ESS 400": _setting(
                50, Chains(4, 600, "hmc"), 100, 400.0, 1.01
            ),
            "nuts, C = 4, N = 50, ESS 200": _setting(50, Chains(4, 200), 25, 200.0),
            "nuts, C = 4, N = 20, R-hat 1.01": _setting(20, Chains(4, 300), 50, rhat=1.01),
            "nuts, C = 2, N = 300, R-hat 1.05": _setting(300, Chains(2, 400), 50, rhat=1.05),
            "hmc, C = 1, N = 50, ESS 150": _setting(50, Chains(1, 1500, "hmc"), 100, 150.0),
            "hmc, C = 8, slow, N = 300, ESS 200": _setting(
                300, Chains(8, 400, "hmc", 0.1, 2), 50, 200.0
            ),
        },
        prepare=stop,
    ),
    Statement(
        name="posterior.verdict_of_samplers",
        claim="The chains of hmc or nuts agree, or do not agree",
        over="chains",
        made_by=("ensemble.draws.diagnostics.judge_chains",),
        settings={
            "hmc, C = 6, 400 draws": {"chains": Chains(6, 400, "hmc")},
            "nuts, C = 4, 150 draws": {"chains": Chains(4, 150)},
            "nuts, C = 3, 100 draws": {"chains": Chains(3, 100)},
            "nuts, C = 16, 40 draws": {"chains": Chains(16, 40)},
            "hmc, C = 8, slow, 400 draws": {"chains": Chains(8, 400, "hmc", 0.1, 2)},
            "hmc, C = 1, 1000 draws": {"chains": Chains(1, 1000, "hmc")},
            "nuts, C = 6, one of them 2 sd away": {"chains": Chains(6, 150), "missed": 1},
            "hmc, C = 16, two of them 2 sd away": {"chains": Chains(16, 100, "hmc"), "missed": 2},
        },
        prepare=verdict,
        kind=VERDICT,
    ),
)
