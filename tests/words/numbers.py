"""Sentences of the evaluation of predicted numbers, and of their quantiles."""

from collections.abc import Iterator

from run_parts import scores_told

from ensemble.evaluation.questions import calibration, doubts, inputs, quality
from ensemble.metrics.abstention import ACCEPT_ALL
from ensemble.scoring.finding import Finding

GROUPS = {"over_groups": "patient"}
COUNTS = {"is_of_counts": True}
FEW_GROUPS = {**GROUPS, "num_groups": 4}


def make_test(coverage=0.9, half_width=0.02, p_value=0.5, num_examples=1000, rmse=2.0):
    """Sections `test` and `facts` of an evaluation, of such errors and such intervals."""
    values = {"rmse": rmse, "nll": 1.0, "coverage_90": coverage, "width_90": 3.0}
    intervals = {
        "rmse": (rmse - 0.2, rmse + 0.2),
        "coverage_90": (coverage - half_width, coverage + half_width),
    }
    scores = scores_told(values, interval=intervals, mean={"rmse": 2.5, "nll": 1.25})
    facts = {"pit": {"distance": 0.02, "p_value": p_value}}
    return {"num_rows": num_examples, "scores": scores}, facts


def of(sections, test=(), facts=()):
    """The same sections with other entries."""
    return sections[0] | dict(test), sections[1] | dict(facts)


def simple(rmse, is_told=True):
    """A simpler predictor with such an RMSE."""
    interval = (rmse - 2.3, rmse - 1.7) if is_told else None
    return {"scores": scores_told({"rmse": rmse}), "excess_interval": {"rmse": interval}}


def shifted(rmse, ratio):
    """A shift with such an RMSE, and such an interval of its ratio."""
    scores = {"rmse": [rmse] * 6, "coverage_90": [0.8] * 6}
    return {"scores": scores, "change": {"rmse": [ratio] * 5}}


def _without_intervals(sections):
    scores = {name: {**one, "interval": None} for name, one in sections[0]["scores"].items()}
    return of(sections, {"scores": scores})


TRUST = {
    "right": make_test(),
    "one_of_two_tests_fails": make_test(p_value=0.03),
    "too_sure": make_test(coverage=0.8),
    "too_cautious": make_test(coverage=0.96),
    "too_cautious_and_wrong": make_test(coverage=0.96, p_value=0.001),
    "counts_hold_their_ends": of(make_test(coverage=0.96), facts=COUNTS),
    "wrong_pit": make_test(p_value=0.001),
    "too_small": make_test(half_width=0.07),
    "groups_right": of(make_test(p_value=1e-9), GROUPS),  # No p-value of single rows.
    "groups_too_sure": of(make_test(coverage=0.8), GROUPS),
    "groups_too_cautious": of(make_test(coverage=0.96), GROUPS),
    "groups_of_counts": of(make_test(coverage=0.96), GROUPS, COUNTS),
    "groups_wide": of(make_test(coverage=0.8, half_width=0.2), GROUPS),
    "few_examples": make_test(num_examples=20),
    "few_groups": of(_without_intervals(make_test(coverage=0.5)), FEW_GROUPS),
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


BANDS = {
    "right": {"90": (0.9, 0.02)},
    "too_narrow": {"90": (0.8, 0.02)},
    "too_wide": {"90": (0.97, 0.02)},
    "both": {"90": (0.8, 0.02), "50": (0.7, 0.02)},
    "none": {},
}


def make_bands(num_examples=300, **shares):
    """Sections `test` and `facts` of quantiles, whose bands cover such shares."""
    ends = {f"coverage_{p}": (c - half, c + half) for p, (c, half) in shares.items()}
    values = {f"coverage_{p}": c for p, (c, _) in shares.items()} | {"pinball": 1.0}
    scores = scores_told(values, interval=ends, mean={"pinball": 1.1})
    return {"num_rows": num_examples, "scores": scores}, {"together": ends}


def cases() -> Iterator[tuple[str, str | Finding | list[Finding]]]:
    """Every case, and what is found in it."""
    few = of(_without_intervals(make_test(coverage=0.5)), FEW_GROUPS)
    tail, (usual, _) = _without_intervals(make_test()), make_test()
    for case, (test, _) in {"usual": make_test(), "tail": tail, "few_groups": few}.items():
        yield f"number_quality.{case}", quality.quality(test, "rmse", 4)
    yield "number_quality.one", quality.quality(usual, "rmse", 1)
    joint = {"num_rows": 9, "scores": scores_told({"nll": 1.5}, interval={"nll": (1.0, 2.0)})}
    untold = {"num_rows": 9, "scores": scores_told({"nll": 1.5}, interval={"nll": None})}
    for case, test in {"usual": joint, "untold": untold, "few": {**untold, **FEW_GROUPS}}.items():
        yield f"joint_quality.{case}", quality.quality(test, "nll", 2)
    bands = {"num_rows": 9, "scores": scores_told({"pinball": 1.5}, interval={"pinball": (1, 2)})}
    unsure = {"num_rows": 9, "scores": scores_told({"pinball": 1.5}, interval={"pinball": None})}
    for case, test in {"usual": bands, "untold": unsure, "few": {**unsure, **FEW_GROUPS}}.items():
        yield f"quantile_quality.{case}", quality.quality(test, "pinball", 2)
    for score in ("rmse", "pinball", "nll"):
        for case, value in {"lower": 1.0, "higher": 3.0}.items():
            scores = scores_told({score: value}, mean={score: 2.0})
            yield f"gain_in_{score}.{case}", quality.gain({"scores": scores}, score, 2)
    yield "gain_in_rmse.with_nll", quality.gain(usual, "rmse", 4)
    yield "impossible.targets", quality.impossible({}, float("inf"))
    for case, sections in TRUST.items():
        yield f"number_trust.{case}", calibration.coverage(*sections)
    censored = {"num_censored": 50, "coverage_bounds": {"coverage_90": (0.7, 0.95)}}
    wide = of(make_test(half_width=0.07), facts=censored)
    yield "number_trust.censored", calibration.coverage(*wide)
    for case, line in BESIDE.items():
        both = {"least_squares": line, "constant": simple(9.0)}
        yield f"beside.{case}", quality.baseline(usual, both, "rmse")
    past = {"last_value": simple(1.0), "last_season": simple(2.5)}
    yield "beside.past", quality.baseline(usual, {"constant": simple(9.0), **past}, "rmse")
    untold = dict.fromkeys(("least_squares", "constant"), simple(9.0, is_told=False))
    yield "beside.few_groups", quality.baseline(few[0], untold, "rmse")
    yield "beside.few_examples", quality.baseline({**usual, "num_rows": 9}, untold, "rmse")
    absent = {key: {"reason": ""} for key in untold}
    yield "beside.no_data", quality.baseline(usual, absent, "rmse")
    of_quantiles = {"scores": scores_told({"pinball": 1.2}), "excess_interval": {"pinball": (1, 2)}}
    simpler = {"constant": of_quantiles, "least_squares": of_quantiles}
    yield "beside.quantiles", quality.baseline(usual, simpler, "pinball")
    for case, change in ADVICE.items():
        for word, nll in {"lower": 0.8, "higher": 1.2}.items():
            scores = scores_told({"nll": nll, "coverage_90": 0.9})
            section = {"factor": "scale", "value": 1.4, "on_folds": change, "scores": scores}
            section |= {"num_rows": 60, "nll_change_interval": (-0.1, 0.1)}
            yield f"scale.{case}_{word}", calibration.recalibration(usual, section)
    many = {**section, "on_folds": (-0.002, 0.001)}
    yield "scale.needless", calibration.recalibration(usual, many)
    yield (
        "scale.hurts",
        calibration.recalibration(usual, {**section, "nll_change_interval": (0.1, 0.2)}),
    )
    for word, nll in {"lower": 0.8, "higher": 1.2}.items():
        one = {**section, "on_folds": None, "scores": scores_told({"nll": nll, "coverage_90": 0.9})}
        yield f"scale.groups_{word}", calibration.recalibration({**usual, **GROUPS}, one)
    for case, ratio in SHIFT.items():
        sections = {"noise": shifted(3.0, ratio), "none": shifted(2.0, (0.9, 1.0))}
        yield f"number_shift.{case}", inputs.error_under_shift(usual, sections)
    yield "number_shift.few_groups", inputs.error_under_shift(few[0], sections)
    lower = {"noise": shifted(3.0, (0.7, 0.9)), "none": shifted(2.0, (0.9, 1.2))}
    yield "number_shift.lower", inputs.error_under_shift(usual, lower)
    yield "number_shift.absent", inputs.error_under_shift(usual, {})
    for case, held in {"as_expected": 0.9, "outside": 0.7}.items():
        one = {"coverage": held, "coverage_range": [0.8, 0.95], "mean_width": 4.0, "level": 0.9}
        sections = {"distance": {"reason": "no width"}, "quantiles": one}
        yield f"conformal.{case}", calibration.conformal(sections, usual)
    yield "conformal.bands", calibration.conformal({"95": one, "50": one}, usual)
    for case, interval in UNCERTAINTY.items():
        section = {"rank_correlation": sum(interval) / 2, "interval": interval}
        yield f"uncertainty.{case}", doubts.ranking(usual, section)
    yield "uncertainty.all_alike", doubts.ranking(usual, {"rank_correlation": None})
    yield "uncertainty.groups", doubts.ranking({**usual, **GROUPS}, section)
    yield "uncertainty.few_examples", doubts.ranking({"num_rows": 9}, section)
    for case, threshold in {"all": ACCEPT_ALL, "some": 0.4}.items():
        test = {"num_accepted": 80, "coverage": 0.8, "error": 0.1, "interval": (0.05, 0.2)}
        section = {"rule": "max_error=0.2", "tolerance": 1.5, "max_width": 3.2, "test": test}
        unproved = {"rule": "max_error=0.05", "reason": "too few"}
        sections = [unproved, {**section, "threshold": threshold}]
        yield f"number_abstention.accepts_{case}", doubts.abstention(usual, sections)
    facts = {"num_measured": 20, "distinct_targets": 8, **censored}
    yield "targets.all", calibration.targets(usual, facts)
    for case, shares in BANDS.items():
        test, facts = make_bands(**shares)
        yield f"bands.{case}", calibration.bands(test, facts)
    yield "bands.few_examples", calibration.bands(*make_bands(20, **BANDS["right"]))
    yield "bands.few_groups", calibration.bands({**test, **FEW_GROUPS}, facts)
