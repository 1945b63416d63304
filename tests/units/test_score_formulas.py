"""Metrics of classes, numbers and quantiles by hand, against SciPy and scikit-learn."""

import math

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from ensemble import metrics
from ensemble.errors import InputError
from ensemble.likelihoods.classes import Classes
from ensemble.likelihoods.numbers import Numbers
from ensemble.likelihoods.quantiles import Quantiles
from ensemble.metrics import functions, ranking

NUM_ROWS = 150
NAMES = ("legal", "fraud", "odd")


def of_classes(num_classes=3):
    """Predictions of four members, mostly right, their mean probabilities, and labels."""
    rng = np.random.default_rng(0)
    labels = rng.integers(num_classes, size=NUM_ROWS).astype(np.int32)
    logits = rng.normal(size=(4, NUM_ROWS, num_classes)) + 0.8 * np.eye(num_classes)[labels]
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return (
        Classes({"log_probs": log_probs}, class_names=NAMES[:num_classes]),
        np.exp(log_probs).mean(0),
        labels,
    )


def of_numbers():
    """Normal distributions of four members, in SciPy too, and targets."""
    rng = np.random.default_rng(1)
    mean = 5 + 3 * rng.normal(size=NUM_ROWS)
    y = mean + rng.normal(size=NUM_ROWS)
    loc = mean + 0.3 * rng.normal(size=(4, NUM_ROWS))
    return Numbers({"loc": loc, "scale": np.ones_like(loc)}), scipy.stats.norm(loc, 1), y


def test_classes():
    p, probs, labels = of_classes()
    rows = np.arange(NUM_ROWS)
    found = metrics.values(p, labels)
    predicted = probs.argmax(axis=1)
    hits = predicted == labels
    errors = (probs - np.eye(3)[labels]) ** 2
    risk = np.cumsum(~hits[np.argsort(-probs.max(axis=1))]) / (1 + rows)
    votes = np.exp(p.arrays["log_probs"]).argmax(axis=-1)
    pairs = [np.mean(votes[i] != votes[j]) for i in range(4) for j in range(i)]
    expected = {
        "accuracy": hits.mean(),
        "balanced_accuracy": sklearn.metrics.balanced_accuracy_score(labels, predicted),
        "nll": sklearn.metrics.log_loss(labels, probs),
        "brier": errors.sum(axis=1).mean(),
        "aurc": risk.mean(),
        "accuracy_at_80": 1 - risk[119],
        "total": scipy.stats.entropy(probs, axis=1).mean(),
        "aleatoric": scipy.stats.entropy(np.exp(p.arrays["log_probs"]), axis=2).mean(),
        "overconfidence": probs.max(axis=1).mean() - hits.mean(),
        "epistemic": found["total"] - found["aleatoric"],
        "disagreement": np.mean(pairs),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-6), name


def test_calibration_errors_by_hand():
    probs = np.array([0.55, 0.58, 0.91, 0.92, 0.93, 0.62])
    p = Classes({"log_probs": np.log(np.stack([probs, 1 - probs], axis=-1))[None]})
    y = np.array([0, 1, 0, 0, 1, 0])
    # Bins of 1/15: (8/15, 9/15] has two rows, (9/15, 10/15] one, (13/15, 14/15] three.
    expected = (abs(0.55 + 0.58 - 1) + abs(0.62 - 1) + abs(0.91 + 0.92 + 0.93 - 2)) / 6
    assert functions.ece(p, y) == pytest.approx(expected)
    assert functions.adaptive_ece(p, y, 2) == pytest.approx(abs(2.76 - 2) / 6 + abs(1.75 - 2) / 6)


def test_two_classes_are_ranked_as_scikit_learn_ranks_them():
    p, probs, labels = of_classes(2)
    auroc = sklearn.metrics.roc_auc_score(labels == 1, probs[:, 1])
    assert metrics.values(p, labels)["auroc"] == pytest.approx(auroc, rel=1e-9)
    found = metrics.requested(["auprc:legal", "auprc:1", "auroc:0"], p)
    for name, label in (("auprc:legal", 0), ("auprc:1", 1)):
        auprc = sklearn.metrics.average_precision_score(labels == label, probs[:, label])
        assert found[name].value(p, labels) == pytest.approx(auprc, rel=1e-9)
    assert found["auroc:0"].value(p, labels) == pytest.approx(auroc, rel=1e-9)


def test_ties_are_ranked_as_scikit_learn_ranks_them():
    rng = np.random.default_rng(0)
    values = np.round(rng.normal(size=80), 1)
    is_one = rng.integers(2, size=80)
    for ours, theirs in (
        (ranking.auroc, sklearn.metrics.roc_auc_score),
        (ranking.average_precision, sklearn.metrics.average_precision_score),
    ):
        expected = theirs(is_one, values)
        assert ours(values, is_one).mean() == pytest.approx(expected, rel=1e-12)
    false, true, _ = sklearn.metrics.roc_curve(is_one, values, drop_intermediate=False)
    assert ranking.fpr95(values, is_one) == pytest.approx(false[np.argmax(true >= 0.95)])
    hit = rng.integers(2, size=80).astype(float)
    equal = np.zeros(80)
    assert ranking.aurc(equal, hit).mean() == pytest.approx(1 - hit.mean())
    assert ranking.at_coverage(equal, hit).mean() == pytest.approx(hit.mean())


@pytest.mark.parametrize("name", ["aurc", "at_coverage", "auroc"])
def test_terms_are_what_a_further_row_changes(name):
    rng = np.random.default_rng(3)
    function = getattr(ranking, name)
    score = rng.normal(size=400)
    positive = (rng.normal(size=400) + score > 0).astype(float)
    terms = function(score, positive)
    again = [
        function(np.append(score, score[k]), np.append(positive, positive[k])).mean()
        for k in range(400)
    ]
    changes = 401 * (np.array(again) - terms.mean())
    assert np.corrcoef(changes, terms - terms.mean())[0, 1] > (
        0.9 if name == "at_coverage" else 0.99
    )


def test_the_cheapest_decision_is_made_and_paid_for(tmp_path):
    p, probs, labels = of_classes()
    costs = [[0, 1, 4, 0.5], [5, 0, 1, 0.5], [2, 3, 0, 0.5]]
    text = f"cost:{tmp_path / 'costs.csv'}"
    (tmp_path / "costs.csv").write_text("\n".join(",".join(map(str, one)) for one in costs))
    found = metrics.requested([text], p)[text]
    paid = np.array(costs)[labels, (probs @ np.array(costs)).argmin(axis=1)]
    assert found.value(p, labels) == pytest.approx(paid.mean())
    for content in ("0,1\n1,0\n", "0,1,2\n1,x,0\n1,2,0\n", "1,1,1\n1,1,1\n1,1,1\n"):
        (tmp_path / "costs.csv").write_text(content)
        with pytest.raises(InputError, match=r"costs|class|finite"):
            metrics.requested([text], p)


def test_numbers():
    p, its, y = of_numbers()
    found = metrics.values(p, y)
    mean = its.mean().mean(axis=0)
    low, high = p.central(0.9)
    np.testing.assert_allclose(its.cdf(low).mean(axis=0), 0.05, atol=1e-8)
    missed = np.maximum(low - y, 0) + np.maximum(y - high, 0)
    grid = np.linspace(-30, 40, 20_001)
    squares = (its.cdf(grid[:, None, None]).mean(axis=1) - (grid[:, None] >= y)) ** 2
    variance = its.var().mean(axis=0) + its.mean().var(axis=0)
    expected = {
        "nll": -np.log(its.pdf(y).mean(axis=0)).mean(),
        "nll_by_moments": -scipy.stats.norm(mean, np.sqrt(variance)).logpdf(y).mean(),
        "rmse": math.sqrt(((mean - y) ** 2).mean()),
        "mae": np.abs(p.median - y).mean(),
        "r2": sklearn.metrics.r2_score(y, mean),
        "coverage_90": np.mean(np.abs(its.cdf(y).mean(axis=0) - 0.5) <= 0.45),
        "width_90": (high - low).mean(),
        "interval_score_90": (high - low + 20 * missed).mean(),
        "crps": np.trapezoid(squares, grid, axis=0).mean(),
        "total": variance.mean(),
        "epistemic": its.mean().var(axis=0).mean(),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-3 if name == "crps" else 1e-6), name


def test_quantiles():
    _, its, y = of_numbers()
    levels = (0.05, 0.25, 0.5, 0.75, 0.95)
    each = np.stack([its.ppf(level) for level in levels], axis=-1)
    p = Quantiles({"quantile": each}, levels=levels)
    mean = each.mean(axis=0)
    found = metrics.values(p, y)
    losses = [
        sklearn.metrics.mean_pinball_loss(y, mean[:, k], alpha=level)
        for k, level in enumerate(levels)
    ]
    assert found["pinball"] == pytest.approx(np.mean(losses))
    weights = np.diff([0, 0.15, 0.375, 0.625, 0.85, 1])
    assert found["crps"] == pytest.approx(2 * np.dot(losses, weights))
    assert found["mae"] == pytest.approx(np.abs(y - mean[:, 2]).mean())
    assert found["coverage_90"] == np.mean((mean[:, 0] <= y) & (y <= mean[:, 4]))
    assert "nll" not in found


def test_a_single_number_may_be_infinite_and_a_class_absent():
    with np.errstate(divide="ignore"):
        log_probs = np.log([[[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.2, 0.3, 0.5]] * 5])
    labels = np.array([0, 2, 2] * 5, np.int32)
    p = Classes({"log_probs": log_probs})
    found = {name: one.estimate(p, labels) for name, one in metrics.metrics_of(p).items()}
    assert found["nll"] == (math.inf, None, None)
    assert found["balanced_accuracy"].value == pytest.approx((1 + 0.5) / 2)
    assert math.isnan(ranking.auroc([1.0, 2.0], [True, True]).mean())
