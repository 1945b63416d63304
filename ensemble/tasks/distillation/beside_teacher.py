"""What a network has kept of the ensemble that it learned from, and what it saves."""

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy

from ensemble.metrics.analytic_intervals import Interval, mean_interval
from ensemble.scoring.sections import member_terms, score_split, terms_of, values_in
from ensemble.scoring.view import View
from ensemble.source import Source, SplitInputs
from ensemble.tasks.distillation.teacher import Ensemble, num_parameters

_SPLITS = ("test", "validation")  # The most telling first.
_PARTS = ("total", "standard_deviation", "aleatoric", "epistemic")
"""The scores of which the uncertainty of predictions is made."""
_NUM_TIMED = 1024  # Examples.
_NUM_ROUNDS = 5


def compare(source: Source, teacher: Ensemble, student: Ensemble) -> dict[str, Any]:
    """Scores both on the same split, and measures how fast they are here.

    Args:
        source: of the examples.
        teacher: that was learned from.
        student: that has learned.

    Returns:
        `teacher` and `student`: `num_networks`, `num_parameters` and `examples_per_second`.
        `speedup`: the ratio of the rates. Where a split is held out, also its name, `split`; the
        `scores` of both; `mean_member`, the teacher's members' mean scores; and `rank_correlation`,
        Spearman's, of the uncertainties of both, part by part: None where one is constant;
        `nll_over_mean_member`, a paired 95% interval over the examples, nats, of the student's NLL
        less that of the average member.
    """
    split = next((name for name in _SPLITS if name in source.sizes), "train")
    inputs = source.read(split, slice(0, _NUM_TIMED)).inputs
    timed = np.resize(inputs, (_NUM_TIMED, *inputs.shape[1:]))  # Again, where there are fewer.
    both = {"teacher": teacher, "student": student}
    rates = _examples_per_second(both, timed)
    found: dict[str, Any] = {
        name: {
            "num_networks": one.fitted.num_sets,
            "num_parameters": num_parameters(one),
            "examples_per_second": rates[name],
        }
        for name, one in both.items()
    }
    found["speedup"] = rates["student"] / rates["teacher"]
    if split not in _SPLITS:
        return found
    targets, uncertainties, views = source.targets(split), {}, {}
    for name, one in both.items():
        said = one.predict_members(SplitInputs(source, split))
        views[name] = said.view(one.likelihood, targets)
        section = score_split(views[name], intervals=False)
        found[name]["scores"] = values_in(section)
        if one is teacher:
            found["mean_member"] = values_in(section, "mean")
        prediction = one.likelihood.prediction(said.arrays, None)
        uncertainties[name] = {
            part: getattr(prediction, part) for part in _PARTS if hasattr(prediction, part)
        }
    found["split"] = split
    found["rank_correlation"] = _rank_correlations(**uncertainties)
    found["nll_over_mean_member"] = nll_over_mean_member(views["student"], views["teacher"])
    return found


def nll_over_mean_member(student: View, teacher: View) -> Interval:
    """A paired 95% interval, nats: the student's NLL less that of the teacher's average member."""
    return mean_interval(terms_of(student, "nll") - member_terms(teacher, "nll").mean(axis=0))


def _rank_correlations(
    teacher: Mapping[str, np.ndarray], student: Mapping[str, np.ndarray]
) -> dict[str, float | None]:
    """Spearman's correlation of what both have, [N] each."""
    found: dict[str, float | None] = {}
    for part in teacher:
        ranks = [scipy.stats.rankdata(one[part]) for one in (teacher, student)]
        is_constant = min(map(np.ptp, ranks)) == 0
        found[part] = None if is_constant else float(np.corrcoef(*ranks)[0, 1])
    return found


def _examples_per_second(ensembles: Mapping[str, Ensemble], inputs: np.ndarray) -> dict[str, float]:
    """The rates of the fastest of some rounds, on all devices that each ensemble lies on.

    Each round measures all in turn, so that what else the machine does meets them alike.
    """
    best = dict.fromkeys(ensembles, math.inf)
    for k in range(1 + _NUM_ROUNDS):
        for name, one in ensembles.items():
            began = time.perf_counter()
            one.member_arrays(inputs)
            seconds = time.perf_counter() - began
            best[name] = min(best[name], seconds if k else math.inf)  # The first one compiles.
    return {name: len(inputs) / seconds for name, seconds in best.items()}
