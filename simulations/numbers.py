"""Scores of predicted numbers: do their intervals hold what another test set would say?"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from ensemble.likelihoods.gaussian import Gaussian
from ensemble.metrics.rank_correlation import rank_correlation_interval
from ensemble.scoring.combine import RootMean
from ensemble.scoring.score import scores_of
from ensemble.scoring.sections import values_of
from simulations.settings import named, with_more
from simulations.statement import Outcome, Replicate, Statement, holds, replication

LIKELIHOOD = Gaussian(0.0, 2.0, -6.0, 6.0)
MANY = 200_000
"""Examples by which what has no formula is known."""
_SKEW = 0.5  # Standard deviation of the logarithm of log-normal errors.

ERRORS = {
    "normal": scipy.stats.norm(),
    "t3": scipy.stats.t(3),
    "t5": scipy.stats.t(5),
    "log-normal": scipy.stats.lognorm(_SKEW, loc=-math.exp(_SKEW**2 / 2)),
}
"""Distributions of errors of mean 0, in units of what scales them."""


class World(NamedTuple):
    """Members that predict normal distributions, and targets.

    Attributes:
        num_members: M.
        errors: of the targets, a name of `ERRORS`.
        factor: of the predicted scales.
        spread: how far the members' means lie from each other.
        is_mixture: whether targets come from a member that is drawn for each, so that the mixture
            is their distribution but for the factor.
    """

    num_members: int = 1
    errors: str = "normal"
    factor: float = 1.0
    spread: float = 0.5
    is_mixture: bool = False

    def scale(self, inputs: NDArray) -> NDArray:
        """The scale of the errors, [N]."""
        return 0.4 + 0.6 * np.abs(inputs)

    def draw(
        self, rng: np.random.Generator, num_examples: int, evenly: bool = False
    ) -> tuple[dict[str, NDArray], NDArray]:
        """Predictions of the members by name, [M, N], and targets [N].

        Args:
            rng: of the draws.
            num_examples: N.
            evenly: whether errors are quantiles of their law, which says more of many examples.
        """
        inputs = rng.uniform(-1, 1, num_examples)
        if evenly:
            shares = (np.arange(num_examples) + rng.uniform(size=num_examples)) / num_examples
        else:
            shares = rng.uniform(size=num_examples)
        errors = ERRORS[self.errors].ppf(shares)
        offsets = scipy.stats.norm.ppf((np.arange(self.num_members) + 0.5) / self.num_members)
        means = self.spread * self.scale(inputs) * offsets[:, None]
        loc = 2 * inputs + means
        scale = np.broadcast_to(self.scale(inputs), loc.shape)
        targets = 2 * inputs + self.scale(inputs) * errors
        if self.is_mixture:
            chosen = rng.integers(self.num_members, size=num_examples)
            targets += means[chosen, np.arange(num_examples)]
        return LIKELIHOOD.scaled({"loc": loc, "scale": scale}, self.factor), targets

    def residuals(self, rng: np.random.Generator, num_examples: int) -> NDArray:
        """Errors of the first member [N]."""
        arrays, targets = self.draw(rng, num_examples)
        return targets - arrays["loc"][0]

    def variance(self, num_points: int = 100_001) -> float:
        """Variance of the errors, over inputs of a grid."""
        squares = self.scale(np.linspace(0, 1, num_points)) ** 2
        return float(ERRORS[self.errors].var()) * float(np.mean(squares))


_SCORES = ("rmse", "nll", "crps", "coverage_90")
_OF_ONE = (*_SCORES, "mae", "width_90", "interval_score_90")
"""The scores of several members that need no quantiles."""


def _names(world: World) -> tuple[str, ...]:
    return _OF_ONE if world.num_members == 1 else _SCORES


@functools.cache
def _truth(world: World) -> dict[str, float]:
    arrays, targets = world.draw(np.random.default_rng(0), MANY, evenly=True)
    found = values_of(LIKELIHOOD.view(arrays, targets), _names(world))
    if world.num_members == 1:  # Many examples do not suffice for heavy tails.
        scales = world.scale(np.linspace(0, 1, 100_001))
        variance = float(ERRORS[world.errors].var())
        found["rmse"] = math.sqrt(world.variance())
        constant = 0.5 * math.log(math.tau) + float(np.mean(np.log(scales * world.factor)))
        found["nll"] = constant + variance / world.factor**2 / 2
    return found


@replication
def scores(rng: np.random.Generator, num_examples: int, is_exact: bool, **settings: Any) -> Outcome:
    """Whether intervals hold the scores on any number of examples.

    Args:
        rng: of the draws.
        num_examples: N.
        is_exact: whether it is about the coverage, whose intervals are exact, or about the others.
        **settings: of `World`.
    """
    world = World(**settings)
    view = LIKELIHOOD.view(*world.draw(rng, num_examples))
    told = scores_of(view)
    return {
        name: holds(told[name].interval(view), _truth(world)[name], rounding=1e-9)
        for name in _names(world)
        if name.startswith("coverage") is is_exact
    }


def excess(num_examples: int, errors: str, bias: float, noise: float) -> Replicate:
    """Whether the paired interval holds the difference of two RMSEs.

    Args:
        num_examples: N.
        errors: of the targets, a name of `ERRORS`.
        bias: of the other predictor.
        noise: standard deviation of its own errors.
    """
    world = World(errors=errors)
    variance = world.variance()
    truth = math.sqrt(variance + bias**2 + noise**2) - math.sqrt(variance)

    def replicate(rng: np.random.Generator) -> Outcome:
        residuals = world.residuals(rng, num_examples)
        others = residuals + bias + noise * rng.normal(size=num_examples)
        found = RootMean().change(residuals**2, others**2)
        return {"rmse": holds(found, truth)}

    return replicate


def rank_correlation(num_examples: int, errors: str, slope: float) -> Replicate:
    """Whether the interval holds the rank correlation of error and predicted deviation.

    Args:
        num_examples: N.
        errors: of the targets, a name of `ERRORS`.
        slope: by how much the logarithm of the scale moves; 0: they are independent.
    """

    def draw(rng: np.random.Generator, number: int) -> tuple[NDArray, NDArray]:
        deviations = rng.uniform(-1, 1, number)
        drawn = ERRORS[errors].ppf(rng.uniform(size=number))
        return deviations, np.abs(drawn) * np.exp(slope * deviations)

    truth = scipy.stats.spearmanr(*draw(np.random.default_rng(0), 5 * MANY)).statistic

    def replicate(rng: np.random.Generator) -> Outcome:
        found = rank_correlation_interval(*draw(rng, num_examples))
        return {"rank correlation": holds(found, truth)}

    return replicate


_setting = named("num_examples errors")
_excess = named("num_examples errors bias noise")
_ranked = named("num_examples errors slope")
_SETTINGS = {
    "N = 30": _setting(30),
    "N = 100, t with 5 degrees of freedom": _setting(100, "t5"),
    "N = 100, log-normal": _setting(100, "log-normal"),
    "N = 100, t with 3 degrees of freedom": _setting(100, "t3"),
    "N = 1000, log-normal, too sure": _setting(1000, "log-normal", factor=0.5),
    "N = 1000, t with 3 degrees of freedom": _setting(1000, "t3"),
    "N = 1000, t with 5 degrees of freedom": _setting(1000, "t5"),
    "N = 5000": _setting(5000),
    "N = 5000, t with 3 degrees of freedom": _setting(5000, "t3"),
    "N = 100, M = 4": _setting(100, num_members=4, is_mixture=True),
    "N = 300, M = 16, too cautious": _setting(300, num_members=16, factor=1.5, is_mixture=True),
}

STATEMENTS = (
    Statement(
        name="numbers.scores",
        claim="The RMSE (NLL, CRPS, ...) is 2.1 [low, high]",
        over="examples",
        made_by=(
            "ensemble.scoring.combine.Mean",
            "ensemble.scoring.combine.RootMean",
            "ensemble.evaluation.sections.score_beyond",
            "ensemble.evaluation.sections._abstention",
        ),
        settings=with_more(_SETTINGS, is_exact=False),
        prepare=scores,
    ),
    Statement(
        name="numbers.coverage",
        claim="90% intervals hold 88% [low, high] of the targets",
        over="examples",
        made_by=(
            "ensemble.scoring.combine.Share",
            "ensemble.scoring.combine.Coverage",
            "ensemble.evaluation.sections._conformal",
        ),
        settings=with_more(_SETTINGS, is_exact=True),
        prepare=scores,
        at_least=True,
    ),
    Statement(
        name="numbers.excess",
        claim="The RMSE of least squares is higher than the ensemble's by [low, high]",
        over="examples",
        made_by=(
            "ensemble.scoring.combine.RootMean",
            "ensemble.report.simple_predictors.score_simple",
        ),
        settings={
            "N = 30, equal": _excess(30, "normal", 0.0, 0.1),
            "N = 30, worse": _excess(30, "normal", 0.5, 0.5),
            "N = 100, t with 5 degrees of freedom": _excess(100, "t5", 0.3, 0.3),
            "N = 100, log-normal": _excess(100, "log-normal", 0.3, 0.1),
            "N = 1000, t with 3 degrees of freedom": _excess(1000, "t3", 0.3, 0.3),
            "N = 1000, nearly equal": _excess(1000, "normal", 0.0, 0.2),
            "N = 5000, log-normal": _excess(5000, "log-normal", 0.0, 0.3),
        },
        prepare=excess,
    ),
    Statement(
        name="numbers.rank_correlation",
        claim="The rank correlation of error and predicted deviation is 0.3 [low, high]",
        over="examples",
        made_by=(
            "ensemble.metrics.rank_correlation.rank_correlation_interval",
            "ensemble.evaluation.sections.score_uncertainty",
        ),
        settings={
            "N = 30": _ranked(30, "normal", 0.5),
            "N = 30, independent": _ranked(30, "normal", 0.0),
            "N = 100, strong": _ranked(100, "normal", 3.0),
            "N = 100, t with 3 degrees of freedom": _ranked(100, "t3", 0.5),
            "N = 1000, independent": _ranked(1000, "log-normal", 0.0),
            "N = 1000, log-normal": _ranked(1000, "log-normal", 1.0),
            "N = 5000, t with 3 degrees of freedom": _ranked(5000, "t3", 1.0),
        },
        prepare=rank_correlation,
    ),
)
