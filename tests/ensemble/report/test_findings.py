"""Findings speak where an interval decides, in short sentences, and are silent elsewhere."""

import numpy as np
import pytest
from evaluations import KINDS

from ensemble.errors import InputError
from ensemble.likelihoods.classes import Classes
from ensemble.likelihoods.numbers import Numbers
from ensemble.metrics.abstention import Rule
from ensemble.report.evaluation import Evaluation
from ensemble.report.findings import RULES, find


def calibrated(num_rows=3000, num_members=4, sharpness=2.0, spread=0.0):
    """Classes whose labels are drawn from the prediction; logits are `sharpness` times as far."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(num_rows, 3)) * 1.5
    y = (logits + rng.gumbel(size=logits.shape)).argmax(axis=-1)
    each = sharpness * (logits + spread * rng.normal(size=(num_members, *logits.shape)))
    each -= np.logaddexp.reduce(each, axis=-1, keepdims=True)
    return Classes({"log_probs": each}), y


def normal(num_rows=2000, scale=1.0):
    rng = np.random.default_rng(0)
    means = rng.normal(size=num_rows)
    y = means + rng.normal(size=num_rows)
    loc = np.stack([means, means + 0.01 * rng.normal(size=num_rows)])
    return Numbers({"loc": loc, "scale": np.full_like(loc, scale)}), y


def codes(e, level=None):
    return {one.code for one in e.findings if level in (None, one.level)}


@pytest.mark.parametrize("kind", KINDS)
def test_sentences_are_short_and_have_numbers(kind):
    e = KINDS[kind]()
    assert e.findings
    for one in e.findings:
        assert one.code in RULES
        assert one.level in ("good", "warning", "info")
        assert one.text.endswith(".")
        assert len(one.text.split()) <= 25
        assert one.numbers


def test_confidence_is_judged_by_its_interval():
    assert "calibration" in codes(Evaluation(*calibrated(20_000, sharpness=1.0)), "good")
    e = Evaluation(*calibrated(sharpness=3.0))
    (one,) = find(e, ["calibration"])
    assert one.level == "warning"
    assert "overconfident" in one.text
    assert one.numbers["low"] > 0
    (one,) = find(Evaluation(*calibrated(sharpness=0.3)), ["calibration"])
    assert "underconfident" in one.text
    assert not find(Evaluation(*calibrated(60, sharpness=1.0)), ["calibration"])


def test_intervals_are_judged_by_their_coverage():
    assert not codes(Evaluation(*normal()), "warning")
    for scale, word in ((0.5, "narrow"), (2.0, "wide")):
        (one,) = find(Evaluation(*normal(scale=scale)), ["calibration"])
        assert word in one.text


def test_a_baseline_is_beaten_or_not():
    p, y = calibrated(sharpness=1.0)
    frequencies = np.log(np.bincount(y) / len(y))
    baseline = Classes({"log_probs": np.broadcast_to(frequencies, (1, len(y), 3))})
    (one,) = find(Evaluation(p, y, baselines=[{"a constant": baseline}]), ["baseline"])
    assert one.level == "good"
    (one,) = find(Evaluation(baseline, y, baselines=[{"the ensemble": p}]), ["baseline"])
    assert one.level == "warning"
    assert not find(Evaluation(p, y, baselines=[{"itself": p}]), ["baseline"])


def test_members_are_worth_it_or_not():
    p, y = calibrated(sharpness=1.0, spread=0.7)
    said = [one for one in Evaluation(p, y).findings if one.code == "gain"]
    assert [one.level for one in said] == ["good", "good"]
    same = Classes({"log_probs": np.broadcast_to(p.arrays["log_probs"][:1], (4, len(y), 3))})
    assert "gain" not in codes(Evaluation(same, y))


def test_shift_and_other_inputs():
    p, y = calibrated(sharpness=1.0)
    uniform = Classes({"log_probs": np.full((4, len(y), 3), -np.log(3))})
    wrong = Classes({"log_probs": p.arrays["log_probs"][:, :, ::-1]})
    e = Evaluation(p, y, shifted={"noise": [p, p, wrong, wrong, wrong]}, outside={"noise": p})
    assert {"shift_costs", "shift_overconfidence"} <= codes(e, "warning")
    assert "detection" not in codes(e)  # The same inputs: 0.5 is within the interval.
    e = Evaluation(p, y, shifted={"noise": [p] * 5}, outside={"noise": uniform})
    assert not {"shift_costs", "shift_overconfidence"} & codes(e)
    assert "detection" in codes(e, "info")


def test_few_errors_do_not_say_that_doubt_ranks_them():
    p, _ = calibrated(num_rows=360)
    y = p.labels.copy()
    y[np.argsort(p.confidence)[:5]] += 1
    y %= 3
    assert "ranking" not in codes(Evaluation(p, y))
    y[np.argsort(p.confidence)[:40]] = (p.labels[np.argsort(p.confidence)[:40]] + 1) % 3
    assert "ranking" in codes(Evaluation(p, y), "good")


def test_a_rule_that_is_asked_for_is_told_or_refused():
    p, y = calibrated(num_rows=2000)
    held = calibrated(num_rows=2000)
    rule = Rule.parse("max_error=0.3")
    e = Evaluation(p, y, calibration=held, rules=[rule])
    (one,) = find(e, ["abstention"])
    assert one.text.startswith("By max_error=0.3 it answers")
    assert one.numbers["value"] < 0.3
    with pytest.raises(InputError, match="no calibration split"):
        Evaluation(p, y, rules=[rule]).json()
    with pytest.raises(InputError, match="tolerance"):
        Evaluation(p, y, calibration=held, rules=[Rule.parse("max_error=0.3@2")]).json()


def test_groups_leave_no_interval_where_theirs_are_not_known():
    p, y = calibrated(sharpness=2.0)
    rows = np.arange(len(y)) % 50
    outside = {"wrong": Classes({"log_probs": p.arrays["log_probs"][:, ::-1]})}
    e = Evaluation(p, y, calibration=(p, y), outside=outside)
    assert e.factor_gain.low is not None
    assert e.detection["wrong"]["auroc"].low is not None
    grouped = Evaluation(p, y, calibration=(p, y), outside=outside, groups=rows)
    assert grouped.factor_gain is None
    assert grouped.detection["wrong"]["auroc"] == (e.detection["wrong"]["auroc"].value, None, None)
    assert not {"factor", "detection"} & codes(grouped)
