"""Scores that a user asks for, with settings: by hand, and refused in one line."""

import dataclasses
import json

import numpy as np
import pytest
import sklearn.metrics
from scored_sets import of_classes, of_numbers

import ensemble
from ensemble import UserError, registry
from ensemble.evaluation import score_table
from ensemble.evaluation.page import definitions
from ensemble.scoring import score as module
from ensemble.scoring.combine import Mean
from ensemble.scoring.score import asked_for, declared, scores_of
from ensemble.scoring.scores.ranked_class import Ranked
from ensemble.scoring.view import ClassView

NAMES = ("legal", "fraud", "odd")


def view_of(num_classes, num_rows=150):
    likelihood, arrays, labels = of_classes(3, num_rows, num_classes)
    return likelihood.view(arrays, labels)


def asked(view, *texts, names=NAMES):
    return dataclasses.replace(view, asked=asked_for(texts, view, names))


def sides(view, number):
    probs = np.exp(view.log_probs)
    return view.labels == number, probs[:, number]


def test_of_two_classes_both_are_ranked_unasked():
    view = view_of(2)
    is_second, probs = sides(view, 1)
    found = scores_of(view)
    expected = sklearn.metrics.roc_auc_score(is_second, probs)
    assert found["auroc"].value(view) == pytest.approx(expected, rel=1e-12)
    for c, name in enumerate(("auprc:0", "auprc:1")):
        expected = sklearn.metrics.average_precision_score(*sides(view, c))
        assert found[name].value(view) == pytest.approx(expected, rel=1e-12)
    for name in ("auroc", "auprc:0", "auprc:1"):
        low, high = found[name].interval(view)
        assert 0 < low < found[name].value(view) < high < 1
    assert "cost" not in found


def test_of_more_classes_one_is_asked_for_by_name_or_number():
    plain = view_of(3)
    assert "auroc" not in scores_of(plain)
    view = asked(plain, "auprc:fraud", "auroc:2", "accuracy")
    found = scores_of(view)
    of_class = sklearn.metrics.average_precision_score(*sides(view, 1))
    assert found["auprc:fraud"].value(view) == pytest.approx(of_class, rel=1e-12)
    of_class = sklearn.metrics.roc_auc_score(*sides(view, 2))
    assert found["auroc:2"].value(view) == pytest.approx(of_class, rel=1e-12)
    assert [one.setting for one in view.asked] == [1, 2]
    for other in (view.members([0, 2]), view.rows(np.arange(90)), view.with_factor(1.5)):
        assert "auprc:fraud" in scores_of(other)


def test_ties_and_repeated_examples_count_as_they_should():
    rng = np.random.default_rng(0)
    values, is_one = np.round(rng.normal(size=80), 1), rng.integers(2, size=80)
    terms, counts = np.stack([values, is_one], axis=1), rng.integers(0, 3, 80)
    again = np.repeat(terms, counts, axis=0)
    for name, of_scikit_learn in (
        ("auroc", sklearn.metrics.roc_auc_score),
        ("aupr", sklearn.metrics.average_precision_score),
    ):
        rule = Ranked(name)
        expected = of_scikit_learn(again[:, 1], again[:, 0])
        assert rule.value(terms, counts) == pytest.approx(expected, rel=1e-12)
        assert rule.value(again) == pytest.approx(expected, rel=1e-12)
        assert np.isnan(rule.value(terms[is_one == 1]))
        assert rule.interval(terms[is_one == 1]) is None


def test_an_average_precision_of_few_or_of_all_first():
    values = np.arange(100.0)
    few = np.stack([values, values >= 86], axis=1)  # Fourteen, all of them first.
    assert Ranked("aupr").interval(few) is None
    more = np.stack([values, values >= 85], axis=1)
    low, high = Ranked("aupr").interval(more)
    assert 0.5 < low < high == 1


def write(path, text):
    path.write_text(text)
    return f"cost:{path}"


def test_the_cheapest_decision_is_made_and_paid_for(tmp_path):
    view = view_of(3)  # The fourth decision is to ask a person.
    text = write(tmp_path / "costs.csv", "0,1,4,0.5\n5,0,1,0.5\n2,3,0,0.5\n")
    view = asked(view, text)
    costs = np.array([[0, 1, 4, 0.5], [5, 0, 1, 0.5], [2, 3, 0, 0.5]])
    decisions = (np.exp(view.log_probs) @ costs).argmin(axis=1)
    paid = costs[view.labels, decisions]
    score = scores_of(view)[text]
    assert score.value(view) == pytest.approx(paid.mean())
    assert score.setting == costs.tolist()
    low, high = score.interval(view)
    assert 0 <= low < paid.mean() < high <= 5
    assert (decisions == 3).any()
    named = write(tmp_path / "named.csv", "fraud,legal,odd\n0,5,1\n1,0,4\n3,2,0\n")
    assert asked(view, named).asked[0].setting == costs[:, :3].tolist()


def test_classes_that_are_named_as_numbers_are_no_costs(tmp_path):
    view, names = view_of(2), ("0", "1")
    plain = write(tmp_path / "plain.csv", "0,1\n5,0\n")
    named = write(tmp_path / "named.csv", "\ufeff1,0\n0,5\n1,0\n")
    for text in (plain, named):
        assert asked(view, text, names=names).asked[0].setting == [[0, 1], [5, 0]]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "it cannot be read"),
        ("", r"shape \(0,\); give a row for each of the 3 classes"),
        ("0,1\n1,0\n", r"shape \(2, 2\); give a row for each of the 3 classes"),
        ("0,1,2\n1,0,2\n1,x,0\n", "costs must be numbers"),
        ("p,q,r\n0,1,2\n1,0,2\n1,2,0\n", "a first line of names must have those of the classes: "),
        ("0,1,2\n1,0\n1,2,0\n", "costs must be numbers, in rows of one length"),
        ("1,1,1\n1,1,1\n1,1,1\n", "must be finite, and not all the same"),
        ("0,1,2\n1,nan,2\n1,2,0\n", "must be finite"),
    ],
)
def test_what_is_no_matrix_of_costs_is_one_line(tmp_path, content, says):
    path = tmp_path / "costs.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=says):
        asked(view_of(3), f"cost:{path}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cost", "say which; write cost:FILE"),
        ("auprc", "say which; write auprc:CLASS"),
        ("auprc:fruad", r"none of the 3 classes; choose from legal, fraud, odd"),
        ("accuracy:3", "accuracy has no settings; leave :3 out"),
        ("profit:x", "is no score .* choose from auprc, auroc, cost"),
    ],
)
def test_what_cannot_be_asked_for_is_one_line(text, says):
    with pytest.raises(UserError, match=says):
        asked(view_of(3), text)


@pytest.fixture
def strangers(monkeypatch):
    """A score of a program, and one with settings, which a package may have declared as well."""
    declared()
    monkeypatch.setattr(module, "_declared", list(module._declared))
    monkeypatch.setattr(registry.SCORES, "registered", {})

    @module.score(of=ClassView, title="certainty", combine=Mean(0, 1), better="higher")
    def certainty(view):
        """The mean of the largest probability."""
        return np.exp(view.log_probs).max(axis=1)

    @module.score(
        of=ClassView,
        title="doubt",
        combine=lambda power: Mean(0, 1),
        settings=lambda text, class_names: float(text),
        takes="POWER",
    )
    def doubt(view, power):
        """The largest probability is short of 1, to a power."""
        return (1 - np.exp(view.log_probs).max(axis=1)) ** power

    declared.cache_clear()
    for one in (certainty, doubt):
        registry.register("score", one.__name__, registry.ScoreEntry(one))


def test_a_score_of_others_counts_where_it_is_asked_for(strangers):
    plain = view_of(3)
    assert not {"certainty", "doubt"} & scores_of(plain).keys()
    view = asked(plain, "certainty", "doubt:2")
    found, top = scores_of(view), np.exp(view.log_probs).max(axis=1)
    assert found["certainty"].value(view) == pytest.approx(top.mean(), rel=1e-12)
    assert found["doubt:2"].value(view) == pytest.approx(((1 - top) ** 2).mean(), rel=1e-12)
    assert module.named("doubt:2").title == "doubt (2)"
    assert definitions(view)["certainty"].startswith("The mean of the largest probability.")
    assert "certainty" not in definitions(plain)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("doubt", "say which; write doubt:POWER"),
        ("certainty:3", "certainty has no settings; leave :3 out"),
        ("profit", "is no score .* choose from auprc, auroc, cost, certainty, doubt"),
    ],
)
def test_what_cannot_be_asked_of_others_is_one_line(strangers, text, says):
    with pytest.raises(UserError, match=says):
        asked(view_of(3), text)


def test_a_score_of_others_is_declared_and_of_such_targets(strangers):
    registry.register("score", "bare", registry.ScoreEntry(lambda view: view.confidence))
    with pytest.raises(UserError, match="the score 'bare' is not declared as one"):
        asked(view_of(3), "bare")
    likelihood, arrays, targets = of_numbers("gaussian")
    with pytest.raises(UserError, match="certainty is no score of such predictions"):
        asked(likelihood.view(arrays, targets), "certainty", names=())


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        (lambda view: 1 / 0, r"the score 'faulty' failed at .*test_asked_scores.py:\d+ \(ZeroDiv"),
        (lambda view: 3.0, r"terms of shape \[\], and must have one for each of the 150 rows"),
        (lambda view: None, r"the score 'faulty'"),
        (lambda view: np.full(150, 5.9), "has the term 5.9, and says high=1: its interval"),
        (lambda view: np.full(150, -0.5), "has the term -0.5, and says low=0"),
        (
            lambda view: np.where(np.arange(150) % 2, 5.9, np.nan),
            "has the term 5.9, and says high=1",
        ),
    ],
)
def test_a_faulty_score_of_others_is_one_line(strangers, terms, says):
    module.score(of=ClassView, title="faulty", combine=Mean(0, 1), name="faulty")(terms)
    registry.register("score", "faulty", registry.ScoreEntry(terms))
    view = asked(view_of(3), "faulty")
    with pytest.raises(UserError, match=says):
        scores_of(view)["faulty"].value(view)


def test_a_cell_of_a_notebook_declares_its_score_again(strangers):
    def again():
        @module.score(of=ClassView, title="again", combine=Mean(0, 1))
        def mine(view):
            return view.confidence

        return mine

    registry.register("score", "mine", registry.ScoreEntry(again()))
    registry.register("score", "mine", registry.ScoreEntry(again()))
    view = asked(view_of(3), "mine")
    assert scores_of(view)["mine"].value(view) == pytest.approx(view.confidence.mean())
    with pytest.raises(UserError, match="there is a score 'mine' of ClassView already"):
        module.score(of=ClassView, title="other", combine=Mean(0, 1), name="mine")(lambda view: 0)


def test_the_name_of_a_built_in_score_is_not_taken(strangers):
    registry.register("score", "nll", registry.ScoreEntry(lambda view: view.confidence))
    with pytest.raises(UserError, match="the score 'nll' is built in; register yours by another"):
        asked(view_of(3), "nll")


def test_numbers_have_no_costs():
    likelihood, arrays, targets = of_numbers("gaussian")
    with pytest.raises(UserError, match="cost is no score of such predictions"):
        asked(likelihood.view(arrays, targets), "cost:x.csv", names=())


def test_an_evaluation_says_what_was_asked_for(blobs_run, blobs, tmp_path):
    names = json.loads((blobs_run / "report.json").read_text())["dataset"]["class_names"]
    lines = [",".join("0" if i == j else "1" for j in range(len(names))) for i in range(len(names))]
    costs = write(tmp_path / "costs.csv", "\n".join(lines))
    how = {"out": tmp_path / "out", "data": blobs, "datasets": ["none"], "show_progress": False}
    found = ensemble.evaluate(blobs_run, scores=[costs, "auprc:1"], compare=[blobs_run], **how)
    test = found["test"]
    assert test["scores"][costs]["value"] == pytest.approx(1 - test["scores"]["accuracy"]["value"])
    assert found["asked"].keys() == {costs, "auprc:1"}
    assert found["compare"][0]["scores"][costs]["value"] == test["scores"][costs]["value"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "figure-precision_recall" in page
    assert f"AUPRC ({names[1]})" in page
    assert f"AUPRC ({names[1]})" in repr(found)
    with pytest.raises(UserError, match="--scores=cost"):
        ensemble.evaluate(blobs_run, scores="cost", **how)


def test_a_class_that_is_asked_for_is_called_by_its_name_even_if_that_is_a_number():
    evaluation = {"asked": {"auroc:10": 1}, "classes": {"names": [str(k) for k in range(9, 34)]}}
    assert score_table.title_of("auroc:10", evaluation) == "AUROC (10)"
    assert score_table.title_of("auroc:1", evaluation) == "AUROC (10)"  # By its place, unasked.


@pytest.mark.parametrize("num_classes", [2, 3])
def test_the_correlation_of_classes_is_that_of_scikit_learn(num_classes):
    view = view_of(num_classes)
    found, predicted = scores_of(view)["matthews"], view.log_probs.argmax(axis=-1)
    expected = sklearn.metrics.matthews_corrcoef(view.labels, predicted)
    assert found.value(view) == pytest.approx(expected, rel=1e-12)
    counts = np.random.default_rng(0).integers(0, 3, view.num_rows)
    repeated = (np.repeat(one, counts) for one in (view.labels, predicted))
    expected = sklearn.metrics.matthews_corrcoef(*repeated)
    assert found.combine.value(found.terms(view), counts) == pytest.approx(expected, rel=1e-12)
    assert found.value(view.rows(view.labels == 1)) == 0
