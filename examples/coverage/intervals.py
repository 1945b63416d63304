"""Finds where a 90% interval holds 90% of new targets, for three methods on many generated data
sets.

On average over the inputs that it was calibrated at, an interval can hold what it says, and hold
far less where there are no data. Here the truth is known, so that coverage is found at every input.
"""

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.special
from numpy.typing import NDArray

from ensemble.draws import diagnostics
from ensemble.metrics import mean_interval
from ensemble.metrics.number_calibration import conformal_quantile
from examples.coverage import known_truth
from examples.coverage.blocks import Learned, learn
from examples.coverage.fits import (
    ENSEMBLE,
    METHODS,
    NETWORK,
    NUM_HELD_OUT,
    NUM_MEMBERS,
    POSTERIOR,
    Fit,
    Job,
)
from examples.coverage.known_truth import EDGE, FAR, FROM_PRIOR, GAP, NUM_EXAMPLES, TRUTHS, WAVES
from examples.coverage.picture import Example, Line
from examples.coverage.picture import draw as draw_coverage

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVEL = 0.9
PLAIN, CONFORMAL = "plain", "conformal"
VARIANTS = (PLAIN, CONFORMAL)
ENDS = ((1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2)
POINTS = np.linspace(-FAR, FAR, 61)
BETWEEN = {"inside": (GAP, EDGE), "gap": (0.0, GAP), "beyond": (EDGE, FAR)}
"""Distances from zero of inputs where there are data, between them, and outside."""
MAX_RHAT = 1.1
NAMES = {
    NETWORK: "one network",
    ENSEMBLE: f"ensemble of {NUM_MEMBERS}",
    POSTERIOR: "posterior",
}
TITLES = {FROM_PRIOR: "from the prior", WAVES: "of waves"}
_NAME, _CELL = 22, 26  # Columns of the table.


def _weights(near: float, far: float) -> NDArray:
    """Weights [G] of the mean over inputs so far from zero, by the trapezoidal rule."""
    middles = np.abs(POINTS[1:] + POINTS[:-1]) / 2
    cells = (near < middles) & (middles < far)
    weights = np.append(cells, 0.0) + np.insert(cells.astype(float), 0, 0.0)
    return weights / weights.sum()


REGIONS = {name: _weights(*ends) for name, ends in BETWEEN.items()}


class Found(NamedTuple):
    """What was found of one truth.

    Attributes:
        coverage: by method and variant, the probability [S, G] that a new target at each point is
            in the interval that was made from data set s.
        width: by method and variant, [S, G] of these intervals.
        example: of the first data set: its inputs, targets, `truth` and `intervals`.
        chains: how many posteriors were sampled, and whether their chains agree.
        num_failed: members that were not finite at some step.
    """

    coverage: dict[tuple[str, str], NDArray]
    width: dict[tuple[str, str], NDArray]
    example: dict[str, Any]
    chains: dict[str, Any]
    num_failed: int


def run(
    seed: int, num_data_sets: int, note: Callable[[int], None] = lambda done: None
) -> dict[str, Found]:
    """Learns all data sets by all methods, and finds what their intervals hold.

    Every data set is learned twice: whole, and without the examples that conformal intervals are
    fitted on.

    Args:
        seed: of everything.
        num_data_sets: S of each truth.
        note: is told how many of `num_jobs` have been done.

    Returns:
        What was found, by truth.
    """
    jobs = _jobs(num_data_sets)
    learned = learn(seed, jobs, POINTS, np.array(ENDS), note)
    parts = [
        learned.part(slice(first, first + num_data_sets))
        for first in range(0, len(jobs), num_data_sets)
    ]
    return {truth: _find(*parts[2 * k : 2 * k + 2]) for k, truth in enumerate(TRUTHS)}


def num_jobs(num_data_sets: int) -> int:
    """How often `run` learns a data set."""
    return len(_jobs(num_data_sets))


def _jobs(num_data_sets: int) -> list[Job]:
    """Lists for each truth all data sets as a whole, and then all without the held-out examples."""
    return [
        Job(k, number, num_learned)
        for k in range(len(TRUTHS))
        for num_learned in (NUM_EXAMPLES, NUM_EXAMPLES - NUM_HELD_OUT)
        for number in range(num_data_sets)
    ]


def _find(whole: Learned, split: Learned) -> Found:
    """What the intervals of one truth hold, which were made with and without held-out examples."""
    made = {
        (method, variant): make(method)
        for method in METHODS
        for variant, make in (
            (PLAIN, functools.partial(_plain, whole)),
            (CONFORMAL, functools.partial(_conformal, split)),
        )
    }
    likelihood, curve = known_truth.make_model().likelihood, whole.fit.curve

    def coverage(intervals: Intervals) -> NDArray:
        low, high = (
            likelihood.cdf(curve.truth, end, np, scipy.special)
            for end in (intervals.low, intervals.high)
        )
        return np.maximum(high - low, 0)

    example = {
        "inputs": curve.inputs[0],
        "targets": curve.targets[0],
        "truth": curve.truth["loc"][0],
        "intervals": {name: (one.low[0], one.high[0]) for name, one in made.items()},
    }
    return Found(
        {name: coverage(one) for name, one in made.items()},
        {name: one.widths for name, one in made.items()},
        example,
        _diagnose([whole.fit, split.fit]),
        int(sum(one.fit.num_failed.sum() for one in (whole, split))),
    )


class Intervals(NamedTuple):
    """Ends of intervals [S, G]."""

    low: NDArray
    high: NDArray

    @property
    def widths(self) -> NDArray:
        """[S, G]."""
        return self.high - self.low


def _plain(learned: Learned, method: str) -> Intervals:
    """Central intervals [S, G] of what was learned."""
    low, _, high = learned.ends[method][..., : len(POINTS)]
    return Intervals(low, high)


def _conformal(learned: Learned, method: str) -> Intervals:
    """Split conformal intervals [S, G]: as wide as what was learned, times a factor of the set."""
    low, middle, high = learned.ends[method]
    width, targets = high - low, learned.fit.curve.targets[:, -NUM_HELD_OUT:]
    num_points = len(POINTS)
    scores = np.abs(targets - middle[:, num_points:]) / width[:, num_points:]
    factors = np.array([conformal_quantile(one, LEVEL) for one in scores])[:, None]
    middle, reach = middle[:, :num_points], factors * width[:, :num_points]
    return Intervals(middle - reach, middle + reach)


def _diagnose(learned: list[Fit]) -> dict[str, Any]:
    """Whether the chains of each posterior agree about the function at three inputs.

    Returns:
        `num_posteriors`; `rhat_max` over all of them; `num_above`, with an R-hat above `limit`;
        `num_divergent` draws of `num_draws`.
    """
    traces = np.concatenate([one.trace for one in learned])  # [S, C, T, 3]
    rhat = [
        diagnostics.summarise({str(k): trace[..., k] for k in range(trace.shape[-1])}).rhat_max
        for trace in traces
    ]
    return {
        "num_posteriors": len(rhat),
        "rhat_max": float(np.max(rhat)),
        "limit": MAX_RHAT,
        "num_above": int(np.sum(~(np.array(rhat) <= MAX_RHAT))),
        "num_divergent": int(sum(one.num_divergent.sum() for one in learned)),
        "num_draws": int(traces.shape[0] * traces.shape[1] * traces.shape[2]),
    }


def report(found: Mapping[str, Found], seed: int) -> dict[str, Any]:
    """All numbers, JSON-ready.

    Args:
        found: of `run`.
        seed: that it was given.

    Returns:
        `level`, `points`, `regions` as distances from zero, and in `truths` by truth, method and
        variant: in `regions` the `coverage`, its 95% `interval` and the `mean_width`, and in
        `by_point` lists of `coverage`,
        `low` and `high`. Intervals are over data sets, `metrics.mean_interval`.
    """
    first = next(iter(found.values()))
    return {
        "seed": seed,
        "level": LEVEL,
        "num_data_sets": len(first.coverage[METHODS[0], PLAIN]),
        "num_examples": NUM_EXAMPLES,
        "num_held_out": NUM_HELD_OUT,
        "interval_over": "data sets",
        "points": POINTS.tolist(),
        "regions": {name: list(ends) for name, ends in BETWEEN.items()},
        "truths": {truth: _report_truth(one) for truth, one in found.items()},
    }


def _report_truth(found: Found) -> dict[str, Any]:
    methods: dict[str, Any] = {}
    for (method, variant), coverage in found.coverage.items():
        width = found.width[method, variant]
        by_region = {name: coverage @ weights for name, weights in REGIONS.items()}
        by_point = {str(k): one for k, one in enumerate(coverage.T)}
        ends = {name: mean_interval(one) for name, one in {**by_region, **by_point}.items()}
        methods.setdefault(method, {})[variant] = {
            "regions": {
                name: {
                    "coverage": float(by_region[name].mean()),
                    "interval": list(ends[name]),
                    "mean_width": float((width @ weights).mean()),
                }
                for name, weights in REGIONS.items()
            },
            "by_point": {
                "coverage": coverage.mean(axis=0).tolist(),
                "low": [ends[name][0] for name in by_point],
                "high": [ends[name][1] for name in by_point],
            },
        }
    return {"methods": methods, "chains": found.chains, "num_failed_members": found.num_failed}


def text(content: Mapping[str, Any]) -> str:
    """The table of a report, and what it says of chains and members."""
    number, level = content["num_data_sets"], content["level"]
    lines = [
        f"How often {level:.0%} intervals hold a new noisy target, with a 95% interval over the "
        f"{number} data sets,",
        f"and their mean width. Data lie at {GAP} < |x| < {EDGE:g} (inside). There are none in the "
        "gap between,",
        f"nor beyond, up to |x| = {FAR:g}.",
    ]
    rule = "-" * (_NAME + len(REGIONS) * _CELL)
    for truth, part in content["truths"].items():
        head = "".join(f"{name:>{_CELL}}" for name in REGIONS)
        lines += ["", f"{f'truth {TITLES[truth]}':<{_NAME}}{head}", rule]
        for method in METHODS:
            for variant, one in part["methods"][method].items():
                name = NAMES[method] if variant == PLAIN else "  conformal"
                cells = "".join(_cell(one["regions"][region]) for region in REGIONS)
                lines.append(f"{name:<{_NAME}}{cells}")
        lines += [rule, _on_chains(part)]
    return "\n".join(lines)


def _cell(one: Mapping[str, Any]) -> str:
    low, high = (100 * end for end in one["interval"])
    held = f"{100 * one['coverage']:.1f}% [{low:.1f}, {high:.1f}]"
    return f"{held:>20}{one['mean_width']:>6.2f}"


def _on_chains(part: Mapping[str, Any]) -> str:
    """Whether the posteriors can be believed, and the members."""
    chains, failed = part["chains"], part["num_failed_members"]
    limit, number = chains["limit"], chains["num_posteriors"]
    if chains["num_above"]:
        lines = [
            f"Chains disagree (R-hat above {limit}) in {chains['num_above']} of {number} "
            "posteriors, which count all the same."
        ]
    else:
        lines = [f"Chains agree (R-hat at most {limit}) in all {number} posteriors."]
    lines.append(
        f"The largest R-hat is {chains['rhat_max']:.3f}; {chains['num_divergent']} of "
        f"{chains['num_draws']:,} draws diverged."
    )
    if failed:
        lines.append(f"{failed} members were not finite; their last finite parameters count.")
    return "\n".join(lines)


def draw(found: Mapping[str, Found], content: Mapping[str, Any]) -> "Figure":
    """The picture of a report, above whose curves lie the intervals of the first data set."""
    example = found[FROM_PRIOR].example
    examples = {
        NAMES[method]: Example(
            example["inputs"],
            example["targets"],
            example["truth"],
            *(example["intervals"][method, variant] for variant in VARIANTS),
        )
        for method in METHODS
    }
    lines = {
        NAMES[method]: [
            Line(
                f"truth {TITLES[truth]}" + (", conformal" if variant == CONFORMAL else ""),
                k,
                variant == CONFORMAL,
                **{
                    name: np.array(values)
                    for name, values in part["methods"][method][variant]["by_point"].items()
                },
            )
            for k, (truth, part) in enumerate(content["truths"].items())
            for variant in VARIANTS
        ]
        for method in METHODS
    }
    title = f"Where does {content['level']:.0%} hold?"
    return draw_coverage(POINTS, (GAP, EDGE), content["level"], examples, lines, title)
