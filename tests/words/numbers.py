"""Sentences of the evaluation of predicted numbers, and of their quantiles."""

from collections.abc import Iterator

from ensemble.evaluation.numbers import number_verdict as verdict
from ensemble.evaluation.quantiles import quantile_verdict
from ensemble.metrics.abstention import ACCEPT_ALL

GROUPS = {"over_groups": "patient"}
COUNTS = {"is_of_counts": True}
FEW_GROUPS = {**GROUPS, "num_groups": 4}


def make_test(coverage=0.9, half_width=0.02, p_value=0.5, num_examples=1000, rmse=2.0):
    """The section `test` of an evaluation, of such errors and such intervals."""
    return {
        "num_examples": num_examples,
        "ensemble": {"rmse": rmse, "nll": 1.0, "coverage_90": coverage, "width_90": 3.0},
        "mean": {"rmse": 2.5, "nll": 1.25},
        "interval": {
            "rmse": (rmse - 0.2, rmse + 0.2),
            "coverage_90": (coverage - half_width, coverage + half_width),
        },
        "pit": {"distance": 0.02, "p_value": p_value},
    }


def simple(rmse, is_told=True):
    """A simpler predictor with such an RMSE."""
    interval = (rmse - 2.3, rmse - 1.7) if is_told else None
    return {"ensemble": {"rmse": rmse}, "excess_interval": {"rmse": interval}}


def shifted(rmse, ratio):
    """A shift with such an RMSE, and such an interval of its ratio."""
    scores = {"rmse": [rmse] * 6, "coverage_90": [0.8] * 6}
    return {"ensemble": scores, "rmse_ratio_interval": [ratio] * 5}


def _without_intervals(test):
    return {**test, "interval": dict.fromkeys(test["interval"])}


TRUST = {
    "right": make_test(),
    "one_of_two_tests_fails": make_test(p_value=0.03),
    "too_sure": make_test(coverage=0.8),
    "too_cautious": make_test(coverage=0.96),
    "too_cautious_and_wrong": make_test(coverage=0.96, p_value=0.001),
    "counts_hold_their_ends": make_test(coverage=0.96) | COUNTS,
    "wrong_pit": make_test(p_value=0.001),
    "too_small": make_test(half_width=0.07),
    "groups_right": make_test(p_value=1e-9) | GROUPS,  # No p-value of single rows.
    "groups_too_sure": make_test(coverage=0.8) | GROUPS,
    "groups_too_cautious": make_test(coverage=0.96) | GROUPS,
    "groups_of_counts": make_test(coverage=0.96) | GROUPS | COUNTS,
    "groups_wide": make_test(coverage=0.8, half_width=0.2) | GROUPS,
    "few_examples": make_test(num_examples=20),
    "few_groups": _without_intervals(make_test(coverage=0.5)) | FEW_GROUPS,
}
BESIDE = {
    "better": simple(4.0),
    "not_told_which": simple(2.1),
    "worse": simple(1.0),
    "few_errors_decide": simple(4.0, is_told=False),
    "only_the_mean": {"reason": "not available"},
}
ADVICE = {"better": (-0.2, -0.1), "not_told": (-0.1, 0.1), "worse": (0.1, 0.2), "too_few": None}
SHIFT = {"harms": (1.1, 1.4), "not_told": (0.98, 1.2), "harmless": (0.98, 1.04), "tail": None}
UNCERTAINTY = {"more": (0.2, 0.4), "less": (-0.4, -0.2), "not_told": (-0.1, 0.3)}


def make_quantiles(held, excess, correlation, num_examples=300, **test):
    """The evaluation of quantiles whose bands of 90% hold such a share."""
    ends = (held - 0.02, held + 0.02)
    middle = None if correlation is None else sum(correlation) / 2
    simpler = {"ensemble": {"pinball": 1.2}, "excess_interval": {"pinball": excess}}
    return {
        "members": [0, 1],
        "config": {},
        "test": {
            "num_examples": num_examples,
            "ensemble": {"coverage_90": held, "width_90": 3.0, "pinball": 1.0},
            "mean": {"pinball": 1.1},
            "interval": {"coverage_90": ends, "pinball": (0.9, 1.1)},
            "together": {"coverage_90": ends},
            **test,
        },
        "simple": {"least_squares": simpler, "constant": {"reason": "not available"}},
        "conformal": {"90": {"coverage": held, "coverage_range": [0.85, 0.95], "mean_width": 4.0}},
        "uncertainty": {"rank_correlation": middle, "interval": correlation},
        "out_of_distribution": {},
    }


QUANTILES = {
    "right": make_quantiles(0.9, (0.1, 0.3), UNCERTAINTY["more"]),
    "too_narrow": make_quantiles(0.8, (-0.3, -0.1), UNCERTAINTY["less"]),
    "too_wide": make_quantiles(0.97, (-0.1, 0.1), UNCERTAINTY["not_told"]),
    "all_alike": make_quantiles(0.9, None, None),
    "few_examples": make_quantiles(0.9, None, None, num_examples=20),
    "few_groups": make_quantiles(
        0.9, None, None, interval={"coverage_90": None, "pinball": None}, **FEW_GROUPS
    ),
}


def cases() -> Iterator[tuple[str, str]]:
    """Every case, and what is said in it."""
    few = _without_intervals(make_test(coverage=0.5)) | FEW_GROUPS
    quality = {"tail": _without_intervals(make_test()), "few_groups": few}
    yield "number_quality.several", verdict.quality(make_test(), 4)
    for case, test in {"one": make_test(), **quality}.items():
        yield f"number_quality.{case}", verdict.quality(test, 1)
    for case, test in TRUST.items():
        yield f"number_trust.{case}", verdict.trust(test)
    for case, line in BESIDE.items():
        both = {"least_squares": line, "constant": simple(9.0)}
        yield f"beside.{case}", verdict.beside(make_test(), both)
    untold = dict.fromkeys(("least_squares", "constant"), simple(9.0, is_told=False))
    yield "beside.few_groups", verdict.beside(few, untold)
    yield "beside.no_data", verdict.beside(make_test(), {key: {"reason": ""} for key in untold})
    for case, change in ADVICE.items():
        section = {"value": 1.4, "on_folds": change, "ensemble": {"nll": 0.8, "coverage_90": 0.9}}
        yield f"scale.{case}", verdict.advice(make_test(), section)
    for case, ratio in SHIFT.items():
        sections = {"noise": shifted(3.0, ratio), "none": shifted(2.0, (0.9, 1.0))}
        yield f"number_shift.{case}", verdict.shift(sections)
    for case, held in {"as_expected": 0.9, "outside": 0.7}.items():
        one = {"coverage": held, "coverage_range": [0.8, 0.95], "mean_width": 4.0}
        sections = {"distance": {"reason": "no width"}, "quantiles": one}
        yield f"conformal.{case}", verdict.conformal(sections, make_test())
    for case, interval in UNCERTAINTY.items():
        section = {"rank_correlation": sum(interval) / 2, "interval": interval}
        yield f"uncertainty.{case}", verdict.uncertainty(section)
    for case, threshold in {"all": ACCEPT_ALL, "some": 0.4}.items():
        test = {"num_accepted": 80, "coverage": 0.8, "error": 0.1, "interval": (0.05, 0.2)}
        section = {"rule": "max_error=0.2", "tolerance": 1.5, "max_width": 3.2, "test": test}
        unproved = {"rule": "max_error=0.05", "reason": "too few"}
        sections = [unproved, {**section, "threshold": threshold}]
        yield f"number_abstention.accepts_{case}", verdict.abstention(sections)
    yield "number_abstention.unproved", verdict.abstention([unproved])
    yield "uncertainty.all_alike", verdict.uncertainty({"rank_correlation": None})
    censored = {"num_censored": 50, "coverage_bounds": {"coverage_90": (0.7, 0.95)}}
    yield "annotations", verdict.annotations({**make_test(), "num_measured": 20, **censored})
    for case, evaluation in QUANTILES.items():
        yield f"quantiles.{case}", quantile_verdict.verdict(evaluation)
