"""Thresholds of abstention, where the true error among accepted inputs is known."""

import numpy as np
from numpy.typing import NDArray

from ensemble import metrics
from ensemble.evaluation import thresholds
from ensemble.evaluation.questions import doubts
from ensemble.scoring.view import ClassView
from simulations.settings import named
from simulations.statement import VERDICT, Outcome, Replicate, Statement

NUM_INPUTS = 20_000

SPREADS = ("easy", "even", "saturated", "few levels")
SHAPES = (
    "calibrated",
    "overconfident",
    "just too many, everywhere",
    "just too many, on the whole",
    "reversed",
    "reversed, few",
    "bumps",
    "errors in the middle",
    "hard",
)
SIZES = ((0.05, 150), (0.2, 60), (0.05, 1000), (0.01, 2000))


def doubts_of(spread: str) -> NDArray:
    """Doubts of equally probable inputs, the least first."""
    position = (np.arange(NUM_INPUTS) + 0.5) / NUM_INPUTS
    match spread:
        case "easy":
            return np.sort(10 ** (-6 + 6 * position) * 0.9)
        case "even":
            return 0.9 * position
        case "saturated":  # Nine of twenty have the same confidence.
            return np.where(position < 0.45, 1e-9, 0.9 * position)
        case "few levels":
            return np.ceil(7 * position) / 8
    raise ValueError(spread)


def errors_of(doubts: NDArray, shape: str, max_error: float) -> NDArray:
    """True probability of an error at each doubt, by how well doubts tell it."""
    rank = np.argsort(np.argsort(doubts)) / len(doubts)
    match shape:
        case "calibrated":
            return doubts
        case "overconfident":
            return np.minimum(5 * doubts, 1)
        case "just too many, everywhere":  # The hardest: whatever is accepted breaks the promise.
            return np.full(len(doubts), 1.001 * max_error)
        case "just too many, on the whole":
            return 2.002 * max_error * rank
        case "reversed":
            return 2.002 * max_error * (1 - rank)
        case "reversed, few":
            return np.where(rank < 0.3, 1.5 * max_error, 0.5 * max_error)
        case "bumps":
            return max_error * (1.01 + np.sin(12 * rank))
        case "errors in the middle":
            return np.where(np.abs(rank - 0.5) < 0.1, 5.2 * max_error, 0.0)
        case "hard":
            return 0.2 + 0.7 * rank
    raise ValueError(shape)


class _Inputs:
    """Doubts, true probabilities of errors, and the error among the n least doubtful."""

    def __init__(self, spread: str, shape: str, max_error: float) -> None:
        self.doubts = doubts_of(spread)
        self.probability = errors_of(self.doubts, shape, max_error)
        self.true_error = np.cumsum(self.probability) / np.arange(1, NUM_INPUTS + 1)

    def draw(self, rng: np.random.Generator, num_examples: int) -> tuple[NDArray, NDArray]:
        """Doubts, and whether the prediction errs, [N] each."""
        drawn = rng.integers(NUM_INPUTS, size=num_examples)
        return self.doubts[drawn], rng.random(num_examples) < self.probability[drawn]

    def error_below(self, threshold: float) -> float:
        """True error of what a threshold accepts."""
        return float(self.true_error[np.searchsorted(self.doubts, threshold) - 1])


def promise(spread: str, shape: str, sizes: tuple[tuple[float, int], ...] = SIZES) -> Replicate:
    """Whether the true error among accepted inputs exceeds the wanted one; by size."""
    cases = [(e, n, _Inputs(spread, shape, e)) for e, n in sizes]

    def replicate(rng: np.random.Generator) -> Outcome:
        broken: dict[str, bool | None] = {}
        for max_error, num_examples, inputs in cases:
            part = f"{100 * max_error:g}% of {num_examples}"
            try:
                fitted = metrics.fit_abstention(
                    metrics.Rule(metrics.MAX_ERROR, max_error), *inputs.draw(rng, num_examples)
                )
            except ValueError:
                broken[part] = None
            else:
                broken[part] = inputs.error_below(fitted.threshold) > max_error
        return broken

    return replicate


def sentence(spread: str, shape: str, max_error: float, num_examples: int) -> Replicate:
    """Whether the error rate that is guaranteed, the least that is proved, is exceeded."""
    inputs = _Inputs(spread, shape, max_error)
    rules = [metrics.Rule.parse(rule) for rule in ClassView.rules]

    def replicate(rng: np.random.Generator) -> Outcome:
        held_out, test = (inputs.draw(rng, num_examples) for _ in range(2))
        sections = [thresholds.score_rule(test, held_out, rule) for rule in rules]
        found = doubts.abstention({}, sections)
        if found.code == "abstention.none_proved":
            return {"promise": None}
        wanted = float(str(found.numbers["max_error"]))
        (chosen,) = [one for one in sections if one["rule"] == f"{metrics.MAX_ERROR}={wanted:g}"]
        return {"promise": inputs.error_below(chosen["threshold"]) > wanted}

    return replicate


_cases = named("spread shape max_error num_examples")

STATEMENTS = (
    Statement(
        name="abstention.promise",
        claim="With 95% confidence it errs on at most this share of what it accepts",
        over="calibration examples",
        made_by=(
            "ensemble.metrics.abstention.fit_abstention",
            "ensemble.metrics.abstention.error_bound",
        ),
        settings={
            f"{spread}; {shape}": _cases(spread, shape) for spread in SPREADS for shape in SHAPES
        },
        prepare=promise,
        kind=VERDICT,
    ),
    Statement(
        name="abstention.sentence",
        claim="With 95% confidence it errs on at most the least wanted share that is proved",
        over="calibration examples",
        made_by=("ensemble.evaluation.questions.doubts.abstention",),
        settings={
            "150 examples, calibrated": _cases("easy", "calibrated", 0.05, 150),
            "150 examples, 5% everywhere": _cases("even", SHAPES[2], 0.05, 150),
            "400 examples, 2% everywhere": _cases("even", SHAPES[2], 0.02, 400),
            "1000 examples, 1% everywhere": _cases("saturated", SHAPES[2], 0.01, 1000),
            "1000 examples, bumps": _cases("even", "bumps", 0.02, 1000),
            "1000 examples, overconfident": _cases("easy", "overconfident", 0.05, 1000),
            "2000 examples, reversed": _cases("few levels", "reversed", 0.02, 2000),
        },
        prepare=sentence,
        kind=VERDICT,
    ),
)
