"""Scores of members together, raw and calibrated, as methods.py keeps them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from methods_others import OTHERS, SHIFTED

SPLITS = ("validation", "calibration", "test")
_NOTHING = 1e-9
"""Less mutual information, or variance of means, is rounding."""
_CLASS_SCORES, _NUMBER_SCORES = ("nll", "accuracy", "brier", "ece"), ("crps", "rmse", "nll")


def deciding_value(view: Any) -> float:
    """The score by which members are chosen."""
    return _value(view, _deciding(view))


def _deciding(view: Any) -> str:
    from ensemble.search.verdicts import deciding

    return str(deciding(view))


def _value(view: Any, score: str) -> float:
    from ensemble.scoring.sections import values_of

    return float(values_of(view, [score])[score])


def _values(view: Any, names: Sequence[str]) -> dict[str, float | None]:
    return {name: _value(view, name) for name in names}


class Area(NamedTuple):
    """An AUROC: how often the second of two kinds of rows is higher.

    Attributes:
        value: of it.
        variance: over rows.
        weight: by how much one more row could move it.
    """

    value: float
    variance: float
    weight: float


class Scores(NamedTuple):
    """One or more networks together, scored.

    Attributes:
        score: that decides.
        factor: that calibrates; 1 where the calibration split cannot tell it.
        validation: the score that decides, calibrated.
        test: scores of the test split.
        calibrated: the same after the factor.
        shifted: the same of shifted rows, if there are any.
        auroc_of_others: how often the entropy of classes, or the variance of a number, is larger
            for rows unlike the data than for those that test; None: there are none.
        auroc_by_disagreement: the same by what networks or draws say differently: their mutual
            information, or the variance of their means; None: nothing here can disagree.
        terms: [N] of each calibrated score that is compared, by its name; of the score that decides
            also those of shifted rows.
        areas: the AUROCs that there are, by name; that of hits and errors is of the raw scores.
    """

    score: str
    factor: float
    validation: float
    test: dict[str, float | None]
    calibrated: dict[str, float | None]
    shifted: dict[str, float | None]
    auroc_of_others: float | None
    auroc_by_disagreement: float | None
    terms: dict[str, np.ndarray]
    areas: dict[str, "Area"]


def scored(views: Mapping[str, Any], which: Sequence[int] | None = None) -> Scores:
    """Scores the mixture of some members.

    Args:
        views: by split, of all members.
        which: of these; None: all.
    """
    from ensemble.scoring.score import scores_of
    from ensemble.search.verdicts import SECOND

    some = {split: one if which is None else one.members(which) for split, one in views.items()}
    factor = _factor_of(some["calibration"])
    score = _deciding(some["validation"])
    calibrated = {
        split: one if factor == 1 else one.with_factor(factor)
        for split, one in some.items()
        if split != "calibration"
    }
    names = _CLASS_SCORES if score == "nll" else _NUMBER_SCORES
    raw, after = _values(some["test"], names), _values(calibrated["test"], names)
    areas = _areas(some, score)
    values = {name: area.value for name, area in areas.items()}
    if score == "nll":
        raw["auroc_of_errors"] = values.get("auroc_of_errors")
    measured = {name: ("test", name) for name in (score, SECOND[score])}
    shifted: dict[str, float | None] = {}
    if SHIFTED in calibrated:
        shifted = _values(calibrated[SHIFTED], names)
        measured[SHIFTED] = (SHIFTED, score)
    terms = {}
    for name, (split, rule) in measured.items():
        view = calibrated[split]
        of_rows = np.asarray(scores_of(view)[rule].known_terms(view)[0])
        terms[name] = of_rows if of_rows.ndim == 1 else of_rows[:, 0]  # Then [:, 1] are hits.
    return Scores(
        score,
        factor,
        validation=_value(calibrated["validation"], score),
        test=raw,
        calibrated=after,
        shifted=shifted,
        auroc_of_others=values.get("auroc_of_others"),
        auroc_by_disagreement=values.get("auroc_by_disagreement"),
        terms=terms,
        areas=areas,
    )


def _areas(views: Mapping[str, Any], score: str) -> dict[str, Area]:
    """The AUROCs of some members, without those that one side has no rows for."""
    found: dict[str, Area | None] = {}
    test = views["test"]
    if score == "nll":
        hits = test.hits == 1
        found["auroc_of_errors"] = _area(*(-test.confidence[one] for one in (hits, ~hits)))
    if OTHERS in views:
        told = [views[one].uncertainties() for one in ("test", OTHERS)]
        total, apart = (
            ("entropy", "mutual_information") if score == "nll" else ("total", "epistemic")
        )
        found["auroc_of_others"] = _area(*(one[total] for one in told))
        if max(one[apart].max() for one in told) >= _NOTHING:
            found["auroc_by_disagreement"] = _area(*(one[apart] for one in told))
    return {name: area for name, area in found.items() if area is not None}


def chosen_by(views: Mapping[str, Any], which: Sequence[int]) -> dict[str, Any]:
    """The scores of trials by which the best is chosen."""
    some = {split: views[split].members(which) for split in ("validation", "calibration")}
    factor, score = _factor_of(some["calibration"]), _deciding(some["validation"])
    view = some["validation"]
    after = _value(view if factor == 1 else view.with_factor(factor), score)
    return {"score": score, "factor": factor, "validation": after}


def scores_of(views: Mapping[str, Any], which: Sequence[int]) -> dict[str, Any]:
    """The scores of some members together, JSON-ready."""
    found = scored(views, which)
    return {name: one for name, one in found._asdict().items() if name not in ("terms", "areas")}


def _factor_of(view: Any) -> float:
    from ensemble.search.cells import factor_of

    return float(factor_of(view))


def _area(lower: np.ndarray, higher: np.ndarray) -> Area | None:
    """How often the second are higher than the first; None where one side has none."""
    from ensemble.metrics import rank

    if not len(lower) or not len(higher):
        return None
    ranked = rank(lower, higher)
    weight = 1 / min(len(lower), len(higher))
    return Area(ranked.scores()["auroc"], ranked.auroc_variance(), weight)


def weighted(views: Mapping[str, Any]) -> dict[str, Any]:
    """Members with weights that validation rows choose, by greedy selection."""
    from ensemble.evaluation.greedy import choose
    from ensemble.scoring.sections import member_terms

    split = views["validation"]
    counts = choose(-member_terms(split, "nll"), [1] * split.num_members)
    which = np.flatnonzero(counts)
    shares = counts[which] / counts.sum()
    return {
        name: dataclasses.replace(one.members(which), weights=shares) for name, one in views.items()
    }
