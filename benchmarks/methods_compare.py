"""Compares what methods.py has trained: verdicts, and deep-ensemble equivalents."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import methods_cells as cells
import methods_scores
import numpy as np
from methods_others import NUM_KINDS, SHIFTED

Row = Mapping[str, Any]
TIMES = (1, 4)
"""Units of c that entries have."""
SPLITS: Mapping[int, tuple[tuple[int, float], ...]] = {
    1: ((1, 1), (2, 0.5)),
    4: ((1, 4), (2, 2), (4, 1), (1, 1), (1, 2)),
}
"""By these, how they are divided: networks, and units of each; one network may leave some."""
AROUND: Mapping[int, tuple[tuple[int, float], ...]] = {
    1: ((1, 1), (1, 0.5)),
    4: ((4, 1), (3, 1), (2, 1), (1, 1), (2, 2), (1, 2), (1, 4)),
}
"""Likewise of what needs seconds around its networks, as far as these are left."""
PLAIN, DEEP_ENSEMBLE, VARIED, GREEDY = "plain", "deep_ensemble", "varied", "greedy"
FAMILY_OF = {DEEP_ENSEMBLE: PLAIN, GREEDY: VARIED}
"""Entries that have the networks of a family of another name."""
MARGINS = {"nll": 0.02, "crps": 0.02, "rmse": 0.02, "accuracy": 0.005}
"""Shares of the plain network's score; of accuracy the difference itself."""
SECOND = {"nll": "accuracy", "crps": "rmse"}
TITLES = {
    "nll": "NLL",
    "accuracy": "accuracy",
    "brier": "Brier",
    "ece": "ECE",
    "crps": "CRPS",
    "rmse": "RMSE",
}
"""The names of scores on the page and its pictures."""
AS_GOOD, WORSE, INCONCLUSIVE, BETTER = "as good", "worse", "inconclusive", "better"
POOL_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24)
BELOW, BEYOND = 0.0, 25.0
"""Equivalents of who is worse than one network, or better than all of the pool."""
_SUBSETS, _SAMPLES, _ERROR = 10, 200, 0.05
ROUNDING = 1.02
"""Steps are whole, so seconds are not exactly equal."""


class Entry(NamedTuple):
    """An entry: some networks of a family, for each seed.

    Attributes:
        name: of the entry.
        networks: of a seed.
        length: of a network, in units of c.
        seeds: the scores of each seed that has not failed.
        failed: seeds that have.
        stage: in which its networks were trained.
    """

    name: str
    networks: int
    length: float
    seeds: Sequence[methods_scores.Scores]
    failed: int = 0
    stage: str = "final"

    @property
    def validation(self) -> float:
        """Mean over seeds."""
        return statistics.fmean(one.validation for one in self.seeds)

    def rows(self, score: str) -> np.ndarray:
        """[S, N], whose mean over rows is a seed's score; to first order, of a root."""
        found = np.array([np.asarray(one.terms[score], np.float64) for one in self.seeds])
        if score != "rmse":
            return found
        means = found.mean(axis=1, keepdims=True)
        roots = np.sqrt(means)
        return roots + (found - means) / (2 * roots)


# Intervals.


def interval(
    ours: np.ndarray, theirs: np.ndarray | None = None, error: float = _ERROR
) -> tuple[float, float, float]:
    """A mean over seeds and test rows, or a difference of two, with its interval.

    The variance over rows of what seeds say on average is added to that over seeds; the degrees of
    freedom are Welch's and Satterthwaite's. The sum is rather too large: the first part has some of
    the second, and entries that share networks count as independent.

    Args:
        ours: [S, N].
        theirs: [R, N] of the same rows and of other seeds, which are subtracted.
        error: that the interval does not hold.

    Returns:
        The mean, and both ends; infinite where there is one seed.
    """
    rows = ours.mean(axis=0) - (0.0 if theirs is None else theirs.mean(axis=0))
    parts = [(float(np.var(rows, ddof=1)) / len(rows), len(rows) - 1)]
    for one in (ours, theirs):
        if one is None:
            continue
        if len(one) < 2:
            return float(rows.mean()), -math.inf, math.inf
        parts.append((float(np.var(one.mean(axis=1), ddof=1)) / len(one), len(one) - 1))
    variance, mean = sum(part for part, _ in parts), float(rows.mean())
    if variance == 0:
        return mean, mean, mean
    from scipy import stats  # The driver starts without it.

    freedom = variance**2 / sum(part**2 / number for part, number in parts)
    half = float(stats.t.ppf(1 - error / 2, freedom)) * math.sqrt(variance)
    return mean, mean - half, mean + half


def area_interval(areas: Sequence[methods_scores.Area]) -> list[float | None]:
    """The 95% interval of the mean of AUROCs, over their rows and over seeds.

    It is rather too wide: the rows' variance is that of one seed, as if all agreed.

    Args:
        areas: of each seed.
    """
    number = len(areas)
    if number < 2:
        return [None, None]
    from scipy import stats  # The driver starts without it.

    from ensemble.metrics.analytic_intervals import share_interval

    weight = statistics.fmean(one.weight for one in areas)
    of_rows = statistics.fmean(one.variance for one in areas)
    of_seeds = statistics.variance(one.value for one in areas) / number
    variance = of_rows + of_seeds
    if variance > 0:
        freedom = variance**2 / (of_rows**2 * weight + of_seeds**2 / (number - 1))
        variance *= float(stats.t.ppf(0.975, freedom) / stats.norm.ppf(0.975)) ** 2
    mean = statistics.fmean(one.value for one in areas)
    return list(share_interval(mean, variance, weight))


def verdict(low: float, high: float, margin: float) -> str:
    """The verdict on an excess over the best, by its interval."""
    if high <= margin:
        return AS_GOOD
    return WORSE if low > 0 else INCONCLUSIVE


def behind(
    found: Mapping[str, np.ndarray], best: str, score: str, reference: float
) -> dict[str, dict[str, Any]]:
    """By how much entries are behind one of them, with intervals that hold together.

    Args:
        found: [S, N] by entry.
        best: the entry that was chosen, or another.
        score: of `MARGINS`.
        reference: the plain network's score.
    """
    sign = -1 if score == "accuracy" else 1
    margin = MARGINS[score] * (1 if score == "accuracy" else abs(reference))
    known = {best: {"excess": 0.0, "interval": [0.0, 0.0], "verdict": AS_GOOD}}
    for name in found:
        if name != best:
            error = _ERROR / (len(found) - 1)
            mean, low, high = interval(sign * found[name], sign * found[best], error)
            said = verdict(low, high, margin)
            known[name] = {"excess": mean, "interval": _finite(low, high), "verdict": said}
    return known


def loss_intervals(found: Mapping[str, np.ndarray]) -> dict[str, list[float | None]]:
    """How much a score is above the lowest that any entry would have on all rows, by all seeds.

    An interval holds by itself, whichever entry the lowest is: the differences from all others hold
    together.

    Args:
        found: [S, N] by entry, of a score that is better when it is lower.

    Returns:
        Both ends by entry, as shares of the lowest mean that was measured; none is negative.
    """
    least = min(float(one.mean()) for one in found.values())
    error = _ERROR / max(1, len(found) - 1)
    known = {}
    for name, own in found.items():
        ends = [(0.0, 0.0)]  # Beside itself.
        ends += [interval(own, one, error)[1:] for other, one in found.items() if other != name]
        known[name] = _finite(*(max(some) / least for some in zip(*ends, strict=True)))
    return known


def _finite(*ends: float) -> list[float | None]:
    return [one if math.isfinite(one) else None for one in ends]


# Deep-ensemble equivalents.


def pool_curve(views: Mapping[str, Any], score: str, size: int) -> list[np.ndarray]:
    """Calibrated terms [E, N] of E ensembles of each of `POOL_SIZES` networks.

    Args:
        views: by split, of the pool.
        score: that decides.
        size: networks in the pool; no ensemble is larger.
    """
    rng = np.random.default_rng(0)
    found = []
    for number in POOL_SIZES:
        if number > size:
            break
        times = size if number == 1 else 1 if number == size else _SUBSETS
        chosen = _subsets(rng, size, number, times)
        terms = [methods_scores.scored(views, which).terms[score] for which in chosen]
        found.append(np.array(terms))
    return found


def _subsets(rng: np.random.Generator, size: int, number: int, times: int) -> list[list[int]]:
    """Draws so many of a number; those of a permutation have no network in common."""
    found: list[list[int]] = []
    while len(found) < times:
        order = rng.permutation(size)
        blocks = np.split(order[: size // number * number], size // number)
        found += [sorted(one.tolist()) for one in blocks]
    return found[:times]


def equivalent(value: float, curve: Sequence[float] | np.ndarray) -> float:
    """How many networks of a pool are as good: interpolated in the logarithm of their number.

    The curve is the falling one that is nearest to the pool's.
    """
    from scipy import optimize  # The driver starts without it.

    falling = optimize.isotonic_regression(curve, increasing=False).x
    if value > falling[0]:
        return BELOW
    if value < falling[-1]:
        return BEYOND
    logs = np.log(POOL_SIZES[: len(falling)])
    return float(np.exp(np.interp(-value, -falling, logs)))


def equivalent_with_interval(terms: np.ndarray, pool: Sequence[np.ndarray]) -> dict[str, Any]:
    """An entry's deep-ensemble equivalent.

    Its interval is by bootstrap over test rows, the entry's seeds and the pool's ensembles of each
    size together. It is rather narrow: these ensembles have networks in common, the more the larger
    they are, and there is one of the largest size.

    Args:
        terms: [S, N] of the entry.
        pool: of `pool_curve`.
    """
    rng = np.random.default_rng(0)
    num_rows = terms.shape[1]
    found = []
    for _ in range(_SAMPLES):
        weights = rng.multinomial(num_rows, np.full(num_rows, 1 / num_rows)) / num_rows
        mean, *curve = (float(_resampled(one @ weights, rng).mean()) for one in (terms, *pool))
        found.append(equivalent(mean, curve))
    ends = np.quantile(found, [_ERROR / 2, 1 - _ERROR / 2], method="nearest").tolist()
    value = equivalent(float(terms.mean()), [float(one.mean()) for one in pool])
    return {"value": value, "interval": ends}


def _resampled(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return values[rng.integers(len(values), size=len(values))]


# Entries.


def candidates(
    family: str, times: int, around: float | None = None
) -> list[tuple[str, tuple[int, float]]]:
    """The entries that a family may have at some seconds: names, with networks and units.

    Args:
        family: of `methods_cells.FAMILIES`.
        times: units of c that it has.
        around: units that each network needs after its training; None: nothing is made of it.
    """
    if around is not None:
        most = times * ROUNDING
        return [
            (family, (number, length))
            for number, length in AROUND[times]
            if number * (length + around) <= most
        ]
    if family == PLAIN:
        return [(PLAIN if one[0] == 1 else DEEP_ENSEMBLE, one) for one in SPLITS[times]]
    if family == VARIED:
        return [(VARIED, one) for one in SPLITS[times] if one[0] > 1]
    is_alone = cells.FAMILIES[family].alone
    return [(family, one) for one in SPLITS[times] if one[1] >= 1 and not (is_alone and one[0] > 1)]


def most_networks(family: str, length: float) -> int:
    """Networks of a length that a seed's entries have at most; 0: none is of this length."""
    found = [one for times in TIMES for _, one in candidates(family, times)]
    return max((number for number, own in found if own == length), default=0)


def scored_seeds(
    views: Mapping[str, Any],
    failed: Sequence[str],
    networks: int,
    weighted: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
) -> list[methods_scores.Scores]:
    """Seeds whose networks have not failed: as many as all networks make.

    Args:
        views: by split, of all networks.
        failed: why each has failed, or "".
        networks: of a seed.
        weighted: gives the networks of a seed weights.
    """
    found = []
    for first in range(0, len(failed) - networks + 1, networks):
        which = list(range(first, first + networks))
        if not any(failed[k] for k in which):
            some = {split: one.members(which) for split, one in views.items()}
            found.append(methods_scores.scored(weighted(some)))
    return found


def chosen(known: Sequence[Entry]) -> list[Entry]:
    """Keeps the division of each name whose mean validation score is lowest.

    One of whose seeds some have failed comes after those that have all.
    """

    def rank(one: Entry) -> tuple[int, float]:
        return one.failed, one.validation

    best: dict[str, Entry] = {}
    for one in known:
        if one.name not in best or rank(one) < rank(best[one.name]):
            best[one.name] = one
    return list(best.values())


def divisions(known: Sequence[Entry], score: str) -> list[dict[str, Any]]:
    """Both scores of each division of the seconds whose networks have not failed.

    Args:
        known: several of a name.
        score: that decides.
    """
    return [
        {
            "entry": one.name,
            "networks": one.networks,
            "length": one.length,
            "validation": one.validation,
            "calibrated": float(one.rows(score).mean()),
        }
        for one in known
        if not one.failed
    ]


def compared(known: Sequence[Entry], pool: Sequence[np.ndarray] | None) -> dict[str, Any]:
    """The scores and verdicts of the entries of some seconds.

    Args:
        known: one of each name, `PLAIN` among them.
        pool: of `pool_curve`; None: there is none.
    """
    # The best one has all of its seeds, and no weights that validation rows have chosen.
    least = min(one.failed for one in known)
    able = [one for one in known if one.name != GREEDY and one.failed == least]
    best = min(able, key=lambda one: one.validation)
    score = best.seeds[0].score
    ranked = {name: _by(known, name, best.name) for name in (score, SECOND[score])}
    losses = loss_intervals({one.name: one.rows(score) for one in known})
    shifted = under_shift(known, score)
    entries = []
    for one in sorted(known, key=lambda one: one.validation):
        found = {**_about(one), **{name: by[one.name] for name, by in ranked.items()}}
        found |= {"loss_interval": losses[one.name], **shifted.get(one.name, {})}
        if pool is not None:
            found["equivalent"] = equivalent_with_interval(one.rows(score), pool)
        entries.append(found)
    num_test = len(best.seeds[0].terms[score])
    return {"best": best.name, "score": score, "num_test": num_test, "entries": entries}


def _about(one: Entry) -> dict[str, Any]:
    """Names an entry and its parts, with means over its seeds."""
    names = ("auroc_of_others", "auroc_by_disagreement")
    areas: dict[str, list[methods_scores.Area]] = {}
    for seed in one.seeds:
        for name, area in seed.areas.items():
            areas.setdefault(name, []).append(area)
    return {
        "entry": one.name,
        "networks": one.networks,
        "length": one.length,
        "seeds": len(one.seeds),
        "failed_seeds": one.failed,
        "validation": one.validation,
        "raw": _means([seed.test for seed in one.seeds]),
        "calibrated": _means([seed.calibrated for seed in one.seeds]),
        **_means([{name: getattr(seed, name) for name in names} for seed in one.seeds]),
        "auroc_intervals": {name: area_interval(found) for name, found in areas.items()},
    }


def _by(known: Sequence[Entry], score: str, best: str) -> dict[str, dict[str, Any]]:
    """A score of each entry with its interval, and how far it is behind the best."""
    rows = {one.name: one.rows(score) for one in known}
    beside = behind(rows, best, score, float(rows[PLAIN].mean()))
    found = {}
    for name, each in rows.items():
        value, *ends = interval(each)
        found[name] = {"value": value, "of_it": _finite(*ends), **beside[name]}
    return found


def under_shift(known: Sequence[Entry], score: str) -> dict[str, dict[str, Any]]:
    """The scores of shifted rows, by entry; empty where there are none.

    Returns:
        `shifted`: the scores of the seeds, means, and that of `score` with its interval, beside
        that of the plain network; `by_kind`: the score that decides for each kind of shift.
    """
    if any(SHIFTED not in seed.terms for one in known for seed in one.seeds):
        return {}
    rows = {one.name: one.rows(SHIFTED) for one in known}
    beside = behind(rows, PLAIN, score, float(rows[PLAIN].mean()))
    found = {}
    for one in known:
        mean, *ends = interval(rows[one.name])
        high = beside[one.name]["interval"][1]
        if high is not None and high < 0:
            beside[one.name]["verdict"] = BETTER
        shifted = {"value": mean, "of_it": _finite(*ends), **beside[one.name]}
        shifted |= _means([seed.shifted for seed in one.seeds])
        found[one.name] = {SHIFTED: shifted, "by_kind": means_by_kind(rows[one.name])}
    return found


def means_by_kind(terms: np.ndarray) -> list[float]:
    """The means of terms of shifted rows [..., N], by the kind of shift."""
    return [float(terms[..., k::NUM_KINDS].mean()) for k in range(NUM_KINDS)]


def _means(found: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    means: dict[str, float | None] = {}
    for name in found[0]:
        values = [value for one in found if (value := one[name]) is not None]
        means[name] = statistics.fmean(values) if values else None
    return means
