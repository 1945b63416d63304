"""The benchmark of methods: its cells, in which order they run, and which settings win."""

import importlib

import pytest
from conftest import ROOT

PRICE = {"step": 0.001, "predict": 0.1, "compile": 1.0, "steps_per_epoch": 10}


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
    tables = set(data.DATA) - {"fashion_mnist"}
    assert tables <= set(module("neutral_data").REPORTED)
    assert all(data.config_of(one)["num_epochs"] for one in data.DATA)


def test_data_sets_go_one_by_one_and_prices_come_before_trials(module):
    plan = module("methods").order(("digits", "concrete"), ("swag",))
    assert list(dict.fromkeys(one.data for one in plan)) == ["concrete", "digits"]
    assert {one.family for one in plan} == {"plain", "swag"}
    mine = [one for one in plan if (one.data, one.family) == ("digits", "swag")]
    stages = [(one.stage, one.length) for one in mine]
    assert stages == [
        ("price", 1),
        *[("trial", 1)] * 3,
        *[("final", length) for length in (1, 2, 4)],
    ]


def test_each_family_has_twelve_trials_of_its_own_from_the_configuration_on(module):
    cells = module("methods_cells")
    config = module("methods_data").config_of("digits")
    found = {name: cells.trials_of("digits", name, config) for name in ("plain", "packed")}
    assert found["plain"] == cells.trials_of("digits", "plain", config)
    assert found["plain"][1:] != found["packed"][1:]
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
    steps, cost = work._steps(methods.Group("digits", "trial", "swag", length=0.5), 2)
    assert (steps, cost["charged_seconds"]) == (1000, 1.0)


def test_a_family_that_fails_has_rows_that_say_why(module, work):
    group = module("methods").Group("digits", "trial", "swag")
    work.run(group)  # It has no unit, and no price.
    assert work.is_done(group)
    assert {one["failed"] for one in work.results.rows()} == {
        "nothing says yet how long one network trains"
    }
