"""How often intervals of chains cover, and their verdicts and abstention's guarantee are false."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import scipy.signal

from ensemble.draws import diagnostics
from ensemble.draws.diagnostics import error_of_draws
from ensemble.metrics.abstention import MAX_ERROR, Rule, fit_abstention
from simulations.worlds import Arrays


class Claim(NamedTuple):
    """How often a claim was made, and how often it held.

    Attributes:
        claim: Key of `CLAIMS`.
        stated: Share of the replications in which it was made.
        held: Share of these in which it held; None if there were none.
        replications: Number of replications.
    """

    claim: str
    stated: float
    held: float | None
    replications: int


def autoregressive(
    rng: np.random.Generator, num_chains: int, num_draws: int, correlation: float
) -> Arrays:
    """Stationary chains [C, T] of mean 0 and variance 1."""
    noise = rng.normal(size=(num_chains, num_draws)) * np.sqrt(1 - correlation**2)
    start = correlation * rng.normal(size=(num_chains, 1))
    return scipy.signal.lfilter([1], [1, -correlation], noise, axis=1, zi=start)[0]


def mean_is_covered(
    rng: np.random.Generator, num_chains: int, num_draws: int, correlation: float
) -> bool | None:
    """Whether the 95% interval of a mean holds it."""
    draws = autoregressive(rng, num_chains, num_draws, correlation)
    ends = diagnostics.summarise({"": draws}).scalars[""].interval
    return None if ends is None else ends[0] <= 0 <= ends[1]


def chains_do_not_disagree(
    rng: np.random.Generator, num_chains: int, num_draws: int, correlation: float
) -> bool:
    """Whether equal chains are not said to disagree, in any of ten scalars."""
    scalars = {str(i): autoregressive(rng, num_chains, num_draws, correlation) for i in range(10)}
    found = diagnostics.summarise(scalars)
    verdict = diagnostics.judge_chains(found.rhat_max, found.ess_bulk_min, found.ess_tail_min)
    return verdict != diagnostics.DISAGREE


def predictive_nll_is_covered(
    rng: np.random.Generator, num_chains: int, num_draws: int, correlation: float
) -> bool | None:
    """Whether the NLL of infinitely many draws is in the interval: targets y ~ N(draw, 1)."""
    y = np.linspace(-2, 2, 8)
    draws = autoregressive(rng, num_chains, num_draws, correlation)[..., None]
    log_probs = -0.5 * (y - draws) ** 2 - 0.5 * np.log(2 * np.pi)
    ess = min(diagnostics.ess(one, "bulk") for one in np.moveaxis(log_probs, -1, 0))
    found = error_of_draws(log_probs, ess)
    if found.nll_interval is None:
        return None
    truth = float(np.mean(y**2 / 4 + 0.5 * np.log(4 * np.pi)))
    return found.nll_interval[0] <= truth <= found.nll_interval[1]


def guarantee_holds(rng: np.random.Generator, size: int, most: float, trust: float) -> bool | None:
    """Whether answers err at most as often as is guaranteed: doubts are error rates ^ `trust`."""
    doubt = rng.beta(0.4, 3, size=size)
    try:
        found = fit_abstention(Rule(MAX_ERROR, most), doubt, rng.random(size) < doubt**trust)
    except ValueError:
        return None
    every = np.random.default_rng(0).beta(0.4, 3, size=100_000)
    answered = every[every < found.threshold]
    return len(answered) == 0 or float(np.mean(answered**trust)) <= most


_CHAINS = {
    "4 chains of 1,000, r = 0.5": (4, 1000, 0.5),
    "4 chains of 1,000, r = 0.9": (4, 1000, 0.9),
    "16 chains of 250, r = 0.8": (16, 250, 0.8),
    "1 chain of 4,000, r = 0.8": (1, 4000, 0.8),
}
_GUARANTEES = {
    "500 rows, 2%": (500, 0.02, 1.0),
    "2,000 rows, 2%": (2000, 0.02, 1.0),
    "2,000 rows, 5%, too sure": (2000, 0.05, 0.7),
}
CLAIMS: Mapping[str, tuple[Callable[..., bool | None], tuple[float, ...]]] = {
    f"{title}: {name}": (function, setting)
    for title, function, settings in (
        ("mean of a parameter", mean_is_covered, _CHAINS),
        ("chains that agree", chains_do_not_disagree, _CHAINS),
        ("NLL of the posterior", predictive_nll_is_covered, _CHAINS),
        ("guarantee of an error rate", guarantee_holds, _GUARANTEES),
    )
    for name, setting in settings.items()
}


def simulate(name: str, replications: int) -> Claim:
    """Counts how often a claim is made and holds.

    Args:
        name: Key of `CLAIMS`.
        replications: Number of replications.
    """
    function, setting = CLAIMS[name]
    found = [function(np.random.default_rng(number), *setting) for number in range(replications)]
    held = [one for one in found if one is not None]
    share = round(float(np.mean(held)), 4) if held else None
    return Claim(name, round(len(held) / replications, 4), share, replications)
