"""Two ensembles of numbers: the difference of these two, and of their recipes."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ensemble.evaluation import recipe
from ensemble.evaluation.numbers import number_comparison
from ensemble.evaluation.numbers.number_comparison import Compared
from ensemble.likelihoods.gaussian import Gaussian
from ensemble.metrics import regression
from ensemble.storage.predictions import StoredPredictions
from simulations import real_members
from simulations.comparisons import is_wrong
from simulations.statement import VERDICT, Replicate, Statement

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
        """Of the errors that are linear in the inputs [M, D]."""
        return (
            self.smooth / np.sqrt(self.num_inputs) * rng.normal(size=(num_members, self.num_inputs))
        )


def draw(
    rng: np.random.Generator,
    pair: tuple[tuple[Kind, NDArray], tuple[Kind, NDArray]],
    num_examples: int,
    freedom: float = np.inf,
    groups: NDArray | None = None,
) -> list[Compared]:
    """What two ensembles predict of the same examples, which all members misjudge alike, too.

    Args:
        rng: of the draws.
        pair: the kinds of the two, and the slopes of their members.
        num_examples: N.
        freedom: degrees of freedom of the targets' errors, which have Student's t distribution.
        groups: of the examples [N], whose inputs and errors are then much alike.
    """
    noise = rng.normal(size=num_examples)
    if np.isfinite(freedom):
        noise = rng.standard_t(freedom, size=num_examples)
    inputs = rng.normal(size=(pair[0][0].num_inputs, num_examples))
    if groups is not None:
        inputs = np.sqrt(0.8) * inputs[:, groups] + np.sqrt(0.2) * rng.normal(size=inputs.shape)
        noise = np.sqrt(0.5) * (noise[groups] + rng.normal(size=num_examples))
    targets = inputs.sum(axis=0) / 2 + noise
    found = []
    for kind, slopes in pair:
        size = len(slopes), num_examples
        loc = inputs.sum(axis=0) / 2 * 0.9 + slopes @ inputs + kind.wiggle * rng.normal(size=size)
        arrays = {"loc": loc, "scale": np.full(size, kind.scale)}
        found.append(_predicted(arrays, targets))
    return found


def _predicted(arrays: dict[str, NDArray], targets: NDArray) -> Compared:
    numbers = np.arange(len(arrays["loc"]))
    return Compared(LIKELIHOOD, StoredPredictions(arrays, targets, numbers))


def _real(rng: np.random.Generator, members: tuple[int, int], num_examples: int) -> list[Compared]:
    _, found = real_members.draw(rng, real_members.friedman(), sum(members), num_examples)
    parts = {name: np.split(found[name], [members[0]]) for name in ("loc", "scale")}
    return [
        _predicted({name: one[k] for name, one in parts.items()}, found["targets"]) for k in (0, 1)
    ]


def these_ensembles(
    terms: Callable[[Compared], dict[str, NDArray]],
    members: tuple[int, int],
    num_examples: int,
    kinds: tuple[Kind, Kind],
    freedom: float = np.inf,
) -> Replicate:
    """Whether paired intervals hold the difference of two ensembles that stay as they are."""
    fixed = np.random.default_rng(0)
    one, other = ((kind, kind.slopes(fixed, num)) for kind, num in zip(kinds, members, strict=True))
    before, after = map(
        regression.means, map(terms, draw(fixed, (one, other), POPULATION, freedom))
    )

    def replicate(rng: np.random.Generator) -> Mapping[str, bool | None]:
        pair = draw(rng, (one, other), num_examples, freedom)
        found = number_comparison.paired_intervals(*map(terms, pair))
        return {name: _holds(found[name], after[name] - before[name]) for name in found}

    return replicate


def _means(predicted: Compared) -> dict[str, NDArray]:
    """Terms of scores that are quickly computed."""
    test = predicted.test
    found = predicted.likelihood.distribution(test.arrays)
    return {
        "nll": -regression.mixture_log_density(found.log_densities(test.targets)),
        "rmse": (found.moments()[0] - test.targets) ** 2,
        "crps": found.crps(test.targets),
    }


def _shares(predicted: Compared) -> dict[str, NDArray]:
    test = predicted.test
    found = predicted.likelihood.distribution(test.arrays)
    low, high = found.quantiles(np.array([0.05, 0.95]))
    return {"coverage_90": (test.targets >= low) & (test.targets <= high)}


def _holds(interval: tuple[float, float] | None, truth: float) -> bool | None:
    return None if interval is None else bool(interval[0] <= truth <= interval[1])


def _recipes(
    rng: np.random.Generator,
    members: tuple[int, int],
    num_examples: int,
    kinds: tuple[Kind, Kind] | None,
    freedom: float = np.inf,
) -> list[Compared]:
    """Two ensembles, members and examples drawn anew."""
    if kinds is None:
        return _real(rng, members, num_examples)
    one, other = ((kind, kind.slopes(rng, num)) for kind, num in zip(kinds, members, strict=True))
    return draw(rng, (one, other), num_examples, freedom)


@functools.cache
def _truth(
    members: tuple[int, int], kinds: tuple[Kind, Kind] | None, freedom: float = np.inf
) -> float:
    """The CRPS that the second's ensembles have on average above the first's."""
    if members[0] == members[1] and (kinds is None or kinds[0] == kinds[1]):
        return 0.0
    rng, found = np.random.default_rng(1), []
    for _ in range(400):
        first, second = (
            np.mean(one.likelihood.distribution(one.test.arrays).crps(one.test.targets))
            for one in _recipes(rng, members, 1000, kinds, freedom)
        )
        found.append(second - first)
    return float(np.mean(found))


def _section(pair: list[Compared]) -> dict[str, Any]:
    return recipe.score_recipes("CRPS", "members", *map(number_comparison.leave_one_out, pair))


def recipes(**setting: Any) -> Replicate:
    """Whether the interval holds the difference of ensembles with other members, on average."""
    truth = _truth(*_of_truth(setting))

    def replicate(rng: np.random.Generator) -> Mapping[str, bool | None]:
        found = _section(_recipes(rng, **setting))
        return {"crps": _holds(found.get("interval"), truth)}

    return replicate


def verdicts(**setting: Any) -> Replicate:
    """Whether the sentence on the recipe is wrong."""
    truth = _truth(*_of_truth(setting))

    def replicate(rng: np.random.Generator) -> Mapping[str, bool | None]:
        return {"sentence": is_wrong(_section(_recipes(rng, **setting)), truth)}

    return replicate


def _of_truth(setting: Mapping[str, Any]) -> tuple:
    return setting["members"], setting["kinds"], setting.get("freedom", np.inf)


def _setting(
    members: tuple[int, int],
    num_examples: int,
    ours: Kind | None = None,
    theirs: Kind | None = None,
    **rest: Any,
) -> dict[str, Any]:
    kinds = None if ours is None else (ours, theirs or ours)
    return {"members": members, "num_examples": num_examples, "kinds": kinds, **rest}


_PLAIN, _UNEQUAL, _ALIKE = Kind(0.6, 0.2), Kind(0.3, 0.6), Kind(0.3, 0.1)
_PAIRS = {
    "M = 4, N = 200, unequal members": _setting((4, 4), 200, _UNEQUAL),
    "M = 2, N = 50": _setting((2, 2), 50, _PLAIN),
    "M = 2 and 8, N = 300, one is better": _setting((2, 8), 300, _PLAIN),
    "M = 4, N = 100, heavy tails": _setting((4, 4), 100, _PLAIN, freedom=3.0),
    "M = 4, N = 300, too sure": _setting((4, 4), 300, _PLAIN, Kind(0.6, 0.2, 0.6)),
    "M = 8, N = 200, alike": _setting((8, 8), 200, _ALIKE),
}

STATEMENTS = (
    Statement(
        name="number_comparison.these_ensembles",
        claim="Of these two ensembles, the other's score is higher by [low, high]",
        over="examples",
        made_by=(
            "ensemble.evaluation.numbers.number_comparison.paired_intervals",
            "ensemble.evaluation.numbers.number_comparison._paired_interval",
            "ensemble.metrics.jackknife.mean_difference_interval",
        ),
        settings=_PAIRS,
        prepare=functools.partial(these_ensembles, _means),
    ),
    Statement(
        name="number_comparison.shares_of_these_ensembles",
        claim="Of these two ensembles, the other's intervals hold more targets by [low, high]",
        over="examples",
        made_by=("ensemble.metrics.jackknife.share_difference_interval",),
        settings=_PAIRS,
        prepare=functools.partial(these_ensembles, _shares),
        at_least=True,
    ),
    Statement(
        name="number_comparison.recipes",
        claim="Ensembles of the other recipe have a CRPS that is higher by [low, high]",
        over="members and examples",
        made_by=("ensemble.metrics.jackknife.two_way_interval",),
        settings={
            "M = 4, N = 200, unequal members": _setting((4, 4), 200, _UNEQUAL),
            "M = 2, N = 50": _setting((2, 2), 50, _PLAIN),
            "M = 3, N = 300": _setting((3, 3), 300, _PLAIN),
            "M = 4 and 8, N = 300, one is better": _setting((4, 8), 300, _PLAIN),
            "M = 8, N = 300, heavy tails": _setting((8, 8), 300, _PLAIN, freedom=3.0),
            "M = 4, N = 1000, one is worse": _setting((4, 4), 1000, _ALIKE, _UNEQUAL),
            "M = 8, N = 300, unequal members": _setting((8, 8), 300, _UNEQUAL),
            "M = 4, N = 300, Friedman": _setting((4, 4), 300),
            "M = 8, N = 300, Friedman": _setting((8, 8), 300),
            "M = 3 and 8, N = 300, Friedman": _setting((3, 8), 300),
            "M = 16, N = 50, Friedman": _setting((16, 16), 50),
        },
        prepare=recipes,
    ),
    Statement(
        name="number_comparison.verdict",
        claim="The other recipe is better, worse, or no worse than by 1% of the CRPS",
        over="members and examples",
        made_by=(),
        settings={
            "M = 4, N = 200, unequal members, equal": _setting((4, 4), 200, _UNEQUAL),
            "M = 2, N = 50, equal": _setting((2, 2), 50, _PLAIN),
            "M = 3, N = 300, equal": _setting((3, 3), 300, _PLAIN),
            "M = 8, N = 300, heavy tails, equal": _setting((8, 8), 300, _PLAIN, freedom=3.0),
            "M = 8, N = 300, alike, equal": _setting((8, 8), 300, _ALIKE),
            "M = 4, N = 300, one is worse": _setting((4, 4), 300, _ALIKE, _PLAIN),
            "M = 4, N = 300, Friedman, equal": _setting((4, 4), 300),
            "M = 8, N = 300, Friedman, equal": _setting((8, 8), 300),
        },
        prepare=verdicts,
        kind=VERDICT,
    ),
)
