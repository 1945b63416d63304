"""Metrics on request, and of one's own: a function is enough."""

import numpy as np
import pytest

from ensemble.errors import InputError
from ensemble.likelihoods.classes import Classes
from ensemble.likelihoods.numbers import Numbers
from ensemble.metrics import Metric, requested

LABELS = np.array([0, 1, 2, 2, 1] * 10)
CLASSES = Classes(
    {"log_probs": np.log(np.random.default_rng(0).dirichlet(np.ones(3), size=(3, 50)))},
    class_names=("low", "middle", "high"),
)
FILE = """
import numpy as np
from ensemble.metrics import Metric

def ranked_probability(p, y):
    "Ranked probability score of ordered classes (Epstein 1969)."
    steps = np.cumsum(np.exp(p.log_probs) - np.eye(p.log_probs.shape[1])[y], axis=1)
    return (steps**2).sum(axis=1)

def _dawid_sebastiani(p, y):
    variance = p.uncertainty["total"]
    return (y - p.mean) ** 2 / variance + np.log(variance)

dawid_sebastiani = Metric("Dawid-Sebastiani", _dawid_sebastiani, heavy_tailed=True)

def fails(p, y):
    return missing

def too_few(p, y):
    return np.ones(3)

nothing = 3
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "own_metrics.py"
    path.write_text(FILE)
    return path


def test_a_function_from_the_literature_is_a_metric(own):
    found = requested([f"{own}:ranked_probability"], CLASSES)
    (metric,) = found.values()
    entry = metric.estimate(CLASSES, LABELS)
    probs = CLASSES.probs
    first = probs[:, 0] - (LABELS == 0)
    second = probs[:, 2] - (LABELS == 2)
    assert entry.value == pytest.approx((first**2 + second**2).mean())
    assert entry.low < entry.value < entry.high


def test_a_metric_with_its_properties_is_one_too(own):
    rng = np.random.default_rng(1)
    loc = rng.normal(size=(2, 80))
    p = Numbers({"loc": loc, "scale": np.ones_like(loc)})
    y = rng.normal(size=80)
    found = requested([f"{own}:dawid_sebastiani"], p)
    (metric,) = found.values()
    entry = metric.estimate(p, y)
    variance = 1 + loc.var(axis=0)
    expected = ((y - loc.mean(axis=0)) ** 2 / variance + np.log(variance)).mean()
    assert entry.value == pytest.approx(expected)
    assert entry.low < expected < entry.high


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("auprc", "Use one of .*auprc:CLASS"),
        ("auprc:tiny", "no class tiny among 3"),
        ("rmse", "have no metric rmse"),
        ("spherical:1", "spherical"),
        ("cost:nowhere.csv", "cannot be read"),
        ("{own}:missing", "missing"),
        ("{own}:nothing", "failed .*int.* is not callable"),
        ("{own}:fails", "failed at .*own_metrics.py.*NameError"),
        ("{own}:too_few", r"\[3\] is no shape of 50 rows"),
    ],
)
def test_what_cannot_be_scored_is_one_line(own, text, says):
    def scored():
        found = requested([text.replace("{own}", str(own))], CLASSES)
        return [one.estimate(CLASSES, LABELS) for one in found.values()]

    with pytest.raises(InputError, match=says) as caught:
        scored()
    assert "\n" not in str(caught.value)


def test_usual_metrics_are_not_repeated():
    assert requested(["nll", "accuracy"], CLASSES) == {}
    assert isinstance(requested(["auroc:high"], CLASSES)["auroc:high"], Metric)
