"""The benchmark of methods: its cells, which settings win, its intervals, its page."""

import importlib
import itertools
import json
import math
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import ROOT
from scipy import stats

from ensemble.likelihoods.class_view import LOG_PROBS, MeanOfSoftmax
from ensemble.search import verdicts
from ensemble.storage.predictions import MemberPredictions
from ensemble.storage.workdir import Workdir

RESULTS = ROOT / "benchmarks" / "results" / "methods.json"
IMAGE_SETS = ROOT.parent / "shared" / "tensorflow_datasets"
NOTHING = ({}, {}, {}, None, None)
"""The scores of a `methods_scores.Scores` that a test does not need."""
PRICE = {"step": 0.001, "predict": 0.1, "spent_seconds": 1.0, "steps_per_epoch": 10}


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


@pytest.fixture
def work(module, tmp_path):
    results = module("rows").Results(tmp_path / "methods.json")
    return module("methods").Work(results, None, tmp_path)


def test_all_data_are_those_that_are_read(module):
    data = module("methods_data")
    tables = {name for name, one in data.SETS.items() if not one.clothes}
    assert tables <= set(module("neutral_data").REPORTED)
    assert all(data.config_of(one)["num_epochs"] for one in data.SETS)


def test_data_sets_go_one_by_one_and_prices_come_before_trials(module):
    assert module("methods")._in_order({"digits", "concrete"}) == ["concrete", "digits"]
    plan = list(module("methods_plan").groups("digits", ("swag",)))
    assert {one.family for one in plan} == {"plain", "laplace", "swag"}
    mine = [one for one in plan if one.family == "swag"]
    stages = [(one.stage, one.length) for one in mine]
    assert stages == [
        ("fit", 1),
        ("price", 1),
        *[("trial", 1)] * 3,
        *[("final", length) for length in (1, 2, 4)],
    ]


def test_all_families_try_the_same_rates_and_decays_from_the_configuration_s_on(module):
    cells = module("methods_cells")
    config = module("methods_data").config_of("digits")
    found = {name: cells.trials_of("digits", name, config) for name in ("plain", "packed")}
    rates = {name: [(one.rate, one.decay) for one in trials] for name, trials in found.items()}
    assert rates["plain"] == rates["packed"]
    assert found["plain"] != cells.trials_of("cells", "plain", config)
    for name, trials in found.items():
        assert len(trials) == 12
        assert trials[0] == cells.Trial(0, config["learning_rate"], config["weight_decay"])
        assert {one.own for one in trials} == set(range(len(cells.FAMILIES[name].own)))
        assert all(3e-4 <= one.rate <= 1e-2 and 1e-5 <= one.decay <= 1e-1 for one in trials)


def test_the_lowest_validation_score_wins(module, work):
    key = {"data": "digits", "stage": "trial", "family": "swag"}
    for k, value in enumerate([0.3, 0.2, 0.1, 0.4]):
        work.results.add({**key, "trial": k}, {"validation": value} if k != 2 else {"failed": "x"})
    trials = work._trials(module("methods").Group("digits", "trial", "swag"))
    assert work.winner("digits", "swag") == trials[1]


def test_steps_are_what_the_seconds_pay_for(module, work):
    methods = module("methods")
    head = {"data": "digits", "stage": "price", "family": "swag", "own": 0}
    work.results.add(head, PRICE)
    work.results.add({"data": "digits", "stage": "length", "family": "plain"}, {"seconds": 2.0})
    steps, start, cost = work._steps(methods.Group("digits", "trial", "swag", length=0.5), 2)
    assert (steps, start, cost["charged_seconds"]) == (1000, None, 1.0)
    final, fit = methods.Group("digits", "final", "swag"), methods.Group("digits", "fit", "swag")
    for seconds, paid in ((0.03, 2000), (0.5, 1500)):
        work.results.add(work._keys(fit)[0], {"seconds": seconds})
        steps, _, cost = work._steps(final, 2)
        assert (steps, cost["charged_seconds"]) == (paid, 2.0), "a fiftieth of c is free"
    trial = methods.Group("digits", "trial", "swag")
    assert work._steps(trial, 2)[0] == 2000, "settings are chosen by what all have"


def test_a_start_takes_its_share_of_the_seconds(module, work):
    methods, cells = module("methods"), module("methods_cells")
    for family, step in {"plain": 0.001, "sghmc": 0.004, "distilled": 0.002}.items():
        head = {"data": "digits", "stage": "price", "family": family, "own": 0}
        work.results.add(head, {**PRICE, "step": step})
    work.results.add({"data": "digits", "stage": "length", "family": "plain"}, {"seconds": 2.0})
    key = {"data": "digits", "stage": "trial", "family": "plain", "trial": 0}
    work.results.add(key, {"validation": 0.5})
    best = work.winner("digits", "plain")
    chains = work._steps(methods.Group("digits", "trial", "sghmc"), 0, 7)
    assert chains[:2] == (250, cells.Start(best, 1000, 7))
    student = work._steps(methods.Group("digits", "final", "distilled", length=4), 0)
    assert student[:2] == (2000, cells.Start(best, 2000, 0)), "two teachers share four seconds"
    assert chains[2]["charged_seconds"] == pytest.approx(2.0)
    assert student[2]["charged_seconds"] == pytest.approx(8.0)


def test_varied_networks_have_the_best_settings_of_plain_ones(module, work):
    methods = module("methods")
    key = {"data": "digits", "stage": "trial", "family": "plain"}
    for k, value in enumerate([0.3, 0.2, 0.1, 0.4, 0.5, 0.6]):
        work.results.add({**key, "trial": k}, {"validation": value})
    trials = work._trials(methods.Group("digits", "trial", "plain"))
    two = work._settings(methods.Group("digits", "final", "varied", length=2))
    assert two == [trials[2], trials[1]] * 5
    many = work._settings(methods.Group("digits", "large", "varied", 0, 1, 16))
    assert many[:6] == [trials[k] for k in (2, 1, 0, 3, 2, 1)], "four settings, as with 4c"
    assert len(many) == 80


def test_entries_are_divided_as_their_families_say(module):
    compare = module("methods_compare")
    assert {one for one, _ in compare.candidates("plain", 4)} == {"plain", "deep_ensemble"}
    assert compare.candidates("varied", 1) == [("varied", (2, 0.5))]
    assert [one for _, one in compare.candidates("distilled", 4)] == [(1, 4), (1, 1), (1, 2)]
    found = {
        family: [compare.most_networks(family, length) for length in (0.5, 1, 2, 4)]
        for family in ("plain", "swag", "varied", "distilled")
    }
    assert found == {
        "plain": [2, 4, 2, 1],
        "swag": [0, 4, 2, 1],
        "varied": [2, 4, 2, 0],
        "distilled": [0, 1, 1, 1],
    }


def test_chains_have_rates_of_their_own_range(module):
    started, cells = module("methods_started"), module("methods_cells")
    rates = [started.chain_rate(one, cells.RATES) for one in (3e-4, 3e-4**0.5 * 1e-2**0.5, 1e-2)]
    np.testing.assert_allclose(rates, [3e-4, 3e-5**0.5, 1e-1])
    keys = started.chain_keys(0.01, 100)
    draws, apart = keys["sgmcmc.num_samples"], keys["sgmcmc.steps_per_draw"]
    assert (draws, apart, keys["sgmcmc.num_burn_in"]) == (20, 3, 40)


def test_weights_are_those_that_validation_rows_choose(module):
    scores, rng = module("methods_scores"), np.random.default_rng(0)
    targets = rng.integers(3, size=200)
    good, bad = (np.log(one) for one in (0.8, 0.02))
    log_probs = np.full((3, 200, 3), np.log(0.1))
    log_probs[0, np.arange(200), targets] = good
    log_probs[1:, np.arange(200), targets] = bad
    view = MeanOfSoftmax(arrays={LOG_PROBS: log_probs}, targets=targets)
    views = dict.fromkeys(scores.SPLITS, view)
    found = scores.weighted(views)
    np.testing.assert_allclose(found["test"].weights, [1])
    np.testing.assert_allclose(found["test"].log_probs, view.members_log_probs[0])


def test_a_family_that_fails_has_rows_that_say_why(module, work):
    group = module("methods").Group("digits", "trial", "swag")
    work._problems["digits"] = None  # Which fails before its data are asked for.
    work.run(group)  # It has no unit, and no price.
    assert work.is_done(group)
    assert {one["failed"] for one in work.results.rows()} == {
        "nothing says yet how long one network trains"
    }


def test_what_has_failed_as_a_whole_is_tried_once_in_each_call(module, work):
    methods = module("methods")
    group = methods.Group("digits", "trial", "swag")
    work._problems["digits"] = None
    work.run(group)
    assert work.is_done(group)
    again = methods.Work(work.results, None, work.work)
    again._problems["digits"] = None
    assert not again.is_done(group)
    for key in again._keys(group):
        again.results.add(key, {"failed": "became non-finite", "charged_seconds": 1.0})
    assert again.is_done(group), "networks that fail have been trained"


def test_what_comes_before_the_first_step_is_paid_for(module, work):
    methods = module("methods")
    head = {"data": "digits", "stage": "price", "family": "cross_fitted", "own": 0}
    work.results.add(head, {**PRICE, "before": 0.5})
    work.results.add({"data": "digits", "stage": "length", "family": "plain"}, {"seconds": 2.0})
    steps, _, cost = work._steps(methods.Group("digits", "trial", "cross_fitted"), 0)
    assert (steps, cost["charged_seconds"]) == (1500, 2.0)
    work.results.add(head, {**PRICE, "before": 3.0})
    with pytest.raises(ValueError, match=r"1.5c are needed beside the steps"):
        work._steps(methods.Group("digits", "trial", "cross_fitted"), 0)


def test_a_complete_comparison_is_not_replaced_by_a_part(module, work, monkeypatch):
    entries = module("methods_entries").Entries(work)
    row = {"is_complete": True, "families": ["plain"], "rounds": ["as it was"]}
    key = {"data": "digits", "stage": "entries"}
    work.results.add(key, row)
    work._problems["digits"] = problem = StandIn(module("methods_cells"))
    module("methods_cells").write(
        work.file("digits", "plain", 1), problem.train("plain", [0] * 24, 1, 0)
    )
    work.results.add({"data": "digits", "stage": "length", "family": "plain"}, {"seconds": 2.0})
    monkeypatch.setattr(entries, "_cost", lambda data, entry, stage: {})
    entries.compare("digits")
    assert work.results.find(key)["rounds"] == ["as it was"]


# What is compared.


def seeds(rng, means, num_rows=200, of_rows=0.5, of_seeds=0.1, num_seeds=5):
    """[S, N] of entries by their means: rows are as hard for all, and seeds differ."""
    hard = of_rows * rng.standard_normal(num_rows)
    return {
        name: mean
        + hard
        + of_seeds * rng.standard_normal((num_seeds, 1))
        + 0.2 * rng.standard_normal((num_seeds, num_rows))
        for name, mean in means.items()
    }


def test_intervals_hold_over_rows_and_seeds(module):
    compare, rng = module("methods_compare"), np.random.default_rng(0)
    means = {"a": 1.0, "b": 1.05, "c": 1.2}
    held = {"own": 0, "together": 0, "loss": 0, "loss of the best": 0}
    for _ in range(400):
        found = seeds(rng, means)
        _, low, high = compare.interval(found["a"])
        held["own"] += low <= means["a"] <= high
        beside = compare.behind(found, "a", "nll", 1.0)
        inside = [
            one["interval"][0] <= means[name] - means["a"] <= one["interval"][1]
            for name, one in beside.items()
        ]
        held["together"] += all(inside)
        losses = compare.loss_intervals(found)
        held["loss"] += losses["c"][0] <= 0.2 <= losses["c"][1]
        held["loss of the best"] += losses["a"][0] == 0.0
    assert 365 <= held["own"] <= 395  # Of 400, expected 380, three standard errors.
    assert held["together"] >= 367
    assert held["loss"] >= 367
    assert held["loss of the best"] >= 367


@pytest.mark.parametrize("of_seeds", [0.0, 0.6])
def test_intervals_of_aurocs_hold_over_rows_and_seeds(module, of_seeds):
    """Networks that tell rows apart more or less well, and mostly agree on which are hard."""
    compare, scores, rng = (
        module("methods_compare"),
        module("methods_scores"),
        np.random.default_rng(0),
    )
    far, num_rows, num_seeds = 1.5, (80, 50), 5
    truth = stats.norm.cdf(far / np.sqrt(2 * (1 + 0.5**2) + of_seeds**2))
    held, widths = 0, []
    for _ in range(400):
        near, beyond = (rng.standard_normal(number) for number in num_rows)
        areas = []
        for shift in far + of_seeds * rng.standard_normal(num_seeds):
            own = [one + 0.5 * rng.standard_normal(len(one)) for one in (near, beyond + shift)]
            areas.append(scores._area(*own))
        low, high = compare.area_interval(areas)
        held += low <= truth <= high
        widths.append(high - low)
    assert held >= 367  # Of 400, expected 380 or more, three standard errors.
    assert np.mean(widths) < (0.4 if of_seeds else 0.25)
    assert compare.area_interval(areas[:1]) == [None, None]
    apart = [scores.Area(value, 1e-9, 1e-3) for value in (0.5, 0.7)]
    low, high = compare.area_interval(apart)
    assert high - low > 0.8, "two seeds tell little"


def test_losses_are_shares_of_the_lowest_score_whoever_has_it(module):
    compare = module("methods_compare")
    rows = np.zeros((5, 50))
    found = {"a": rows + 2.0, "b": rows + 2.5, "c": rows + 4.0}
    losses = compare.loss_intervals(found)
    assert losses == {"a": [0.0, 0.0], "b": [0.25, 0.25], "c": [1.0, 1.0]}
    assert compare.loss_intervals({"a": rows + 2.0}) == {"a": [0.0, 0.0]}
    found["b"] = found["b"][:1]
    assert compare.loss_intervals(found)["c"] == [1.0, None], "one seed tells nothing of b"


def test_under_shift_better_is_surely_lower_than_the_plain_network(module):
    compare, scores = module("methods_compare"), module("methods_scores")
    means = {"plain": 1.0, "swag": 0.5, "dropout": 1.5, "varied": 0.99}
    found = seeds(np.random.default_rng(0), means)
    known = [
        compare.Entry(name, 1, 1.0, [scores.Scores("nll", 1.0, 0.0, *NOTHING, {"shifted": one}, {})
                                      for one in rows])
        for name, rows in found.items()
    ]  # fmt: skip
    told = compare.under_shift(known, "nll")
    said = {name: one["shifted"]["verdict"] for name, one in told.items()}
    wanted = {"plain": "as good", "swag": "better", "dropout": "worse", "varied": "inconclusive"}
    assert said == wanted
    assert told["swag"]["by_kind"][1] == pytest.approx(found["swag"][:, 1::5].mean())


def test_margins_and_words_are_those_of_the_command(module):
    compare = module("methods_compare")
    shares = {name: one.size for name, one in verdicts.MARGINS.items() if one.is_share}
    assert {**shares, "accuracy": verdicts.MARGINS["accuracy"].size} == compare.MARGINS
    assert compare.SECOND == verdicts.SECOND
    for low, high in itertools.product((-1.0, 0.0, 0.01, 0.03), (0.0, 0.01, 0.02, 0.03, 1.0)):
        said = verdicts._entry(0.0, (low, high), 0.02)["verdict"]
        assert compare.verdict(low, high, 0.02) == said


def test_one_seed_tells_nothing(module):
    compare = module("methods_compare")
    found = seeds(np.random.default_rng(0), {"a": 1.0, "b": 3.0}, num_seeds=1)
    beside = compare.behind(found, "a", "nll", 1.0)["b"]
    assert beside["interval"] == [None, None]
    assert beside["verdict"] == compare.INCONCLUSIVE


def test_accuracy_is_better_when_it_is_higher(module):
    compare = module("methods_compare")
    found = seeds(np.random.default_rng(0), {"a": 0.9, "b": 0.5}, of_seeds=0.001)
    beside = compare.behind(found, "a", "accuracy", 0.9)["b"]
    assert beside["verdict"] == compare.WORSE
    assert beside["excess"] == pytest.approx(0.4, abs=0.05)


def test_roots_are_those_of_seeds(module):
    compare, scores = module("methods_compare"), module("methods_scores")
    squares = np.random.default_rng(0).exponential(size=(5, 50))
    entries = [scores.Scores("crps", 1.0, 0.0, *NOTHING, {"rmse": one}, {}) for one in squares]
    rows = compare.Entry("a", 1, 1.0, entries).rows("rmse")
    np.testing.assert_allclose(rows.mean(axis=1), np.sqrt(squares.mean(axis=1)))


def test_equivalents_are_read_off_the_curve_of_the_pool(module):
    compare = module("methods_compare")
    curve = [1.0, 0.8, 0.7, 0.65, 0.62, 0.6, 0.59, 0.585, 0.58]
    for size, value in zip(compare.POOL_SIZES, curve, strict=True):
        assert compare.equivalent(value, curve) == pytest.approx(size)
    assert compare.equivalent(0.9, curve) == pytest.approx(math.sqrt(2))
    assert compare.equivalent(1.1, curve) == compare.BELOW
    assert compare.equivalent(0.5, curve) == compare.BEYOND
    rows = np.random.default_rng(0).normal(size=200)
    pool = [np.array([[value]]) + rows for value in curve]
    found = compare.equivalent_with_interval(pool[3] + np.zeros((5, 1)), pool)
    assert found["value"] == pytest.approx(4)
    assert found["interval"] == pytest.approx([4, 4])
    pool[2:5] = [one + 0.1 * np.array([[-1.0], [1.0]]) for one in pool[2:5]]
    low, high = compare.equivalent_with_interval(pool[3][:1] + 0.1, pool)["interval"]
    assert low < 3 < 5 < high, "other networks of the pool would say something else"


def test_ensembles_of_a_permutation_have_no_network_in_common(module):
    found = module("methods_compare")._subsets(np.random.default_rng(0), 24, 8, 10)
    assert [len(one) for one in found] == [8] * 10
    assert sorted(found[0] + found[1] + found[2]) == list(range(24))
    assert found[:3] != found[3:6]
    singles = module("methods_compare")._subsets(np.random.default_rng(0), 5, 1, 5)
    assert sorted(singles) == [[k] for k in range(5)]


def test_the_curve_of_the_pool_is_the_falling_one_that_is_nearest(module):
    compare = module("methods_compare")
    curve = [1.0, 0.8, 0.7, 0.6, 0.64, 0.62, 0.58, 0.57, 0.56]
    assert 8 < compare.equivalent(0.6, curve) < 12, "four are not better than six or eight"
    assert 3 < compare.equivalent(0.66, curve) < 4


def compared(data, **values):
    costs = {"plain": 1.0, "a": 9.0, "b": 1.2}
    entries = [
        {
            "entry": name,
            "nll": {"value": value},
            "loss_interval": [0.0, value],
            "predict_seconds": costs.get(name, 1.0),
        }
        for name, value in values.items()
    ]
    return {"data": data, "rounds": [{"times": 1, "score": "nll", "entries": entries}]}


def test_a_list_is_made_of_the_other_data_sets(module):
    advice = module("methods_advice")
    rows = [
        compared("one", a=1.0, b=1.1, c=5.0),
        compared("two", a=2.0, b=1.0),
        compared("three", a=1.0, b=1.2),
    ]
    assert advice.decision_list(rows, 1) == "b"
    assert advice.decision_list(rows[:1], 1) == "a"
    found = advice.regrets(rows, 1)
    assert found["one"] == ("b", pytest.approx(0.1), 0.0, 1.1)
    assert found["two"] == ("a", pytest.approx(1.0), 0.0, 2.0)
    assert advice.regrets(rows[:1], 1) == {}
    assert advice.decision_list(rows, 4) is None


def test_a_list_advises_what_a_data_set_has_and_nothing_that_was_weighed(module):
    advice = module("methods_advice")
    rows = [compared("one", a=1.0, b=1.1, greedy=0.5) for _ in range(2)]
    assert advice.decision_list(rows, 1) == "a"
    rows.append(compared("three", b=2.0, c=1.0))
    assert advice.regrets(rows, 1)["three"][:2] == ("b", pytest.approx(1.0))


def test_a_cheap_list_advises_what_predicts_as_so_many_networks(module):
    advice = module("methods_advice")
    rows = [compared(name, plain=1.5, a=1.0, b=1.2) for name in ("one", "two", "three")]
    assert advice.cheap(rows, 1, 1) == {"plain", "b"}
    assert advice.cheap(rows, 1, 8) == {"plain", "a", "b"}
    assert advice.predicting(rows, 1)["a"] == [9.0] * 3
    assert advice.regrets(rows, 1)["one"].entry == "a"
    assert advice.regrets(rows, 1, networks=1)["one"][:2] == ("b", pytest.approx(0.2))


def test_under_shift_the_list_says_who_of_the_first_loses_least(module):
    advice, compare = module("methods_advice"), module("methods_compare")
    rows = [compared(name, a=1.0, b=1.1, c=1.2, plain=1.3, d=1.4, greedy=0.9) for name in "xyz"]
    assert advice._under_shift(rows, 1) == "", "nobody has predicted shifted rows"
    shifted = {"a": 3.0, "b": 2.0, "c": 2.5, "plain": 4.0, "d": 1.0, "greedy": 0.5}
    for row in rows:
        for entry in row["rounds"][0]["entries"]:
            entry["shifted"] = {"value": shifted[entry["entry"]]}
            entry["nll"]["verdict"] = compare.INCONCLUSIVE
    text = " ".join(advice._under_shift(rows, 1).split())
    assert "one network: **`b`**." in text, "d is not among the first, and greedy is never advised"
    told = "300.0%; by how much more the others do, each interval by itself: `a` 200.0% (200.0% to"
    assert told in text
    assert advice.leading(rows, 1) == ["a", "b", "c", "plain"]
    del rows[0]["rounds"][0]["entries"][1]["shifted"]
    assert advice._under_shift(rows, 1) == "", "b has no shifted rows of one data set"


def test_what_entries_lose_beyond_the_first_has_student_s_interval(module):
    advice = module("methods_advice")
    shares = [0.01, 0.02, 0.06]
    low, high = stats.ttest_1samp(shares, 0).confidence_interval()
    assert advice._mean_with_interval(shares) == f"3.0% ({low:.1%} to {high:.1%})"
    assert advice._mean_with_interval([0.03]) == "3.0%"


def test_of_each_name_the_division_that_validation_rows_choose_is_shown(module):
    compare, scores = module("methods_compare"), module("methods_scores")

    def scored(name, networks, *validation):
        entries = [scores.Scores("nll", 1.0, one, *NOTHING, {}, {}) for one in validation]
        return compare.Entry(name, networks, 4 / networks, entries)

    found = compare.chosen([scored("a", 1, 0.4, 0.2), scored("a", 2, 0.2, 0.3), scored("b", 1, 9)])
    assert [(one.name, one.networks) for one in found] == [("a", 2), ("b", 1)]
    lost = scored("a", 2, 0.1)._replace(failed=1)
    (found,) = compare.chosen([lost, scored("a", 1, 0.4)])
    assert found.networks == 1, "all of its seeds are there"


def test_the_page_is_that_of_the_results(module):
    page = (ROOT / "docs" / "which_method.md").read_text()
    content = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": []}
    assert module("methods_page").replaced(page, content) == page


def test_the_best_division_of_the_time_is_told(module):
    page = module("methods_page")
    first, second = (
        {"divisions": [
            {"entry": name, "networks": number, "length": length, "calibrated": value}
            for (name, number, length), value in zip(
                [("plain", 1, 4), ("deep_ensemble", 2, 2), ("deep_ensemble", 4, 1), ("swag", 1, 4)],
                values, strict=True,
            )
        ], "times": 4}
        for values in ([2.0, 1.0, 1.5, 1.0], [1.2, 1.0, 1.0, 1.0])
    )  # fmt: skip
    text = page._divisions([{"rounds": [first]}, {"rounds": [second]}])
    assert "| networks of | data sets | 1 of 4c | 2 of 2c | 4 of 1c |" in text
    assert "| `plain` | 2 | 60.0% (100.0%) | 0.0% (0.0%) | 25.0% (50.0%) |" in text
    assert "| `swag`" not in text, "it has one division"


def test_networks_that_two_stages_have_are_counted_once(module):
    row = {"stage": "final", "data": "cells", "family": "swag", "length": 1, "seed": 0}
    rows = [{**row, "validation": 0.5, "spent_seconds": 1.0}]
    rows += [{**rows[0], "stage": "large"}, {**rows[0], "stage": "large", "seed": 9}]
    assert module("methods_page")._num_trained({"rows": rows}) == 2


def test_failed_seeds_of_what_is_looked_into_are_told(module):
    page = module("methods_page")
    key = {"stage": "look", "data": "cells", "family": "plain", "networks": 2, "length": 1}
    found = {"score": "nll", "test": {"nll": 0.5}, "calibrated": {"nll": 0.4}, "validation": 0.3}
    rows = [{**key, "setting": {"learning_rate": rate}} for rate in (0.1, 0.1, 0.2)]
    text = page._looks(
        {"rows": [{**rows[0], **found}, *({**one, "failed": "NaN"} for one in rows[1:])]}
    )
    lines = [one for one in text.splitlines() if one.startswith("| cells")]
    assert lines == [
        "| cells | `plain` | 2 of 1c | rate 0.1 | NLL | 1 of 2 | 0.5000 | 0.4000 |  | 0.3000 |",
        "| cells | `plain` | 2 of 1c | rate 0.2 | failed: NaN |  |  |  |  |  |",
    ]


def test_cells_stand_beside_those_of_other_libraries(module):
    page = module("methods_page")
    assert page._peers({"rows": [{"stage": "final"}]}) == ""
    row = {"stage": "peer", "family": "packed", "ours": 0.25, "peer": 0.3}
    row |= {"interval": [-0.06, -0.04], "versions": {"torch": "1.0"}}
    rows = [{**row, "data": one} for one in ("cells", "digits")]
    text = page._peers({"rows": rows})
    assert "(torch 1.0)" in text
    lines = [one for one in text.splitlines() if "`packed`" in one]
    assert lines == [
        f"| {data} | `packed` | 0.2500 | 0.3000 | -0.0600 to -0.0400 |"
        for data in ("digits", "cells")
    ]


def test_what_other_libraries_say_of_numbers_is_in_the_unit_of_targets(module):
    peers = module("methods_peers")

    class Numbers:
        def targets(self, split):
            return np.array([3.0, 5.0, 7.0]) if split == "train" else np.zeros(2)

    said = {
        f"packed/{split}/{name}": np.full((5, 4, 2), 1.0) * (1 + np.arange(5)[:, None, None])
        for split in ("validation", "calibration", "test")
        for name in ("loc", "scale")
    }
    deviation = math.sqrt(8 / 3)
    found = peers.said_by_peer(Numbers(), "packed", said)["test"]
    assert found.arrays["loc"].shape == (20, 2)
    assert found.member_of.tolist() == [seed for seed in range(5) for _ in range(4)]
    np.testing.assert_allclose(found.arrays["loc"][4], 5 + 2 * deviation)
    np.testing.assert_allclose(found.arrays["scale"][4], 2 * deviation)
    alone = {name.replace("packed", "plain"): one[:, :1] for name, one in said.items()}
    found = peers.said_by_peer(Numbers(), "plain", alone)["test"]
    assert found.arrays["loc"].shape == (5, 2)
    assert found.member_of is None


class StandIn:
    """A problem whose networks are drawn, so that several together are better; packed ones fail."""

    def __init__(self, cells):
        self.cells, self.ran, self.has_no_price = cells, [], False
        self.values = {"num_epochs": 10, "model": "mlp"}
        self.num_rows = {"validation": 80, "calibration": 80, "test": 200}
        rng = np.random.default_rng(0)
        self.targets = {name: rng.integers(3, size=one) for name, one in self.num_rows.items()}

    def guess(self):
        shares = np.log(np.full((1, 200, 3), 1 / 3))
        return {
            split: MemberPredictions({LOG_PROBS: shares[:, :one]})
            for split, one in self.num_rows.items()
        }

    def price(self, family, own, plain):
        self.ran.append(("price", family))
        return self.cells.Price(0.01 if family != "swag" else 0.02, 0.1, 1.0, 10)

    def price_fit(self):
        return 0.001

    def curve(self, steps, num_members, points):
        return [(steps // 2, 0.3), (steps, 0.5)]

    def train(self, family, trials, steps, seed, splits=None, start=None):
        self.ran.append((family, steps, len(trials)))
        if family == "packed":
            raise ValueError("there is no room")
        rng = np.random.default_rng(seed + steps)
        said = {}
        for split in splits or self.num_rows:
            logits = rng.normal(size=(len(trials), self.num_rows[split], 3)) * 1.6
            logits += 3 * np.eye(3)[self.targets[split]]
            logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
            said[split] = MemberPredictions({LOG_PROBS: logits})
        failed = ["" if k else "became non-finite" for k in range(len(trials))]
        return self.cells.Trained(said, failed, {"k": len(trials)}, 1.0, 1000.0)

    def price_around(self):
        if self.has_no_price:
            raise ValueError("the curvature is not finite")
        return 0.25, 0.1

    def around(self, variables, num_members):
        return self.train("laplace", [None] * num_members, 7, 0)

    def view(self, said, split):
        return MeanOfSoftmax(arrays=said.arrays, targets=self.targets[split])

    def views(self, said):
        found = {split: self.view(one, split) for split, one in said.items()}
        if "test" in found:
            found |= {"shifted": found["test"].rows(slice(50)), "others": found["calibration"]}
        return found


@pytest.mark.check
def test_all_is_run_compared_and_told_and_not_run_again(module, work, monkeypatch, tmp_path):
    methods, page = module("methods"), module("methods_page")
    problem = work._problems["digits"] = StandIn(module("methods_cells"))
    plan = ("digits",), tuple(module("methods_cells").FAMILIES)
    assert methods.work_for(work, *plan, 0.0) == "the time is over; the same command goes on"
    assert problem.ran == []
    assert methods.work_for(work, *plan, 100.0) == "all is done"
    assert ("swag", 25, 4) in problem.ran, "twice as dear, so half of the 50 steps"
    number = len(problem.ran)
    assert methods.work_for(work, *plan, 100.0) == "all is done"
    assert len(problem.ran) == number

    content = json.loads((tmp_path / "methods.json").read_text())
    (found,) = page.sets_of(content)
    assert found["pool"]["sizes"] == [1, 2, 3, 4, 6, 8, 12, 16], "of 24 networks one has failed"
    first, second, third = found["rounds"]
    seeds = {one["entry"]: (one["seeds"], one["failed_seeds"]) for one in first["entries"]}
    assert seeds["swag"] == (19, 1), "all networks of 1c that were trained for 4c"
    assert seeds["plain"] == (23, 1)
    entries = {one["entry"]: one for one in second["entries"]}
    trained = {"plain", "deep_ensemble", "swag", "laplace", "dropout", "batch_ensemble"}
    assert entries.keys() == trained | {"snapshots", "varied", "greedy"}
    apart = ("sghmc", "cross_fitted")  # The first network of each program fails.
    assert second["failed"] == {
        **dict.fromkeys(apart, "no trial has a score: became non-finite"),
        "packed": "no trial has a score: there is no room",
        "distilled": "became non-finite",
    }
    assert entries["deep_ensemble"]["seeds"] == 4, "the first has a network that failed"
    assert entries["swag"]["charged_seconds"] == pytest.approx(2.0)
    assert entries["swag"]["spent_seconds"] == pytest.approx(0.2), "a fifth of its program"
    of_each, number = entries["laplace"]["length"] * 0.5 + 0.25, entries["laplace"]["networks"]
    assert entries["laplace"]["charged_seconds"] == pytest.approx(number * of_each)
    assert number * of_each < 2.05
    assert entries["plain"]["networks"] == 1
    assert entries["plain"]["length"] in (1, 2, 4)
    assert entries["deep_ensemble"]["equivalent"]["value"] > 1.5
    assert entries["plain"]["nll"]["excess"] > 0
    assert entries["plain"]["nll"]["verdict"] != "as good"
    shifted = {name: one["shifted"] for name, one in entries.items()}
    assert shifted["plain"]["excess"] == 0, "the others are laid beside it"
    assert shifted["plain"]["nll"] == pytest.approx(shifted["plain"]["value"])
    assert shifted["swag"]["excess"] < 0
    kinds = entries["swag"]["by_kind"]
    assert len(set(kinds)) == 5
    assert np.mean(kinds) == pytest.approx(shifted["swag"]["value"])
    assert 0.4 < entries["plain"]["auroc_of_others"] < 0.6, "these are drawn as the others are"
    intervals = entries["plain"]["auroc_intervals"]
    assert intervals["auroc_of_others"][0] < 0.5 < intervals["auroc_of_others"][1]
    assert intervals.keys() == {"auroc_of_errors", "auroc_of_others"}, "one cannot disagree"
    assert entries["deep_ensemble"]["bytes"] == 1000 * entries["deep_ensemble"]["networks"]
    assert {"plain", "deep_ensemble"} < {one["entry"] for one in third["entries"]}
    assert len(third["entries"]) == 5
    for one in third["entries"]:
        if one["entry"] != "plain":
            assert one["length"] == entries[one["entry"]]["length"]
            assert 6.4 < one["charged_seconds"] < 1.02 * 16 * 0.5, "16 times half a second"
            assert one["spent_seconds"] == pytest.approx(0.2), "a fifth of a program of their own"
    text = page.text(content)
    assert "| `packed` | failed: no trial has a score: there is no room |" in text
    assert ", 1 of 5 seeds failed |" in text
    assert "look at the inputs has NLL 1.0986." in text.replace("\n", " ")
    plain = {"family": "plain", "length": 1}.items()
    singles = [row for row in content["rows"] if plain <= row.items() and "calibrated" in row]
    assert len(singles) == 23
    spread = np.std([row["calibrated"]["nll"] for row in singles], ddof=1)
    assert f"over seeds is {spread:.2g} for one plain" in text.replace("\n", " ")
    assert "| a guess | 1.099 | 1.099 | 1.099 | 1.099 | 1.099 |  |  |  |  |  |" in text
    assert text.count("| with 4c, NLL under | rotation | translation | noise |") == 1
    shown = entries["deep_ensemble"]["by_kind"][0]
    line = next(one for one in text.splitlines() if f"`deep_ensemble` | {shown:.3f}" in one)
    assert line.endswith(f" {entries['deep_ensemble']['bytes'] / 1000:.0f} |")
    assert "> 24" not in text, "the pool that is left has 16 at most"
    assert "- With 4 times the time of one network: **`" in text
    assert "have failed or are" in text, "trials of other families"
    page.draw(content, tmp_path)
    assert (tmp_path / page.SECONDS).stat().st_size > 5000

    # A machine without the predictions compares 16c with those of plain networks.
    key = {"data": "digits", "stage": "entries"}
    work.results.add(key, {**found, "is_complete": False, "rounds": found["rounds"][:2]})
    for path in (tmp_path / "digits").glob("*.npz"):
        path.unlink()
    del problem.ran[:]
    assert methods.work_for(work, *plan, 100.0) == "all is done"
    assert {one[0] for one in problem.ran} <= {"plain", "laplace", *entries}
    assert not {("dropout", 50, 20), ("varied", 50, 20)} & set(problem.ran)
    (again,) = page.sets_of(json.loads((tmp_path / "methods.json").read_text()))
    assert again["is_complete"]
    assert [one["entries"] for one in again["rounds"][1:]] == [
        one["entries"] for one in found["rounds"][1:]
    ]


@pytest.mark.check
def test_finalists_have_the_settings_that_have_won_on_fewer_rows(module, work, monkeypatch):
    methods, cells = module("methods"), module("methods_cells")
    data = module("methods_data")
    like_digits = data.SETS["cells"]._replace(tuned_on="digits")
    monkeypatch.setattr(data, "SETS", {**data.SETS, "cells": like_digits})
    monkeypatch.setattr(module("methods_compare"), "_SAMPLES", 2)
    for data in ("digits", "cells"):
        work._problems[data] = StandIn(cells)
    families = tuple(cells.FAMILIES)
    waits = "cells waits for the comparison of digits with 4c"
    assert methods.work_for(work, ("cells",), families, 100.0) == waits
    assert work.results.rows() == []
    assert methods.work_for(work, ("digits", "cells"), families, 100.0) == "all is done"
    large = {row["family"] for row in work.results.rows() if row["stage"] == "large"}
    own = [row for row in work.results.rows() if row["data"] == "cells"]
    assert len(large) == 4
    finals = [row for row in own if row["stage"] == "final"]
    assert {row["family"] for row in finals} == {*large, "laplace"}
    assert {row["stage"] for row in own} == {"guess", "price", "length", "final", "entries"}
    setting = {"family": "dropout", "stage": "final", "length": 1}
    first, second = (
        work.results.find({"data": data, **setting})["setting"] for data in ("digits", "cells")
    )
    assert first == second
    (row,) = (one for one in own if one["stage"] == "entries")
    assert row["is_complete"]
    assert [one["times"] for one in row["rounds"]] == [1, 4]


def test_what_is_looked_into_has_other_settings_and_five_seeds(module, work, monkeypatch):
    cells = module("methods_cells")
    plan = module("methods_plan")
    work._problems["digits"] = StandIn(cells)
    known = (
        plan.Group("digits", "look", "dropout", 2, 4, 1),
        plan.Group("digits", "look", "plain", 0, 1, 4, 0.5),
    )
    monkeypatch.setattr(plan, "LOOKS", known)
    for group in plan.groups("digits", ("dropout",)):
        if group.stage != "final":
            work.run(group)
    assert plan.looks("digits", ("dropout",)) == [known[0]]
    for group in plan.looks("digits", ("plain", "dropout")):
        work.run(group)
        assert work.is_done(group)
    looks = [row for row in work.results.rows() if row["stage"] == "look"]
    assert [row["seed"] for row in looks] == 2 * list(range(5))
    assert {row["setting"]["mlp.dropout"] for row in looks[:5]} == {0.2}
    winner = work.winner("digits", "plain")
    for row in looks[5:]:
        assert row["setting"] == {"learning_rate": 0.5, "weight_decay": winner.decay}


def test_a_distilled_network_predicts_at_the_cost_of_a_plain_one(module, work):
    entries = module("methods_entries").Entries(work)
    head = {"data": "digits", "family": "distilled"}
    work.results.add({**head, "stage": "price", "family": "plain", "own": 0}, PRICE)
    work.results.add({**head, "stage": "price", "own": 0}, {**PRICE, "predict": 0.7})
    row = {"setting": {}, "charged_seconds": 1.0, "spent_seconds": 2.0, "bytes": 10.0}
    work.results.add({**head, "stage": "final", "length": 1, "seed": 0}, row)
    entry = {"entry": "distilled", "length": 1, "networks": 1}
    assert entries._cost("digits", entry, "final")["predict_seconds"] == PRICE["predict"]


@pytest.mark.check
def test_laplace_without_a_price_is_a_row_that_says_why(module, work, tmp_path):
    methods = module("methods")
    problem = work._problems["digits"] = StandIn(module("methods_cells"))
    problem.has_no_price = True
    assert methods.work_for(work, ("digits",), ("plain",), 100.0) == "all is done"
    (found,) = module("methods_page").sets_of(json.loads((tmp_path / "methods.json").read_text()))
    for one in found["rounds"][:2]:
        assert one["failed"] == {"laplace": "the curvature is not finite"}


def test_finals_whose_predictions_are_lost_are_run_again_unless_they_were_compared(module, work):
    methods = module("methods")
    group = methods.Group("digits", "final", "swag", length=4)
    for key in work._keys(group):
        work.results.add(key, {"validation": 1.0})
    assert not work.is_done(group)
    families = list(module("methods_cells").FAMILIES)
    key = {"data": "digits", "stage": "entries"}
    work.results.add(key, {"has_finals": True, "families": families[1:]})
    assert not work.is_done(group), "a family is new"
    work.results.add(key, {"has_finals": True, "families": families})
    assert work.is_done(group)
    plain = methods.Group("digits", "final", length=4)
    for key in work._keys(plain):
        work.results.add(key, {"validation": 1.0})
    assert not work.is_done(plain), "the cells with 16c are compared with these"


# Shifted rows, and those unlike the data.


def arrays_of(rng, num_rows, **sizes):
    found = {}
    for split, number in {"train": 500, "test": num_rows, **sizes}.items():
        inputs = rng.normal(size=(number, 3)).astype(np.float32)
        found |= {f"{split}_inputs": inputs, f"{split}_targets": inputs[:, 0].astype(np.float64)}
    return found


def test_rows_are_shifted_in_turns_and_others_lie_beyond_all_columns(module):
    others = module("methods_others")
    arrays = arrays_of(np.random.default_rng(0), 2001, validation=20, calibration=20)
    found = others.with_other_rows(arrays, None)
    test, shifted = arrays["test_inputs"][:2000], found["shifted_inputs"]
    moved = (shifted != test).sum(axis=1)
    np.testing.assert_array_equal(found["shifted_targets"], arrays["test_targets"][:2000])
    assert moved[0::5].mean() == pytest.approx(3 * 0.4, abs=0.2), "values are missing"
    assert (moved[1::5] == 3).all(), "noise moves all columns"
    mean = arrays["train_inputs"].mean(axis=0)
    np.testing.assert_allclose(shifted[2::5] - mean, 1.5 * (test[2::5] - mean), atol=1e-4)
    assert moved[3::5].mean() == pytest.approx(2, abs=0.1), "two columns are permuted"
    assert (moved[4::5] == 1).all(), "one column lies beyond its range"
    low, high = arrays["train_inputs"].min(axis=0), arrays["train_inputs"].max(axis=0)
    outside = found["others_inputs"]
    assert outside.shape == (2000, 3)
    assert ((outside < low) | (outside > high)).all()
    assert (np.abs(outside - (low + high) / 2) <= 1.5 * (high - low) + 1e-4).all()


def test_the_inputs_of_a_category_stay_together(module):
    rng = np.random.default_rng(0)
    arrays = arrays_of(rng, 300)
    for split in ("train", "test"):
        which = np.eye(3, dtype=np.float32)[rng.integers(3, size=len(arrays[f"{split}_inputs"]))]
        arrays[f"{split}_inputs"] = np.hstack([arrays[f"{split}_inputs"], which])
    found = module("methods_others").with_other_rows(arrays, np.array([0, 1, 2, 3, 3, 3]))
    moved = found["shifted_inputs"][:, 3:] != arrays["test_inputs"][:, 3:]
    assert moved[0::5].any()
    assert set(moved[0::5].sum(axis=1)) <= {0, 3}, "a category is missing as a whole"
    assert not moved[[*range(1, 300, 5), *range(2, 300, 5), *range(4, 300, 5)]].any()
    assert (found["shifted_inputs"][3::5, 3:].sum(axis=1) == 1).all(), "or permuted as a whole"
    np.testing.assert_array_equal(found["others_inputs"][:, 3:], arrays["test_inputs"][:, 3:])


def test_all_rows_are_one_split_for_the_methods_and_are_told_apart(module):
    cells, others = module("methods_cells"), module("methods_others")
    rng = np.random.default_rng(0)
    arrays = others.with_other_rows(arrays_of(rng, 30, validation=20, calibration=20), None)
    whole, where = others.joined(arrays)
    assert [one for one in whole if "shifted" in one or "others" in one] == []
    for name, rows in where.items():
        np.testing.assert_array_equal(whole["test_inputs"][rows], arrays[f"{name}_inputs"])
    values = module("methods_data").config_of("concrete") | {"mlp.widths": "8"}
    problem = cells.Problem(values, arrays)
    said = {"loc": rng.normal(size=(2, 90)), "scale": np.ones((2, 90))}
    views = problem.views({"test": MemberPredictions(said)})
    np.testing.assert_array_equal(views["shifted"].arrays["loc"], said["loc"][:, 30:60])
    np.testing.assert_allclose(views["shifted"].targets, arrays["test_targets"], rtol=1e-6)
    assert views["others"].num_rows == views["test"].num_rows == 30


def test_a_guess_does_not_look_at_inputs(module, work):
    cells, others = module("methods_cells"), module("methods_others")
    rng = np.random.default_rng(0)
    arrays = arrays_of(rng, 50, validation=40, calibration=2000)
    arrays |= {name: one + 3 for name, one in arrays.items() if name.endswith("_targets")}
    arrays = others.with_other_rows(arrays, None)
    values = module("methods_data").config_of("concrete") | {"mlp.widths": "8"}
    work._problems["concrete"] = cells.Problem(values, arrays)
    work.run(module("methods").Group("concrete", "guess"))
    (row,) = work.results.rows()
    assert row["score"] == "crps"
    center, spread = arrays["train_targets"].mean(), arrays["train_targets"].std()
    first, second = center + spread * rng.normal(size=(2, 10**5))

    def crps(targets):
        return np.abs(first[:, None] - targets).mean() - np.abs(first - second).mean() / 2

    targets = arrays["test_targets"]
    assert row["value"] == pytest.approx(crps(targets), rel=0.02)
    expected = [crps(targets[k::5]) for k in range(5)]
    assert row["by_kind"] == pytest.approx(expected, rel=0.02), "shifts leave targets as they are"


@pytest.mark.skipif(not IMAGE_SETS.exists(), reason="prepared Fashion-MNIST is not here")
def test_clothes_have_the_form_of_digits(module):
    data = module("methods_data")
    arrays = data.arrays_of("digits", None)
    for name in ("shifted_inputs", "others_inputs"):
        assert arrays[name].shape == (300, 8, 8, 1)
        assert arrays[name].dtype == arrays["train_inputs"].dtype
        assert 8 < arrays[name].max() <= 16
    kinds = [arrays["shifted_inputs"][k::5] != arrays["test_inputs"][k::5] for k in range(5)]
    assert all(one.any(axis=(1, 2, 3)).all() for one in kinds)
    assert abs(float(arrays["others_inputs"].mean()) - float(arrays["test_inputs"].mean())) < 2


def test_rows_unlike_the_data_are_told_by_entropy_or_variance(module):
    scores = module("methods_scores")
    assert scores._area(np.array([0.0, 1.0]), np.array([1.0, 2.0])).value == 0.875
    assert scores._area(np.array([]), np.array([1.0])) is None
    rng, views = np.random.default_rng(0), {}
    for split, sharpness in {"test": 5.0, "others": 0.1}.items():
        logits = sharpness * np.eye(3)[rng.integers(3, size=60)][None]
        arrays = {LOG_PROBS: logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))}
        views[split] = MeanOfSoftmax(arrays=arrays, targets=rng.integers(3, size=60))
    views |= dict.fromkeys(("validation", "calibration"), views["test"])
    assert scores.scored(views).auroc_of_others == 1.0
    assert scores.scored(views).auroc_by_disagreement is None, "one network does not disagree"
    del views["others"]
    assert scores.scored(views).auroc_of_others is None


def test_hits_that_are_surer_than_errors_are_told(module):
    scores = module("methods_scores")
    probs = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
    test = MeanOfSoftmax(arrays={LOG_PROBS: np.log(probs)[None]}, targets=np.array([0, 1, 1, 0]))
    assert scores._areas({"test": test}, "nll")["auroc_of_errors"].value == 1.0


# Programs.


@pytest.fixture
def problem(module):
    rng = np.random.default_rng(0)
    arrays = {}
    for split, number in {"train": 64, "validation": 40, "calibration": 40, "test": 40}.items():
        inputs = rng.normal(size=(number, 3)).astype(np.float32)
        noise = rng.normal(size=number)
        arrays |= {f"{split}_inputs": inputs, f"{split}_targets": inputs[:, 0] + 0.1 * noise}
    values = module("methods_data").config_of("concrete") | {"mlp.widths": "8", "batch_size": 32}
    return module("methods_cells").Problem(values, arrays)


@pytest.mark.check
@pytest.mark.parametrize("family", ["plain", "swag"])
def test_members_with_settings_of_their_own_are_those_that_train_alone(module, problem, family):
    cells = module("methods_cells")
    trials = [cells.Trial(0, 2e-3, 1e-1), cells.Trial(0, 1e-2, 1e-5)]
    together = problem.train(family, trials, 40, 3)
    assert together.failed == ["", ""]
    values = {"learning_rate": 2e-3, "weight_decay": 1e-1, "seed": 3}
    keys = problem.keys_of(family, trials[0], 40) | values
    method, state = problem.moved(keys)
    alone = method.predict_split(state, "test")
    for name, array in alone.arrays.items():
        first = together.said["test"].of_members([0]).arrays[name]
        np.testing.assert_allclose(first, array, rtol=1e-4, atol=1e-5)
    views = {split: problem.view(one, split) for split, one in together.said.items()}
    scored = module("methods_scores").scored
    first, second = (scored(views, [k]) for k in range(2))
    assert first.score == "crps"
    assert first.terms["crps"].mean() == pytest.approx(first.calibrated["crps"])
    assert math.sqrt(first.terms["rmse"].mean()) == pytest.approx(first.calibrated["rmse"])
    assert abs(first.validation / second.validation - 1) > 0.01


@pytest.mark.check
def test_laplace_is_around_the_plain_networks_and_is_kept(module, problem, tmp_path):
    cells = module("methods_cells")
    plain = problem.train("plain", [cells.Trial(0, 1e-2, 1e-5)] * 2, 60, 0)
    found = problem.around(plain.variables, 2)
    cells.write(tmp_path / "laplace.npz", found)
    read = cells.read(tmp_path / "laplace.npz")
    assert read.failed == ["", ""]
    plain_view, view = (problem.view(one.said["test"], "test") for one in (plain, read))
    np.testing.assert_allclose(view.point, plain_view.point, rtol=1e-3, atol=1e-3)
    assert (view.deviation > plain_view.deviation).all()


@pytest.mark.check
def test_chains_start_at_plain_networks(module, problem):
    cells = module("methods_cells")
    start = cells.Start(cells.Trial(0, 1e-2, 1e-5), 60, 0)
    trial = cells.Trial(1, 3e-4, 1e-5)  # The least rate, by which chains hardly move.
    found = problem.train("sghmc", [trial] * 2, 20, 0, start=start)
    assert found.failed == ["", ""]
    before = problem.train("plain", [start.trial] * 2, 60, 0)
    ours, theirs = (problem.view(one.said["test"], "test") for one in (found, before))
    for own, other in zip(ours.each(), theirs.each(), strict=True):
        assert own.num_estimators == 10, "draws of a chain"
        np.testing.assert_allclose(own.point, other.point, atol=0.3)


@pytest.mark.check
def test_students_learn_from_plain_networks_of_other_seeds(module, problem):
    cells = module("methods_cells")
    trial = cells.Trial(0, 1e-2, 1e-5)
    parts = []
    for seed in (5, 6):
        start = cells.Start(trial, 200, seed)
        parts.append(problem.train("distilled", [trial], 200, seed, start=start))
    found = cells.joined(parts)
    assert found.failed == ["", ""]
    teachers = problem.train("plain", [trial] * 2, 200, 5)
    view, theirs = (problem.view(one.said["test"], "test") for one in (found, teachers))
    nearest = np.abs(view.members([0]).point - theirs.point).mean()
    assert nearest < np.abs(problem.targets("test") - theirs.point).mean()
    assert not np.array_equal(*(one.point for one in view.each()))
    teacher = Workdir(problem.teachers.of(1e-2, 1e-5, 200, 5))
    assert teacher.read_config()["seed"] != 5, "a student would start where its first teacher did"


def test_greedy_networks_are_never_called_best(module):
    compare, scores = module("methods_compare"), module("methods_scores")

    def known(name, validation):
        terms = {"nll": np.full(50, validation), "accuracy": np.full(50, 0.5)}
        entry = scores.Scores("nll", 1.0, validation, *NOTHING, terms, {})
        return compare.Entry(name, 2, 1.0, [entry] * 5)

    found = compare.compared([known("greedy", 0.1), known("plain", 0.3), known("swag", 0.2)], None)
    assert found["best"] == "swag"
    lost = known("packed", 0.15)._replace(failed=1)
    assert compare.compared([lost, known("plain", 0.3)], None)["best"] == "plain"
    (division,) = compare.divisions([lost, known("plain", 0.3)], "nll")
    assert division["entry"] == "plain"
    assert [one["entry"] for one in found["entries"]] == ["greedy", "swag", "plain"]


def test_what_swag_needs_beside_steps_is_told_from_a_plain_network(module, monkeypatch):
    prices = module("methods_prices")
    differences = [100.0, *range(1, prices.TURNS + 1)]
    took = iter([one for found in differences for one in (found + 1.0, 1.0)])
    monkeypatch.setattr(prices, "_whole_seconds", lambda method: next(took))

    class Problem:
        as_it_is = None

        def keys_of(self, family, trial, steps):
            return family

        def started(self, keys):
            return keys, None

    assert prices.fit_seconds(Problem()) == np.median(differences[1:])
    assert next(took, None) is None, "the first pair, which compiles, is left out"


@pytest.mark.check
@pytest.mark.parametrize("data", ["concrete", "digits"])
def test_cross_fitted_networks_are_one_cell(module, problem, data):
    cells = module("methods_cells")
    if data == "digits":
        values = module("methods_data").config_of("digits") | {"mlp.widths": "8"}
        problem = cells.Problem(values, module("methods_data")._digits())
    trial = cells.Trial(0, 1e-2, 1e-5)
    each = [problem.train("cross_fitted", [trial], 40, seed) for seed in range(2)]
    view = problem.view(cells.joined(each).said["test"], "test")
    assert view.num_members == 2
    assert view.num_estimators == (2 if data == "digits" else 8)
    alone = problem.view(each[1].said["test"], "test")
    ours, theirs = (module("methods_scores").scored({"test": one, "validation": one,
                    "calibration": one}) for one in (view.members([1]), alone))  # fmt: skip
    assert ours.test == pytest.approx(theirs.test)


@pytest.mark.check
@pytest.mark.skipif(not IMAGE_SETS.exists(), reason="prepared Fashion-MNIST is not here")
def test_a_killed_benchmark_goes_on(tmp_path):
    out = tmp_path / "methods.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "methods.py"), f"--out={out}"]
    command += [f"--work={tmp_path}", "--only", "digits", "--families", "plain"]

    def stages():
        rows = json.loads(out.read_text())["rows"] if out.exists() else []
        return [row["stage"] for row in rows]

    process = subprocess.Popen(command, cwd=ROOT)
    while "price" not in stages():
        assert process.poll() is None
        time.sleep(0.1)
    process.kill()
    process.wait()
    first = json.loads(out.read_text())["rows"]
    done = subprocess.run([*command, "--seconds=1"], cwd=ROOT, capture_output=True, text=True)
    assert "the same command goes on" in done.stdout, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert rows[: len(first)] == first
    assert len(rows) == len(first) + 1
    _, price, length = rows
    assert [one["stage"] for one in rows] == ["guess", "price", "length"]
    assert length["seconds"] == pytest.approx(length["steps"] * price["step"])
