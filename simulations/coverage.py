"""How often 95% intervals of metrics, and of paired differences, hold the population's value."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ensemble.metrics import Estimate, metrics_of
from simulations import worlds
from simulations.worlds import Arrays, World


def normal(rng: np.random.Generator, size: int) -> Arrays:
    """Normal errors."""
    return rng.normal(size=size)


def student(rng: np.random.Generator, size: int) -> Arrays:
    """Errors with heavy tails: Student's t with five degrees of freedom."""
    return rng.standard_t(5, size=size)


def skewed(rng: np.random.Generator, size: int) -> Arrays:
    """Errors of an exponential distribution."""
    return rng.exponential(size=size) - 1


_LEVELS: dict[str, Any] = {"levels": (0.05, 0.25, 0.5, 0.75, 0.95)}
WORLDS: Mapping[str, Callable[[], World]] = {
    "5 classes, 68% right": functools.partial(worlds.classes, 5, 2.0),
    "3 classes, 94% right": functools.partial(worlds.classes, 3, 9.0),
    "2 classes": functools.partial(worlds.classes, 2, 1.5),
    "numbers": functools.partial(worlds.numbers, "gaussian", normal),
    "numbers, t5 errors": functools.partial(worlds.numbers, "gaussian", student, size=200_000),
    "numbers, skewed": functools.partial(worlds.numbers, "gaussian", skewed, size=200_000),
    "counts": functools.partial(worlds.numbers, "poisson", normal),
    "quantiles": functools.partial(worlds.numbers, "quantiles", normal, **_LEVELS),
    "5 classes, groups": functools.partial(worlds.classes, 5, 2.0, has_groups=True),
    "numbers, groups": functools.partial(worlds.numbers, "gaussian", normal, has_groups=True),
}
SIZES = (100, 300, 1_000, 10_000)
NUM_GROUPS = (10, 30, 100)
CELLS = tuple(
    (world, size) for world in WORLDS for size in (NUM_GROUPS if "groups" in world else SIZES)
)
"""Pairs of a world and the number of rows, or groups, of a test split."""


class Coverage(NamedTuple):
    """How often the interval of a metric held the truth in one cell.

    Attributes:
        world: Key of `WORLDS`.
        size: Rows, or groups, of a test split.
        metric: Name of the metric; " difference" is appended if it is that of two ensembles.
        stated: Share of the test splits that had an interval.
        held: Share of these intervals that held the truth; None if there were none.
        replications: Number of test splits.
    """

    world: str
    size: int
    metric: str
    stated: float
    held: float | None
    replications: int


class Rows:
    """Attributes of a predictive at some rows; what the whole has computed is not computed again.

    Args:
        whole: Predictive of the population.
        chosen: Indices of the rows.
    """

    def __init__(self, whole: Any, chosen: NDArray[np.int64]):
        self._whole = whole
        self._chosen = chosen

    def __getattr__(self, name: str) -> Any:
        return _attribute(self._whole, name)[self._chosen]

    def central(self, level: float) -> tuple[Arrays, Arrays]:
        """Central intervals of a level."""
        low, high = _central(self._whole, level)
        return low[self._chosen], high[self._chosen]


@functools.lru_cache(maxsize=32)
def _attribute(p: Any, name: str) -> Arrays:
    return np.asarray(getattr(p, name))


@functools.lru_cache(maxsize=16)
def _central(p: Any, level: float) -> tuple[Arrays, Arrays]:
    low, high = p.central(level)
    return np.asarray(low), np.asarray(high)


@functools.lru_cache(maxsize=1)
def _population(
    name: str,
) -> tuple[World, dict[str, Any], dict[str, list[Arrays] | None], dict[str, list[float]]]:
    """A world; its metrics that have intervals; terms [N] that are row by row; true values."""
    world = WORLDS[name]()
    metrics = {}
    terms = {}
    truth = {}
    some = np.arange(0, len(world.y), 7)
    for key, metric in metrics_of(world.ours).items():
        whole = [metric.terms(p, world.y) for p in (world.ours, world.theirs)]
        if np.ndim(whole[0]):
            metrics[key] = metric
            truth[key] = [float(np.mean(one)) for one in whole]
            part = metric.terms(world.ours.rows(some), world.y[some])
            terms[key] = whole if np.allclose(part, whole[0][some], atol=1e-5) else None
    return world, metrics, terms, truth


def simulate(name: str, size: int, replications: int) -> list[Coverage]:
    """Draws test splits from a world, and counts how often intervals hold the truth.

    Args:
        name: Key of `WORLDS`.
        size: Rows, or groups, of a test split.
        replications: Number of test splits.
    """
    world, metrics, terms, truth = _population(name)
    counts = {key: np.zeros(2) for one in metrics for key in (one, f"{one} difference")}
    for number in range(replications):
        rng = np.random.default_rng([size, number])
        chosen, groups = _draw(world, size, rng)
        ours, theirs = (Rows(p, chosen) for p in (world.ours, world.theirs))
        y = world.y[chosen]
        for key, metric in metrics.items():
            whole = terms[key]
            of_rows = (
                [metric.terms(p, y) for p in (ours, theirs)]
                if whole is None
                else [one[chosen] for one in whole]
            )
            alone = metric._replace(terms=lambda *_, found=of_rows[0]: found)
            _count(counts[key], alone.estimate(ours, y, groups), truth[key][0])
            change = metric.difference(*of_rows, groups)
            _count(counts[f"{key} difference"], change, truth[key][1] - truth[key][0])
    return list(_shares(name, size, counts, replications))


def _draw(
    world: World, size: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Indices of rows, and labels of their groups; with replacement."""
    if world.groups is None:
        return rng.integers(len(world.y), size=size), None
    starts = np.append(np.unique(world.groups, return_index=True)[1], len(world.y))
    drawn = rng.integers(len(starts) - 1, size=size)
    rows = [np.arange(starts[g], starts[g + 1]) for g in drawn]
    return np.concatenate(rows), np.repeat(np.arange(size), [len(one) for one in rows])


def _count(count: NDArray[np.float64], found: Estimate, truth: float) -> None:
    if found.low is not None and found.high is not None:
        slack = 1e-9 * abs(truth)
        count += 1, found.low - slack <= truth <= found.high + slack


def _shares(
    name: str, size: int, counts: Mapping[str, NDArray[np.float64]], replications: int
) -> Iterator[Coverage]:
    for key, (stated, held) in counts.items():
        share = round(held / stated, 4) if stated else None
        yield Coverage(name, size, key, round(stated / replications, 4), share, replications)
