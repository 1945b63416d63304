"""How often rules of the report speak where there is nothing to say."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from ensemble.report.evaluation import Evaluation
from ensemble.report.findings import find
from simulations import worlds
from simulations.worlds import Arrays, predictive

Make = Callable[[np.random.Generator, int], Evaluation]
_NUM_CLASSES = 5


class Null(NamedTuple):
    """A world in which some findings are false.

    Attributes:
        make: Function from a generator and N to an evaluation.
        false: The levels of findings that are false, by rule.
    """

    make: Make
    false: Mapping[str, tuple[str, ...]]


class Alarm(NamedTuple):
    """How often a rule made a false finding.

    Attributes:
        world: Key of `NULLS`.
        size: Rows of a test split.
        rule: Its name.
        share: Share of the evaluations with a false finding.
        replications: Number of evaluations.
    """

    world: str
    size: int
    rule: str
    share: float
    replications: int


def _labels(rng: np.random.Generator, logits: Arrays) -> Arrays:
    return worlds.draw_labels(rng, np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True))


def calibrated_classes(rng: np.random.Generator, size: int) -> Evaluation:
    """Three equal members, whose probabilities are right; the shifts change nothing."""
    logits = 2 * rng.normal(size=(2 * size, _NUM_CLASSES))
    p = predictive("categorical", np.stack([logits] * 3))
    y = _labels(rng, logits)
    test, held = (p.rows(np.arange(i * size, (i + 1) * size)) for i in (0, 1))
    return Evaluation(
        test, y[:size], calibration=(held, y[size:]), shifted={"none": [test] * 5, "no": [test] * 5}
    )


def calibrated_numbers(rng: np.random.Generator, size: int) -> Evaluation:
    """Three equal members, whose distributions are right."""
    outputs = 0.5 * rng.normal(size=(2 * size, 2))
    p = predictive("gaussian", np.stack([outputs] * 3))
    y = p.mean + p.std * rng.normal(size=2 * size)
    test, held = (p.rows(np.arange(i * size, (i + 1) * size)) for i in (0, 1))
    return Evaluation(test, y[:size], calibration=(held, y[size:]))


def _noisy(rng: np.random.Generator, clean: Arrays, groups: Arrays | None) -> Arrays:
    """Outputs [3, N, K] of one of many ensembles that are equally good."""
    number = len(clean) if groups is None else int(groups.max()) + 1
    noise = rng.normal(size=(3, number, clean.shape[1]))
    return clean + (noise if groups is None else noise[:, groups])


def equal_classes(rng: np.random.Generator, size: int, *, has_groups: bool = False) -> Evaluation:
    """Baselines, another ensemble and shifts are as good as the ensemble on average."""
    groups = rng.integers(size // 15, size=size) if has_groups else None
    clean = 2 * rng.normal(size=(size, _NUM_CLASSES))
    p = [predictive("categorical", _noisy(rng, clean, groups)) for _ in range(6)]
    return Evaluation(
        p[0],
        _labels(rng, clean),
        baselines=[{"one": p[1], "two": p[2]}],
        shifted={"one": [p[3]] * 5, "two": [p[4]] * 5},
        others={"other": p[5]},
        groups=groups,
    )


def equal_groups(rng: np.random.Generator, size: int) -> Evaluation:
    """The same, in groups of about 15 rows."""
    return equal_classes(rng, size, has_groups=True)


def equal_numbers(rng: np.random.Generator, size: int) -> Evaluation:
    """The same of numbers."""
    clean = 0.5 * rng.normal(size=(size, 2))
    p = [predictive("gaussian", _noisy(rng, clean, None) / 2 + clean / 2) for _ in range(4)]
    centre = predictive("gaussian", clean[None])
    y = centre.mean + centre.std * rng.normal(size=size)
    baselines = [{"one": p[1], "two": p[2]}]
    return Evaluation(p[0], y, baselines=baselines, others={"other": p[3]})


def unrelated_classes(rng: np.random.Generator, size: int) -> Evaluation:
    """Errors do not depend on the confidence; other inputs are like those of the test split."""
    clean = rng.normal(size=(2 * size, _NUM_CLASSES))
    p = predictive("categorical", clean + 0.5 * rng.normal(size=(3, 2 * size, _NUM_CLASSES)))
    test = p.rows(np.arange(size))
    outside = p.rows(np.arange(size, 2 * size))
    labels = np.asarray(test.labels)
    other = (labels + rng.integers(1, _NUM_CLASSES, size=size)) % _NUM_CLASSES
    y = np.where(rng.random(size) < 0.8, labels, other)
    return Evaluation(test, y, outside={"alike": outside})


def unrelated_numbers(rng: np.random.Generator, size: int) -> Evaluation:
    """Errors do not depend on the predicted standard deviation."""
    p = predictive("gaussian", 0.5 * rng.normal(size=(1, size, 2)))
    return Evaluation(p, p.median + rng.normal(size=size))


_WARNING = ("warning",)
_EITHER = ("good", "warning")
_OF_EQUALS = {"baseline": _EITHER, "comparison": _EITHER}
_OF_SHIFTS = {"shift_costs": _WARNING, "shift_overconfidence": _WARNING}
NULLS: Mapping[str, Null] = {
    "calibrated classes": Null(
        calibrated_classes,
        {
            "gain": _EITHER,
            "calibration": _WARNING,
            "conformal": _WARNING,
            **_OF_SHIFTS,
        },
    ),
    "calibrated numbers": Null(
        calibrated_numbers,
        {
            "gain": _EITHER,
            "calibration": _WARNING,
            "conformal": _WARNING,
        },
    ),
    "classes, temperature 1": Null(calibrated_classes, {"factor": _WARNING}),
    "numbers, scale 1": Null(calibrated_numbers, {"factor": _WARNING}),
    "equal classes": Null(equal_classes, {**_OF_EQUALS, "shift_costs": _WARNING}),
    "equal classes, groups": Null(equal_groups, {**_OF_EQUALS, "shift_costs": _WARNING}),
    "equal numbers": Null(equal_numbers, _OF_EQUALS),
    "unrelated classes": Null(
        unrelated_classes,
        {"ranking": _EITHER, "detection": ("info", "warning")},
    ),
    "unrelated numbers": Null(unrelated_numbers, {"ranking": _EITHER}),
}
SIZES = (150, 1_500)
NOT_SIMULATED = {
    "quality": "describes, and claims nothing",
    "abstention": "of a calibration split: simulations.chains",
    "several": "each target is an evaluation of its own",
}
"""Rules without a false finding here, and why."""


def simulate(name: str, size: int, replications: int) -> list[Alarm]:
    """Evaluates predictives, and counts the false findings.

    Args:
        name: Key of `NULLS`.
        size: Rows of a test split.
        replications: Number of evaluations.
    """
    null = NULLS[name]
    counts = dict.fromkeys(null.false, 0)
    for number in range(replications):
        evaluation = null.make(np.random.default_rng([size, number]), size)
        found = find(evaluation, null.false)
        for code, levels in null.false.items():
            counts[code] += any(one.code == code and one.level in levels for one in found)
    return [
        Alarm(name, size, key, round(n / replications, 4), replications)
        for key, n in counts.items()
    ]
