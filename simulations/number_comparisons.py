"""Two ensembles of numbers: the difference of these two, and of their recipes."""

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ensemble.evaluation import recipe
from ensemble.evaluation.comparison import leave_one_out
from ensemble.likelihoods.gaussian import Gaussian
from ensemble.likelihoods.mixture_view import MixtureView
from ensemble.scoring.score import scores_of
from ensemble.scoring.sections import values_of
from simulations import real_members
from simulations.comparisons import World, setting
from simulations.statement import VERDICT, Statement

POPULATION = 20_000
LIKELIHOOD = Gaussian(0.0, 1.0, -8.0, 8.0)


class Kind(NamedTuple):
    """How members of a recipe are drawn.

    Attributes:
        wiggle: standard deviation of a member's own errors, from example to example.
        smooth: standard deviation of its errors that are linear in the inputs.
        scale: of the distributions that members predict; 1 is right.
        num_inputs: D.
    """

    wiggle: float
    smooth: float
    scale: float = 1.0
    num_inputs: int = 10

    def slopes(self, rng: np.random.Generator, num_members: int) -> NDArray:
        """The slopes of the errors that are linear in the inputs [M, D]."""
        return (
            self.smooth / np.sqrt(self.num_inputs) * rng.normal(size=(num_members, self.num_inputs))
        )


def _pair(rng: np.random.Generator, members: tuple[int, int], kinds: Any) -> Any:
    if kinds is None:
        return real_members.draw_pair(rng, members)
    return [(kind, kind.slopes(rng, number)) for kind, number in zip(kinds, members, strict=True)]


def draw(
    rng: np.random.Generator,
    pair: Any,
    num_examples: int | None,
    freedom: float = np.inf,
    groups: NDArray | None = None,
) -> list[MixtureView]:
    """What two ensembles predict of the same examples, which all members misjudge alike, too.

    Args:
        rng: of the draws.
        pair: the kinds of the two, and the slopes of their members; or real members.
        num_examples: N.
        freedom: degrees of freedom of the targets' errors, which have Student's t distribution.
        groups: of the examples [N], whose inputs and errors are then much alike.
    """
    if isinstance(pair[0], np.ndarray):
        found = real_members.predicted(rng, real_members.friedman(), pair, num_examples)
        return [_predicted(one, one.pop("targets")) for one in found]
    num_examples = num_examples or POPULATION
    noise = rng.normal(size=num_examples)
    if np.isfinite(freedom):
        noise = rng.standard_t(freedom, size=num_examples)
    inputs = rng.normal(size=(pair[0][0].num_inputs, num_examples))
    if groups is not None:
        inputs = np.sqrt(0.8) * inputs[:, groups] + np.sqrt(0.2) * rng.normal(size=inputs.shape)
        noise = np.sqrt(0.5) * (noise[groups] + rng.normal(size=num_examples))
    targets = inputs.sum(axis=0) / 2 + noise
    predicted = []
    for kind, slopes in pair:
        size = len(slopes), num_examples
        loc = inputs.sum(axis=0) / 2 * 0.9 + slopes @ inputs + kind.wiggle * rng.normal(size=size)
        arrays = {"loc": loc, "scale": np.full(size, kind.scale)}
        predicted.append(_predicted(arrays, targets))
    return predicted


def _predicted(arrays: dict[str, NDArray], targets: NDArray) -> MixtureView:
    return LIKELIHOOD.view(arrays, targets)


_MEANS, _SHARES = ("nll", "rmse", "crps"), ("coverage_90",)


def _intervals(names: tuple[str, ...], pair: list[MixtureView]) -> dict[str, Any]:
    ours, theirs = pair
    scores = scores_of(ours)
    return {name: scores[name].difference(ours, theirs) for name in names}


def _difference(pair: list[MixtureView]) -> float:
    first, second = (float(one.crps.mean()) for one in pair)
    return second - first


def _section(pair: list[MixtureView]) -> dict[str, Any]:
    parts = (leave_one_out(one, "crps") for one in pair)
    return recipe.score_recipes("CRPS", "members", *parts)


_WORLD = World(
    "crps",
    _pair,
    draw,
    _difference,
    _section,
    lambda names, pair: [values_of(one, names) for one in pair],
    _intervals,
)


_PLAIN, _UNEQUAL, _ALIKE = Kind(0.6, 0.2), Kind(0.3, 0.6), Kind(0.3, 0.1)
_PAIRS = {
    "M = 4, N = 200, unequal members": setting((4, 4), 200, _UNEQUAL),
    "M = 2, N = 50": setting((2, 2), 50, _PLAIN),
    "M = 2 and 8, N = 300, one is better": setting((2, 8), 300, _PLAIN),
    "M = 4, N = 100, heavy tails": setting((4, 4), 100, _PLAIN, freedom=3.0),
    "M = 4, N = 300, too sure": setting((4, 4), 300, _PLAIN, Kind(0.6, 0.2, 0.6)),
    "M = 8, N = 200, alike": setting((8, 8), 200, _ALIKE),
}

STATEMENTS = (
    Statement(
        name="number_comparison.these_ensembles",
        claim="Of these two ensembles, the other's score is higher by [low, high]",
        over="examples",
        made_by=(
            "ensemble.scoring.combine.Mean",
            "ensemble.scoring.combine.RootMean",
            "ensemble.metrics.jackknife.mean_difference_interval",
        ),
        settings=_PAIRS,
        prepare=functools.partial(_WORLD.these, _MEANS),
    ),
    Statement(
        name="number_comparison.shares_of_these_ensembles",
        claim="Of these two ensembles, the other's intervals hold more targets by [low, high]",
        over="examples",
        made_by=("ensemble.metrics.jackknife.share_difference_interval",),
        settings=_PAIRS,
        prepare=functools.partial(_WORLD.these, _SHARES),
        at_least=True,
    ),
    Statement(
        name="number_comparison.recipes",
        claim="Ensembles of the other recipe have a CRPS that is higher by [low, high]",
        over="members and examples",
        made_by=("ensemble.metrics.jackknife.two_way_interval",),
        settings={
            "M = 4, N = 200, unequal members": setting((4, 4), 200, _UNEQUAL),
            "M = 2, N = 50": setting((2, 2), 50, _PLAIN),
            "M = 3, N = 300": setting((3, 3), 300, _PLAIN),
            "M = 4 and 8, N = 300, one is better": setting((4, 8), 300, _PLAIN),
            "M = 8, N = 300, heavy tails": setting((8, 8), 300, _PLAIN, freedom=3.0),
            "M = 4, N = 1000, one is worse": setting((4, 4), 1000, _ALIKE, _UNEQUAL),
            "M = 8, N = 300, unequal members": setting((8, 8), 300, _UNEQUAL),
            "M = 4, N = 300, Friedman": setting((4, 4), 300),
            "M = 8, N = 300, Friedman": setting((8, 8), 300),
            "M = 3 and 8, N = 300, Friedman": setting((3, 8), 300),
            "M = 16, N = 50, Friedman": setting((16, 16), 50),
        },
        prepare=_WORLD.recipes,
    ),
    Statement(
        name="number_comparison.verdict",
        claim="The other recipe is better, worse, or no worse than by 1% of the CRPS",
        over="members and examples",
        made_by=(),
        settings={
            "M = 4, N = 200, unequal members, equal": setting((4, 4), 200, _UNEQUAL),
            "M = 2, N = 50, equal": setting((2, 2), 50, _PLAIN),
            "M = 3, N = 300, equal": setting((3, 3), 300, _PLAIN),
            "M = 8, N = 300, heavy tails, equal": setting((8, 8), 300, _PLAIN, freedom=3.0),
            "M = 8, N = 300, alike, equal": setting((8, 8), 300, _ALIKE),
            "M = 4, N = 300, one is worse": setting((4, 4), 300, _ALIKE, _PLAIN),
            "M = 4, N = 300, Friedman, equal": setting((4, 4), 300),
            "M = 8, N = 300, Friedman, equal": setting((8, 8), 300),
        },
        prepare=_WORLD.verdicts,
        kind=VERDICT,
    ),
)
