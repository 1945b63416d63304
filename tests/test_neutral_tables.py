"""Defaults beside peers: splits, densities of those who have none, ranks and goals."""

import importlib

import numpy as np
import pytest
from conftest import ROOT


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def test_a_packaged_table_is_read_with_its_missing_values(module, tmp_path):
    data = module("neutral_data")
    number = np.arange(1_000.0)
    number[::10] = np.nan
    town = np.array(["", "here", "there", "yonder"])[np.arange(1_000) % 4]
    label = np.array(["bad", "good"])[(np.arange(1_000) % 10 == 0).astype(int)]
    np.savez(tmp_path / "credit_data.npz", number=number, town=town, Status=label)
    tests = []
    for split in range(data.NUM_SPLITS):
        problem = data.read("credit_data", split, tmp_path)
        assert problem.num_classes == 2
        assert (problem.truth.sum(), len(problem.truth)) == (20, 200)  # A tenth, as of all rows.
        tests += problem.test["number"][np.isfinite(problem.test["number"])].tolist()
    assert sorted(tests) == number[np.isfinite(number)].tolist()
    frame = data.frame(problem.train)
    assert frame["number"].isna().sum() == np.isnan(problem.train["number"]).sum() > 0
    assert frame["town"].isna().sum() == (problem.train["town"] == "").sum() > 0
    assert set(frame["town"].dropna()) == {"here", "there", "yonder"}


def test_rows_to_learn_are_capped_and_those_to_test_are_not(module):
    data = module("neutral_data")
    columns = data.columns_of(np.arange(20)[:, None])
    problem = data.Problem(columns, np.arange(20.0), columns, np.arange(20.0))
    found = data.capped(problem, 1, 8)
    assert found.train["x0"].tolist() == found.wanted.tolist()
    assert len({*found.wanted}) == 8
    assert len(found.truth) == len(found.test["x0"]) == 20
    assert found.wanted.tolist() != data.capped(problem, 2, 8).wanted.tolist()


def test_numbers_in_place_of_categories_and_missing_values(module):
    data = module("neutral_data")
    train = {"a": np.array([1.0, np.nan, 3.0, 8.0]), "b": np.array(["x", "y", "x", ""])}
    test = {"a": np.array([np.nan, 1.0]), "b": np.array(["y", "unseen"])}
    problem = data.Problem(train, np.zeros(4), test, np.zeros(2))
    filled, asked = data.filled(problem)
    assert filled["a"].tolist() == [1, 3, 3, 8]  # The median of those that are known.
    assert filled["a is missing"].tolist() == [0, 1, 0, 0]
    assert asked["a"].tolist() == [3, 1]
    assert asked["a is missing"].tolist() == [1, 0]
    inputs, others = data.encoded(problem)
    assert inputs.shape == (4, 5)  # A number, its flag, and three categories, '' among them.
    assert inputs.mean(axis=0) == pytest.approx(np.zeros(5))
    assert inputs.std(axis=0) == pytest.approx(np.ones(5))
    assert (others[1, 2:] < 0).all()  # In no category of the training rows.


class Memory:
    """Knows the rows that it has learned, and says 0 of others."""

    def __init__(self, inputs, wanted):
        self._known = dict(zip(inputs[:, 0], wanted, strict=True))

    def predict(self, inputs):
        return np.array([self._known.get(one, 0.0) for one in inputs[:, 0]])


def test_deviations_come_from_rows_that_were_not_learned(module):
    peer = module("tables_peer")
    inputs, wanted = np.arange(50.0)[:, None], np.random.default_rng(0).normal(size=50)
    mean, sd = peer.homoscedastic(Memory, inputs, wanted, inputs[:3])
    assert mean.tolist() == wanted[:3].tolist()
    assert sd == pytest.approx(np.full(3, np.sqrt(np.mean(wanted**2))))
    # Rows are in their order again.
    twice = peer.out_of_fold(lambda x, y: Double(), "predict", inputs, wanted)
    assert twice.tolist() == (2 * inputs[:, 0]).tolist()


class Double:
    """Says of each row twice its input."""

    def predict(self, inputs):
        return 2 * inputs[:, 0]


def test_probabilities_of_zero_are_floored(module):
    peer = module("tables_peer")
    probs = np.array([[1.0, 0.0], [0.25, 0.75]])
    assert peer.floored(probs, 0.25)[0].tolist() == [0.8, 0.2]
    found = peer.class_scores(probs, np.array([1, 1]))
    least = peer.LEAST_PROBABILITY
    assert found["nll"] == pytest.approx(-(np.log(least) + np.log(0.75)) / 2)
    assert found["brier"] == pytest.approx((2 + 2 * 0.25**2) / 2)
    assert found["accuracy"] == 0.5


def test_a_random_forest_has_no_infinite_loss(module):
    data, peer = module("neutral_data"), module("tables_peer")
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(120, 2)), rng.integers(0, 2, size=120)
    train, test = data.columns_of(inputs[:60]), data.columns_of(inputs[60:])
    problem = data.Problem(train, labels[:60], test, labels[60:], 2)
    probs = peer.random_forest(problem)
    assert probs.min() > 1e-3  # Labels are noise: forests say 0 where they should not.
    assert probs.sum(axis=1) == pytest.approx(np.ones(60))


def row(method, table, split=0, nll=1.0, seconds=1.0, **more):
    scores = {"rmse": 1.0, "crps": nll, "coverage_90": 0.9, "num_test": 1_000}
    key = {"method": method, "table": table, "split": split}
    return key | scores | {"nll": nll, "cpu_seconds": seconds} | more


def classes(method, table, nll, accuracy):
    key = {"method": method, "table": table, "split": 0, "nll": nll, "cpu_seconds": 1.0}
    return key | {"brier": nll, "accuracy": accuracy, "num_test": 1_000}


def test_ranks_are_of_who_has_every_table(module):
    summary = module("neutral_summary")
    rows = [
        *(row("defaults", table, nll=1.0) for table in ("yacht", "wine", "power")),
        *(row("catboost", table, nll=2.0) for table in ("yacht", "wine")),
        row("catboost", "power", nll=0.5),
        row("constant", "power", nll=0.1),
        row("tabm", "yacht", nll=0.5),
        row("defaults", "yacht", split=1, nll=9.0),  # CatBoost has no such split.
    ]
    found = summary.content(rows)["summary"]
    of_all = found["ranks"][summary.LABELS]
    assert of_all["tables"] == ["yacht", "wine", "power"]
    means = {name: values[0] for name, values in of_all["ranks"].items()}
    assert means == pytest.approx({"defaults": 4 / 3, "catboost": 5 / 3})
    assert found["ranks"]["nll"]["tables"] == ["yacht", "power"]  # Wine has few targets.
    assert found["ranks"]["nll"]["ranks"]["defaults"][0] == 1.5
    few = found["ranks_of_all"]["nll"]
    assert few["tables"] == ["yacht"]
    assert {name: values[0] for name, values in few["ranks"].items()} == {
        "tabm": 1, "defaults": 2, "catboost": 3,
    }  # fmt: skip
    against = found["against"]["catboost"]
    assert (against["tables"], against["splits"], against["nll_lower_on"]) == (3, 3, 2)
    assert against["nll_highest"] == [0.5, "power"]
    text = summary.format_all(rows).replace("\n", " ")
    assert text.count("All methods, over the tables that all have") == 2
    assert "All methods" not in summary.format_all([one for one in rows if one["method"] != "tabm"])
    assert "mean rank by NLL of 2 tables" in text
    assert "| yacht | 5.000 (2) | 2.000 (1) |" in text


def test_goals_of_defaults(module):
    goals, summary = module("goals"), module("neutral_summary")
    rows = [
        row("defaults", "yacht", nll=1.0, seconds=3.0, rmse=1.03, coverage_90=0.8),
        row("former", "yacht", nll=2.0, seconds=2.0),
        row("constant", "yacht", nll=3.0, rmse=5.0),
        row("linear", "yacht", nll=2.0, rmse=1.0),
        row("catboost", "yacht", nll=0.9, rmse=1.0),
        row("defaults", "power", nll=1.0, seconds=3.0, coverage_90=0.88, num_test=1_500),
        row("former", "power", nll=2.0, seconds=1.0),
        row("constant", "power", nll=3.0, rmse=5.0),
        row("linear", "power", nll=0.9, rmse=2.0),
        row("catboost", "power", nll=1.5, rmse=0.9),
    ]
    for nll, accuracy, method in (
        (0.5, 0.8, "defaults"), (0.6, 0.9, "former"), (0.7, 0.7, "constant"),
        (0.6, 0.8, "linear"), (0.4, 0.9, "catboost"),
    ):  # fmt: skip
        rows.append(classes(method, "Wells", nll, accuracy))
    content = summary.content(rows)
    found = {
        one.about: one.find(content)
        for one in goals.GOALS
        if one.file == "neutral_tables" and one.find(content)
    }
    assert len(found) == 8
    values = {about.removeprefix("defaults of tables: "): one for about, one in found.items()}

    def value(start):
        (one,) = [one for about, one in values.items() if about.startswith(start)]
        return one

    by_rank = value("mean rank by NLL")
    assert by_rank.value == pytest.approx(1 / 3)
    assert by_rank.interval == (-1, 1)  # By table -1, 1 and 1.
    assert by_rank.of == "2.00, catboost 1.67, 95% over 3 tables"
    assert by_rank.is_of_one_seed
    more = [one | {"split": 1} for one in rows]
    of_two = summary.content([*rows, *more])
    assert not goals.rank_behind("nll")(of_two).is_of_one_seed
    assert value("RMSE by that of the best").value == pytest.approx((1.03 / 0.9) ** 0.5)
    assert value("RMSE by that of the best").of == "catboost is the best"
    assert value("accuracy of the best").value == pytest.approx(0.9 / 0.8)
    worst = value("NLL less that of a constant")
    assert (worst.value, worst.of) == (pytest.approx(0.1), "power")
    assert value("RMSE by that of a constant").value == pytest.approx(1.03)
    off = value("coverage")  # Yacht has too few test rows.
    assert (off.value, off.of) == (pytest.approx(0.02), "power, of 1 table")
    assert value("CPU seconds by").value == pytest.approx(1.5)


def test_cells_go_split_by_split_and_the_slow_ones_last(module, monkeypatch):
    tables, data = module("neutral_tables"), module("neutral_data")
    everything = tables.parse(["--out=x.json", "--folder=x"])
    keys = tables.cells(everything)
    first, last = keys[: -4 * len(data.REPORTED)], keys[-4 * len(data.REPORTED) :]
    assert {one["method"] for one in last} == {"tabm", "realmlp"}
    for part, most in ((first, 5), (last, 2)):
        splits = [one["split"] for one in part]
        assert splits == sorted(splits)
        assert set(splits) == set(range(most))
    assert {one["table"] for one in keys} == {*data.REPORTED}
    assert not {*data.REPORTED} & {*data.CHOSEN_ON}
    few = tables.parse(["--out=x.json", "--folder=x", "--only", "linear", "--splits=2"])
    assert len(tables.cells(few)) == 2 * len(data.REPORTED)
