"""Every score of every likelihood: by hand, in its mixtures, over groups, and as it was.

`python -m tests.contracts.test_every_score` renews `tests/golden/scores.json`. Read its diff.
"""

import json
import math
import pathlib
import sys
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]  # Also run as a program.

from scored_sets import COUNTS, MADE, NUM_MEMBERS, NUMBERS, of_classes, of_numbers

from ensemble import registry
from ensemble.scoring import combine
from ensemble.scoring.score import Score, declared, score, scores_of
from ensemble.scoring.sections import score_split
from ensemble.scoring.view import ClassView, IntervalView
from ensemble.source import Strata
from ensemble.target_rows import joined
from ensemble.testing import scores

RECORDED = HERE.parent / "golden/scores.json"
WEIGHTS = np.array([1.0, 2.0, 0.5, 0.5])


def view_of(name, **how):
    likelihood, arrays, targets = MADE[name]()
    return likelihood.view(arrays, targets, **how)


def section_of(name):
    """The scores of a set, with intervals over examples, and over 25 groups."""
    view = view_of(name)
    groups = np.random.default_rng(1).integers(25, size=view.num_rows)
    found, grouped = score_split(view), score_split(view, strata=Strata("site", "group", groups))
    for one, other in zip(_all(found), _all(grouped), strict=True):
        del one["interval_over"]
        for key, each in one["scores"].items():
            each["over_groups"] = other["scores"][key]["interval"]
    return json.loads(json.dumps(found))


def _is_near(one, other, rel=1e-9):
    if one is None or other is None or isinstance(one, str):
        return one == other
    return one == pytest.approx(other, rel=rel, abs=rel, nan_ok=True)


def _all(section):
    return [section, *section.get("targets", ())]


def numbers_of(value, path=""):
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    found = {}
    for key, one in pairs:
        where = f"{path}.{key}"
        if isinstance(one, dict | list):
            found |= numbers_of(one, where)
        else:
            found[where] = one
    return found


@pytest.mark.parametrize("name", MADE)
def test_every_score_and_interval_is_what_it_was(name):
    expected = numbers_of(json.loads(RECORDED.read_text())[name])
    found = numbers_of(section_of(name))
    assert found.keys() == expected.keys()
    moved = {
        key: (expected[key], one)
        for key, one in found.items()
        if not _is_near(one, expected[key], 1e-6)  # Predictions are float32.
    }
    assert not moved


@pytest.mark.parametrize("of", scores.LIKELIHOODS)
@pytest.mark.parametrize("promise", scores.PROMISES, ids=str)
def test_it_keeps(promise, of):
    for name, one in scores_of(scores.made_view(of, scores.NUM_ROWS)).items():
        promise.keep(scores.ScoreCase(name, one, of))


@pytest.mark.parametrize("name", MADE)
def test_a_view_of_rows_scores_these(name):
    view = view_of(name)
    some = np.random.default_rng(2).permutation(view.num_rows)[:20]
    for key, one in scores_of(view).items():
        # The sums of counts go over as many values as the widest row of all needs.
        if not (key == "crps" and name in COUNTS):
            kept, terms = one.terms(view.rows(some)), one.terms(view)[some]
            np.testing.assert_allclose(kept, terms, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in MADE if "one member" not in name])
def test_a_mixture_of_some_members_is_that_of_their_arrays(name):
    likelihood, arrays, targets = MADE[name]()
    chosen = [0, 2]
    found = numbers_of(score_split(view_of(name).members(chosen), intervals=False))
    alone = likelihood.view({key: one[chosen] for key, one in arrays.items()}, targets)
    expected = numbers_of(score_split(alone, intervals=False))
    assert found.keys() == expected.keys()
    assert all(_is_near(one, expected[key]) for key, one in found.items())


@pytest.mark.parametrize("name", [name for name in MADE if "one member" not in name])
def test_equal_weights_change_nothing_and_others_are_heeded(name):
    plain = numbers_of(score_split(view_of(name), intervals=False))
    equal = numbers_of(score_split(view_of(name, weights=np.full(4, 2.0)), intervals=False))
    assert all(_is_near(one, plain[key]) for key, one in equal.items())
    one = view_of(name, weights=np.array([1.0, 1e-200, 1e-200, 1e-200]))
    for each in scores_of(one).values():
        first = each.value(one.members([0]))
        if each.of_members and math.isfinite(first or 0):
            assert each.value(one) == pytest.approx(first, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", ["gaussian", "mixture_of_gaussians", "poisson", "quantiles"])
def test_members_are_equal_mixtures_of_their_estimators(name):
    likelihood, arrays, targets = MADE[name]()
    # The second estimator of member 1 is the first one again, so that nothing changes.
    twice = {key: np.concatenate([one[:2], one[1:]]) for key, one in arrays.items()}
    member_of = np.array([0, 1, 1, 2, 3])
    found = likelihood.view(twice, targets, member_of)
    assert (found.num_estimators, found.num_members) == (5, NUM_MEMBERS)
    expected = numbers_of(score_split(view_of(name), intervals=False))
    again = numbers_of(score_split(found, intervals=False))
    assert all(_is_near(one, expected[key]) for key, one in again.items())
    # A member of two estimators is not the mean of two members.
    merged = likelihood.view(arrays, targets, np.array([0, 0, 1, 2]))
    alone = scores_of(merged)["mae"].value(merged.members([0]))
    pair = view_of(name).members([0, 1])
    assert alone == pytest.approx(scores_of(pair)["mae"].value(pair), rel=1e-9)
    assert merged.members([1, 2]).member_of.tolist() == [0, 1]


def test_weights_of_classes_by_hand():
    likelihood, arrays, labels = of_classes(0)
    probs = np.tensordot(WEIGHTS / 4, np.exp(np.float64(arrays["log_probs"])), axes=1)
    view = likelihood.view(arrays, labels, weights=WEIGHTS)
    np.testing.assert_allclose(np.exp(view.log_probs), probs, rtol=1e-9)
    some = view.members([1, 2])
    pair = np.exp(np.float64(arrays["log_probs"]))
    np.testing.assert_allclose(np.exp(some.log_probs), 0.8 * pair[1] + 0.2 * pair[2], rtol=1e-9)


@pytest.mark.parametrize("name", ["gaussian", "student_t", "negative_binomial"])
def test_weights_of_numbers_by_hand(name):
    likelihood, arrays, targets = of_numbers(name)
    view, shares = likelihood.view(arrays, targets, weights=WEIGHTS), WEIGHTS / 4
    each = [one.distribution for one in view.each()]
    y = np.asarray(targets, np.float64)
    density = shares @ np.exp([one.log_densities(y)[0] for one in each])
    np.testing.assert_allclose(np.exp(view.log_density), density, rtol=1e-9)
    means, noises = (np.array([one.moments()[k] for one in each]) for k in (0, 1))
    np.testing.assert_allclose(view.point, shares @ means, rtol=1e-9)
    np.testing.assert_allclose(view.noise, shares @ noises, rtol=1e-9)
    spread = shares @ means**2 - (shares @ means) ** 2
    np.testing.assert_allclose(view.disagreement, spread, rtol=1e-6)
    below = shares @ [one.cdf(view.median) for one in each]
    if name != "negative_binomial":
        np.testing.assert_allclose(below, 0.5, atol=1e-6)


def test_the_closed_crps_heeds_weights():
    for name in ("gaussian", "mixture_of_gaussians"):
        likelihood, arrays, targets = of_numbers(name, num_rows=5)
        doubled = {key: np.concatenate([one, one[:1]]) for key, one in arrays.items()}
        weights = np.array([2.0, 1, 1, 1])
        found = likelihood.view(arrays, targets, weights=weights).crps
        np.testing.assert_allclose(found, likelihood.view(doubled, targets).crps, rtol=1e-9)


# By hand, from definitions alone.


def test_scores_of_classes_by_hand():
    view = view_of("categorical")
    probs = np.exp(np.float64(MADE["categorical"]()[1]["log_probs"])).mean(axis=0)
    labels, rows = view.labels, np.arange(view.num_rows)
    values = {key: one["value"] for key, one in score_split(view)["scores"].items()}
    hits = probs.argmax(axis=1) == labels
    assert values["accuracy"] == pytest.approx(hits.mean())
    assert values["nll"] == pytest.approx(-np.log(probs[rows, labels]).mean())
    assert values["brier"] == pytest.approx(((probs - np.eye(3)[labels]) ** 2).sum(1).mean())
    spherical = probs[rows, labels] / np.sqrt((probs**2).sum(axis=1))
    assert values["spherical"] == pytest.approx(spherical.mean())
    order = np.argsort(-probs.max(axis=1))
    risk = np.cumsum(~hits[order]) / (1 + rows)
    assert values["aurc"] == pytest.approx(risk.mean())
    assert values["accuracy_at_80"] == pytest.approx(1 - risk[119])
    assert values["overconfidence"] == pytest.approx(probs.max(axis=1).mean() - hits.mean())
    assert values["total"] == pytest.approx(scipy.stats.entropy(probs, axis=1).mean(), rel=1e-6)
    assert values["epistemic"] == pytest.approx(values["total"] - values["aleatoric"])


@pytest.mark.check
def test_scores_of_numbers_by_hand():
    likelihood, arrays, targets = of_numbers("gaussian")
    view, y = likelihood.view(arrays, targets), np.float64(targets)
    its = scipy.stats.norm(np.float64(arrays["loc"]), np.float64(arrays["scale"]))
    values = {key: one["value"] for key, one in score_split(view)["scores"].items()}
    assert values["nll"] == pytest.approx(-np.log(its.pdf(y).mean(axis=0)).mean())
    assert values["rmse"] == pytest.approx(math.sqrt(((its.mean().mean(0) - y) ** 2).mean()))
    rest = ((its.mean().mean(0) - y) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    assert values["r2"] == pytest.approx(1 - rest)
    held = np.abs(its.cdf(y).mean(axis=0) - 0.5) <= 0.45
    assert values["coverage_90"] == pytest.approx(held.mean())
    low, high = view.ends(0.9)
    np.testing.assert_allclose(its.cdf(low).mean(axis=0), 0.05, atol=1e-8)
    missed = np.maximum(low - y, 0) + np.maximum(y - high, 0)
    assert values["interval_score_90"] == pytest.approx((high - low + 20 * missed).mean())
    grid = np.linspace(-30, 40, 20_001)
    cdf = its.cdf(grid[:, None, None]).mean(axis=1)
    crps = np.trapezoid((cdf - (grid[:, None] >= y)) ** 2, grid, axis=0)
    assert values["crps"] == pytest.approx(crps.mean(), rel=1e-3)


def test_scores_of_quantiles_by_hand():
    view = view_of("quantiles, many")
    scores, y = score_split(view)["scores"], view.y
    mean = np.float64(MADE["quantiles, many"]()[1]["quantile"]).mean(axis=0)
    missed = y[:, None] - mean
    loss = np.where(missed > 0, view.levels * missed, (view.levels - 1) * missed)
    assert scores["pinball"]["value"] == pytest.approx(loss.mean())
    middle = view.levels.tolist().index(0.5)
    assert scores["mae"]["value"] == pytest.approx(np.abs(missed[:, middle]).mean())
    held = (y >= mean[:, 0]) & (y <= mean[:, -1])
    widest = f"coverage_{100 * (view.levels[-1] - view.levels[0]):.4g}"
    assert scores[widest]["value"] == pytest.approx(held.mean())


def test_r2_of_repeated_rows_is_that_of_counts():
    view = view_of("quantiles, many")
    r2, terms = scores_of(view)["r2"], scores_of(view)["r2"].terms(view)
    counts = np.random.default_rng(5).integers(3, size=len(terms))
    repeated = r2.combine.value(np.repeat(terms, counts, axis=0))
    assert r2.combine.value(terms, counts) == pytest.approx(repeated)
    moved = terms + np.array([0, 100])  # Where zero lies does not matter.
    assert r2.combine.value(moved) == pytest.approx(r2.value(view))
    assert math.isnan(r2.combine.value(np.ones((5, 2))))
    assert r2.interval(view) is None


# What a first sketch of rules got wrong.


def test_the_nll_of_classes_has_no_interval_below_five_errors():
    view = view_of("few errors")
    assert 0 < (1 - view.hits).sum() < 5
    found = score_split(view)["scores"]
    assert found["nll"]["interval"] is None
    assert found["accuracy"]["interval"] is not None


def test_calibration_errors_have_no_interval():
    found = score_split(view_of("categorical"))["scores"]
    assert found["ece"]["interval"] is found["adaptive_ece"]["interval"] is None
    low, high = found["aurc"]["interval"]  # By its influence function.
    assert 0 <= low < found["aurc"]["value"] < high <= 1


def test_the_interval_score_has_no_interval_below_ten_missed():
    few, many = (
        score_split(view_of(name))["scores"]["interval_score_95"]
        for name in ("gaussian", "gaussian, many")
    )
    assert few["interval"] is None
    assert many["interval"] is not None


def test_a_heavy_tail_leaves_no_interval_of_squares():
    found = score_split(view_of("gaussian, heavy"))["scores"]
    assert found["rmse"]["interval"] is None
    assert found["mae"]["interval"] is not None


def test_an_impossible_label_has_an_infinite_nll():
    found = score_split(view_of("impossible label"))["scores"]["nll"]
    assert found["value"] == math.inf
    assert found["interval"] == (-math.inf, math.inf)


def test_censored_targets_count_where_something_is_known_of_them():
    view = view_of("gaussian, censored")
    number, known = view.num_rows, int(view.is_known.sum())
    assert known < number
    scores = scores_of(view)
    assert len(scores["nll"].known_terms(view)[0]) == number
    assert len(scores["rmse"].known_terms(view)[0]) == known
    coverage = scores["coverage_90"]
    terms = coverage.terms(view)
    low, high = coverage.combine.bounds(terms)
    assert low <= coverage.value(view) <= high
    ends = coverage.interval(view)
    assert ends[0] < low
    assert ends[1] > high


def test_censored_targets_alone_have_an_nll_and_no_other_score():
    likelihood, arrays, targets = of_numbers("gaussian")
    censored = joined({"targets": targets, "censored": np.ones(len(targets), bool)})
    found = score_split(likelihood.view(arrays, censored))["scores"]
    assert math.isfinite(found["nll"]["value"])
    assert math.isnan(found["rmse"]["value"])
    assert found["rmse"]["interval"] is None


def test_a_fault_is_not_taken_for_a_target_that_is_not_known():
    likelihood, arrays, targets = of_numbers("gaussian")
    broken = {key: one.copy() for key, one in arrays.items()}
    broken["loc"][0, 3] = np.nan
    found = score_split(likelihood.view(broken, targets))["scores"]["nll"]
    assert math.isnan(found["value"])
    assert found["interval"] is None


def test_a_shift_changes_numbers_by_a_ratio_and_classes_by_a_difference():
    rng = np.random.default_rng(3)
    squares, hits = rng.exponential(size=400), (rng.uniform(size=400) < 0.9).astype(float)
    low, high = combine.RootMean().ratio(squares, 4 * squares)
    assert low == pytest.approx(2) == high
    assert combine.Share().change(hits, hits) == pytest.approx((0, 0), abs=0.01)
    lost = hits * (rng.uniform(size=400) < 0.9)
    wide, narrow = (combine.Share().change(hits, lost, 1 - 0.05 / k) for k in (5, 1))
    assert wide[0] < narrow[0] < np.mean(lost - hits) < narrow[1] < wide[1] < 0


def test_groups_widen_by_what_a_score_can_be():
    groups = np.repeat(np.arange(20), 10)
    rng = np.random.default_rng(4)
    alike = np.repeat(rng.uniform(size=20) < 0.9, 10).astype(float)
    share = combine.over_groups(combine.Share(), alike, groups)
    assert share[0] < combine.Share().interval(alike)[0]
    assert 0 <= share[0] < share[1] <= 1
    values = np.repeat(rng.exponential(size=20), 10)
    positive = combine.over_groups(combine.Mean(), values, groups)
    assert positive[0] > 0
    signed = combine.over_groups(combine.Mean(over_groups="signed"), values - 1, groups)
    assert signed[0] < 0
    assert combine.over_groups(combine.Mean(), values, np.repeat(np.arange(5), 40)) is None


def test_what_cannot_stand_beside_is_said():
    numbers, quantiles = view_of("gaussian"), view_of("quantiles")
    assert numbers.why_not_beside(quantiles) == "quantiles, not distributions"
    assert quantiles.why_not_beside(numbers) == "distributions, not quantiles"
    assert "levels" in quantiles.why_not_beside(replace(quantiles, levels=quantiles.levels / 2))
    assert numbers.why_not_beside(view_of("student_t")) == ""
    two = view_of("quantiles, two targets")
    first, second = two.parts
    assert two.why_not_beside(two) == ""
    fewer = replace(two, of=two.of[:1], targets=two.targets[:, :1])
    assert "1 targets, not 2" in two.why_not_beside(fewer)
    assert "distributions" in two.why_not_beside(view_of("gaussian, two targets"))
    assert first.why_not_beside(second) == ""


def test_estimators_of_classes_are_reduced_to_members():
    likelihood, arrays, labels = of_classes(0)
    with pytest.raises(ValueError, match="one estimator"):
        likelihood.view(arrays, labels, np.array([0, 0, 1, 2]))


def test_terms_of_other_rows_are_no_pair():
    likelihood, arrays, targets = of_numbers("gaussian")
    censored = joined({"targets": targets, "censored": np.arange(len(targets)) < 9})
    ours, theirs = (likelihood.view(arrays, one) for one in (targets, censored))
    with pytest.raises(ValueError, match="other examples"):
        scores_of(ours)["rmse"].difference(ours, theirs)


# What a score is.


def test_names_are_unique_for_a_type_of_view():
    declared()
    with pytest.raises(ValueError, match="nll"):
        score(of=ClassView, title="again", combine=combine.Mean(), name="nll")(lambda view: 0)
    with pytest.raises(ValueError, match="rmse"):
        score(of=IntervalView, title="again", combine=combine.Mean(), name="rmse")(lambda view: 0)


def test_a_new_score_is_one_declaration():
    margin = Score("margin", "margin", ClassView, lambda view: view.confidence, combine.Mean(0, 1))
    view = view_of("categorical")
    low, high = margin.interval(view)
    assert 0 < low < margin.value(view) < high < 1


def test_every_likelihood_has_a_view():
    assert set(registry.LIKELIHOODS) <= {name.split(",")[0] for name in MADE} | {"dirichlet"}
    assert set(NUMBERS) < set(MADE)


def _written(value):
    return float(f"{value:.12g}") if isinstance(value, float) else value


def _text(section):
    """JSON with a line for each score."""
    scores = [f"{json.dumps(key)}: {json.dumps(one)}" for key, one in section["scores"].items()]
    rest = {key: one for key, one in section.items() if key not in ("scores", "targets")}
    parts = [f"{json.dumps(key)}: {json.dumps(one)}" for key, one in rest.items()]
    parts.append('"scores": {\n' + ",\n".join(scores) + "\n}")
    if "targets" in section:
        parts.append('"targets": [\n' + ",\n".join(map(_text, section["targets"])) + "\n]")
    return "{" + ", ".join(parts) + "}"


if __name__ == "__main__":
    sys.path.insert(1, str(HERE.parent))
    import conftest  # noqa: F401 - devices and flags as the test has them.

    sections = {
        name: json.loads(json.dumps(section_of(name)), parse_float=lambda one: _written(float(one)))
        for name in MADE
    }
    lines = [f"{json.dumps(name)}: {_text(one)}" for name, one in sections.items()]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
