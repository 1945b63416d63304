"""Chains of samplers whose law is known: means, verdicts, and when runs end."""

import types
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ensemble.draws import diagnostics
from ensemble.methods.mcmc.chain_monitor import has_converged
from simulations.chains import autoregressive
from simulations.settings import named
from simulations.statement import VERDICT, Outcome, Statement, holds, replication

NUM_DIMS = 4
SEPARATION = 4.0
"""Standard deviations of a mode between two of them."""


@replication
def posterior_mean(
    rng: np.random.Generator, num_chains: int, num_draws: int, correlation: float
) -> Outcome:
    """Whether the intervals of two means hold: of one of four parameters, and of the log density.

    Args:
        rng: of the draws.
        num_chains: C.
        num_draws: T.
        correlation: of neighbouring draws.
    """
    draws = autoregressive(rng, rng.normal(size=NUM_DIMS * num_chains), num_draws, correlation)
    log_density = -0.5 * np.square(draws).reshape(NUM_DIMS, num_chains, -1).sum(0)
    return {
        "parameter": holds(diagnostics.mean_interval(draws[:num_chains]), 0.0),
        "log density": holds(diagnostics.mean_interval(log_density), -2.0),
    }


@replication
def verdict(
    rng: np.random.Generator,
    num_chains: int,
    num_draws: int,
    correlation: float,
    num_scalars: int = 2,
    modes: bool = False,
    drift: float = 0.0,
) -> Outcome:
    """Whether "agree" and "do not agree" are wrong.

    Chains of one law whose draws are worth 50 or more agree. Chains that stay in the mode they
    started in, or that drift, do not; nor do those that have all missed a mode, where there are
    enough of them for a verdict without reserve.

    Args:
        rng: of the draws.
        num_chains: C.
        num_draws: T.
        correlation: of neighbouring draws.
        num_scalars: independent ones.
        modes: whether there are two modes, which chains never leave.
        drift: by how many standard deviations chains move in all.
    """
    draws = autoregressive(rng, rng.normal(size=num_chains * num_scalars), num_draws, correlation)
    draws = draws.reshape(num_scalars, num_chains, num_draws)
    mode = rng.integers(2, size=num_chains) if modes else np.zeros(num_chains)
    draws[0] += SEPARATION * mode[:, None] + drift * np.linspace(0, 1, num_draws)
    has_reserve = num_chains < diagnostics.MIN_CHAINS
    is_split = modes and (not has_reserve or len(set(mode)) > 1)
    return judged(draws, bool(is_split or drift), not (modes or drift))


def judged(scalars: Iterable[NDArray], are_apart: bool, are_equal: bool) -> Outcome:
    """Whether "agree" and "do not agree" are wrong of scalars [C, T], where they are said."""
    found = diagnostics.summarise({str(i): one for i, one in enumerate(scalars)})
    told = diagnostics.judge_chains(found.rhat_max, found.ess_min, found.rhat_chance)
    return {
        "agree": are_apart if told == diagnostics.AGREE else None,
        "do not agree": are_equal if told == diagnostics.DISAGREE else None,
    }


@replication
def stop(
    rng: np.random.Generator,
    num_chains: int,
    correlation: float,
    every: int,
    most: int,
    ess: float,
    rhat: float = 0.0,
) -> Outcome:
    """Whether the intervals of means hold when a run ends by `config.stop_at`.

    Args:
        rng: of the draws.
        num_chains: C.
        correlation: of neighbouring draws.
        every: draws between two looks.
        most: draws after which it ends anyway.
        ess: that is asked for.
        rhat: that is asked for.
    """
    stop_at = types.SimpleNamespace(ess=ess, rhat=rhat, predictive_error=0.0)
    arviz = diagnostics.import_arviz()

    def is_over(values: NDArray) -> bool:
        scalars = {"posterior/ess_bulk_min": float(arviz.ess(values, method="bulk"))}
        if scalars["posterior/ess_bulk_min"] > ess:  # Else R-hat is of no account.
            scalars["posterior/rhat_max"] = diagnostics._rhat(values)
        return has_converged(scalars, stop_at)

    draws = autoregressive(rng, 2 * rng.normal(size=num_chains), 100 + most, correlation)[:, 100:]
    ends = range(every, most + 1, every)
    end = next((one for one in ends if is_over(draws[:, :one])), most)
    return {"parameter": holds(diagnostics.mean_interval(draws[:, :end]), 0.0)}


_chains = named("num_chains num_draws correlation")
_stop = named("num_chains correlation every most ess rhat")

STATEMENTS = (
    Statement(
        name="posterior.mean",
        claim="The mean of a parameter, or of a score of single draws, of a posterior",
        over="chains",
        made_by=(
            "ensemble.draws.diagnostics.mean_interval",
            "ensemble.report.posterior.convergence_section",
        ),
        settings={
            "C = 4, worth 210": _chains(4, 1000, 0.9),
            "C = 1, worth 210": _chains(1, 4000, 0.9),
            "C = 1, worth 40": _chains(1, 800, 0.9),
            "C = 2, worth 130": _chains(2, 600, 0.8),
            "C = 4, worth 80": _chains(4, 2000, 0.98),
            "C = 8, worth 210": _chains(8, 500, 0.9),
            "C = 32, worth 170": _chains(32, 100, 0.9),
            "C = 32, independent": _chains(32, 50, 0.0),
        },
        prepare=posterior_mean,
    ),
    Statement(
        name="posterior.verdict",
        claim="The chains agree, or do not agree",
        over="chains",
        made_by=(
            "ensemble.draws.diagnostics.judge_chains",
            "ensemble.draws.diagnostics._rhat_by_chance",
            "ensemble.draws.diagnostics._normal_scores",
        ),
        settings={
            "C = 4, alike, worth 540": _chains(4, 1000, 0.764),
            "C = 1, alike, worth 210": _chains(1, 1000, 0.65),
            "C = 2, alike, worth 100": _chains(2, 500, 0.818),
            "C = 4, alike, 8 scalars, worth 400": _chains(4, 500, 0.667, num_scalars=8),
            "C = 8, alike, worth 80": _chains(8, 200, 0.904),
            "C = 32, alike, worth 540": _chains(32, 100, 0.71),
            "C = 2, two modes": _chains(2, 500, 0.5, modes=True),
            "C = 4, two modes": _chains(4, 500, 0.5, modes=True),
            "C = 8, two modes": _chains(8, 500, 0.5, modes=True),
            "C = 32, two modes": _chains(32, 100, 0.5, modes=True),
            "C = 4, drift of 1 sd": _chains(4, 500, 0.5, drift=1.0),
            "C = 32, drift of 1 sd": _chains(32, 100, 0.5, drift=1.0),
        },
        prepare=verdict,
        kind=VERDICT,
    ),
    Statement(
        name="posterior.stop_at",
        claim="The mean of a parameter when the run ends by config.stop_at",
        over="chains",
        made_by=("ensemble.methods.mcmc.chain_monitor.has_converged",),
        settings={
            "C = 4, ESS 200": _stop(4, 0.8, 100, 1500, 200.0),
            "C = 1, ESS 100": _stop(1, 0.8, 200, 3000, 100.0),
            "C = 1, R-hat 1.01": _stop(1, 0.8, 400, 6000, 0.0, 1.01),
            "C = 2, R-hat 1.05": _stop(2, 0.9, 250, 4000, 0.0, 1.05),
            "C = 4, R-hat 1.01": _stop(4, 0.8, 200, 3000, 0.0, 1.01),
            "C = 8, R-hat 1.01, ESS 400": _stop(8, 0.8, 200, 3000, 400.0, 1.01),
            "C = 32, ESS 400": _stop(32, 0.9, 50, 600, 400.0),
        },
        prepare=stop,
    ),
)
