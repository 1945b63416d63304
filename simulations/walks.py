"""Random walks: intervals of moments, and those of runs that end by themselves."""

import types

import numpy as np
from numpy.typing import NDArray

from ensemble.walks.moments import NUM_BINS, HostSums, Summary, summarise
from ensemble.walks.random_walk import has_converged
from simulations.chains import autoregressive
from simulations.settings import named
from simulations.statement import Outcome, Statement, holds, replication

SEGMENT = 64
"""Draws between two looks at sums."""


def _sums(draws: NDArray, num_left_out: int) -> HostSums:
    """What a walker keeps of draws [C, T], after others; its segments do not double."""
    num_chains, num_draws = draws.shape
    num_segments = num_draws // SEGMENT
    whole = draws[:, : num_segments * SEGMENT].reshape(num_chains, num_segments, SEGMENT)
    rest = draws[:, num_segments * SEGMENT :]
    return HostSums(
        origin=np.zeros(1),
        bin_width=np.ones(1),
        segments=(whole.sum(axis=2).T[..., None], np.square(whole).sum(axis=2).T[..., None]),
        rest=(rest.sum(axis=1)[:, None], np.square(rest).sum(axis=1)[:, None]),
        counts=np.ones((1, NUM_BINS + 2), int),
        segment_length=SEGMENT,
        num_draws=num_draws,
        num_left_out=num_left_out,
    )


def _holds(found: Summary) -> Outcome:
    """Whether the intervals hold the moments of normal(0, 1)."""
    told = {"mean": (found.mean_interval, 0), "variance": (found.variance_interval, 1)}
    return {
        name: holds(None if np.isnan(ends).any() else ends[0], truth)
        for name, (ends, truth) in told.items()
    }


@replication
def walk_moments(
    rng: np.random.Generator,
    num_chains: int,
    num_superchains: int,
    num_draws: int,
    correlation: float,
    spread: float = 1.0,
    warmup: int = 64,
) -> Outcome:
    """Whether the intervals of mean and variance hold those of the target.

    Args:
        rng: of the draws.
        num_chains: C.
        num_superchains: K, groups from the same start.
        num_draws: of each chain that count.
        correlation: of neighbouring draws.
        spread: standard deviation of the starts, of which the target's is 1.
        warmup: draws that do not count.
    """
    starts = spread * rng.normal(size=num_superchains)
    starts = np.repeat(starts, num_chains // num_superchains)
    draws = autoregressive(rng, starts, warmup + num_draws, correlation)[:, warmup:]
    return _holds(summarise(_sums(draws, warmup), num_superchains))


@replication
def walk_stop(
    rng: np.random.Generator,
    num_chains: int,
    num_superchains: int,
    correlation: float,
    ess: float,
    rhat: float = 0.0,
) -> Outcome:
    """Whether the intervals hold when a run ends by `config.stop_at`, looked at every 64 draws.

    Args:
        rng: of the draws.
        num_chains: C.
        num_superchains: K, groups from the same start.
        correlation: of neighbouring draws.
        ess: that is asked for.
        rhat: that is asked for.
    """
    stop_at = types.SimpleNamespace(ess=ess, rhat=rhat)
    per_draw = num_chains * (1 - correlation) / (1 + correlation)
    most = SEGMENT * max(8, int(np.ceil(4 * max(ess, 5 * num_chains) / per_draw / SEGMENT)))
    starts = np.repeat(2 * rng.normal(size=num_superchains), num_chains // num_superchains)
    warmup = int(5 / (1 - correlation))
    draws = autoregressive(rng, starts, warmup + most, correlation)[:, warmup:]
    for end in range(SEGMENT, most + 1, SEGMENT):
        found = summarise(_sums(draws[:, :end], warmup), num_superchains)
        scalars = {
            "posterior/ess_min": float(found.ess[0]),
            "posterior/rhat_max": float(np.nan_to_num(found.rhat[0], nan=np.inf)),
            "posterior/nested_rhat_max": float(found.nested_rhat[0]),
        }
        if has_converged(scalars, stop_at):
            break
    return _holds(found)


_walk = named("num_chains num_superchains num_draws correlation spread warmup")
_stop = named("num_chains num_superchains correlation ess rhat")

STATEMENTS = (
    Statement(
        name="walk.moments",
        claim="The mean, and the variance, of a density that random walks sample",
        over="chains",
        made_by=(
            "ensemble.walks.moments.summarise",
            "ensemble.walks.moments._drifts",
            "ensemble.walks.moments._interval",
        ),
        settings={
            "C = 4, 512 draws": _walk(4, 4, 512, 0.9),
            "C = 2, 512 draws": _walk(2, 2, 512, 0.9),
            "C = 1: never stated": _walk(1, 1, 512, 0.9),
            "C = 4, slow, worth 40": _walk(4, 4, 2048, 0.99),
            "C = 4, slow, starts far, worth 80": _walk(4, 4, 4096, 0.99, 3.0, 256),
            "C = 8, 1024 draws": _walk(8, 8, 1024, 0.9),
            "C = 16, slow": _walk(16, 16, 1024, 0.98),
            "C = 64 of 16 starts": _walk(64, 16, 512, 0.9, 2.0, 64),
            "C = 512 of 64 starts": _walk(512, 64, 256, 0.9, 2.0, 64),
            "C = 512 of 64 starts, slow": _walk(512, 64, 256, 0.97, 2.0, 128),
            "C = 512 of 64 starts, no warm-up": _walk(512, 64, 256, 0.9, 3.0, 0),
            "C = 64 of 16 starts, short warm-up": _walk(64, 16, 512, 0.9, 2.0, 8),
        },
        prepare=walk_moments,
    ),
    Statement(
        name="walk.stop_at",
        claim="The mean, and the variance, of a density when the run ends by config.stop_at",
        over="chains",
        made_by=("ensemble.walks.random_walk.has_converged",),
        settings={
            "C = 16, ESS 200": _stop(16, 16, 0.9, 200.0),
            "C = 16, ESS 400": _stop(16, 16, 0.95, 400.0),
            "C = 16, ESS 400, slow": _stop(16, 16, 0.99, 400.0),
            "C = 32, R-hat 1.01": _stop(32, 32, 0.9, 0.0, 1.01),
            "C = 64, ESS 1000": _stop(64, 64, 0.9, 1000.0),
            "C = 256 of 64 starts, ESS 3000": _stop(256, 64, 0.9, 3000.0),
        },
        prepare=walk_stop,
    ),
)
