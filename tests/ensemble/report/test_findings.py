"""What scores say against a run: nothing of a good one, and the likely cause of a bad one."""

import types

import numpy as np
import pytest

from ensemble.likelihoods.categorical import Categorical
from ensemble.likelihoods.gaussian import Gaussian
from ensemble.report.findings import findings
from ensemble.task import Scored

REMEDY = "lower config.learning_rate=0.1"
LABELS = np.repeat([0, 1, 2], [50, 30, 20])


def _scored(likelihood, targets):
    return Scored(
        types.SimpleNamespace(targets=lambda split: targets, train_weights=None), likelihood
    )


def _report(accuracy, nll, ensemble_nll, failed=(), **entries):
    live = [k for k in range(len(accuracy) + len(failed)) if k not in failed]
    return {
        "num_members": len(accuracy) + len(failed),
        "live_members": live,
        "failed_members": dict.fromkeys(failed, "non-finite"),
        "test": {
            "members": {"accuracy": accuracy, "nll": nll},
            "ensemble": {"accuracy": float(np.mean(accuracy)), "nll": ensemble_nll},
        },
        **entries,
    }


def _of(report, losses=()):
    scored = _scored(Categorical("abc"), LABELS)
    return findings(report, scored, dict(enumerate(losses)), REMEDY)


def test_a_good_run_has_nothing_said_against_it():
    assert _of(_report([0.9, 0.92], [0.3, 0.3], 0.25), [0.2, 0.2]) == []


@pytest.mark.parametrize(
    ("loss", "cause"),
    [
        (6e13, "has diverged, to 6e+13 nats: lower config.learning_rate=0.1"),
        (1.03, "about that of a constant"),
        (0.01, "by heart"),
        (np.nan, "inputs and targets belong together"),
    ],
)
def test_accuracy_at_chance_and_its_cause(loss, cause):
    (line,) = _of(_report([0.5, 0.55], [1.1, 1.0], 1.0), [loss, loss])
    assert "not measurably better than always answering 'a': accuracy 0.525 against 0.5" in line
    assert cause in line


@pytest.mark.parametrize(
    ("loss", "config", "says"),
    [
        (1.1, {}, "not below the 1.03 nats of always answering 'a'"),
        (9.0, {}, "has diverged"),
        (0.9, {}, ""),
        (1.1, {"label_smoothing": 0.1}, ""),
    ],
)
def test_without_a_held_out_split_the_training_loss_tells(loss, config, says):
    report = {"num_members": 2, "live_members": [0, 1], "failed_members": {}, "config": config}
    found = _of(report, [loss, loss])
    assert len(found) == bool(says)
    assert says in " ".join(found)


def test_probabilities_may_tell_what_accuracy_does_not():
    (line,) = _of(_report([0.5, 0.55], [0.6, 0.6], 0.5), [0.5, 0.5])
    assert "Its NLL of 0.5 nats is better than the 1.03 of that" in line
    assert "learning_rate" not in line


def test_members_that_are_worse_are_named():
    report = _report([0.9, 0.5, 0.9], [0.3, 0.4, 0.3], 0.3)
    (line,) = _of(report, [0.2, 1.2, 0.2])
    assert "1 member of 3 did worse than always answering 'a' or no better: 1." in line
    assert "about that of a constant" in line
    (line,) = _of(_report([0.9, 0.9], [0.3, 3.0], 0.5), [0.2, 1e9])
    assert "diverged, to 1e+09" in line


def test_probabilities_that_are_worse_than_frequencies():
    (line,) = _of(_report([0.8, 0.8], [1.5, 1.4], 1.2), [0.01, 0.01])
    assert "NLL of 1.2 nats is worse than the 1.03" in line
    assert "early_stopping_epochs" in line


def test_members_that_failed_get_a_remedy():
    (line,) = _of(_report([0.9], [0.3], 0.3, failed=[1, 2]))
    assert line == (
        "2 of 3 became non-finite and are left out: 1, 2; lower config.learning_rate=0.1."
    )


@pytest.mark.parametrize(
    ("rhat", "ess", "says"),
    [
        (1.002, 900, ""),
        (2.9, 6, "do not agree well enough yet"),
        (1.02, 900, "do not agree well enough yet"),
        (1.0, 90, "hold too few independent draws"),
        (np.nan, 9, ""),
    ],
)
def test_chains_that_disagree(rhat, ess, says):
    posterior = {"rhat_max": rhat, "ess_bulk_min": ess, "num_warmup": 30, "num_samples": 50}
    found = _of(_report([0.9], [0.3], 0.3, posterior=posterior))
    assert len(found) == bool(says)
    assert not says or f"The chains {says}: R-hat" in found[0]
    assert not says or f"config.hmc.num_samples={50}" in found[0]


def test_numbers_are_compared_with_their_mean():
    rng = np.random.default_rng(0)
    targets = rng.normal(5, 2, 400)
    likelihood = Gaussian.of_data(targets, ())
    constant = likelihood.constant(targets, targets)
    assert constant.value == pytest.approx(targets.std(), rel=1e-6)
    expected = -np.mean(
        -0.5 * ((targets - targets.mean()) / targets.std()) ** 2
        - np.log(targets.std() * np.sqrt(2 * np.pi))
    )
    assert constant.loss == pytest.approx(expected, rel=1e-6)
    report = _report([0.9], [0.3], 0.3)
    report["test"] = {
        "members": {"rmse": [2.0], "nll": [2.0]},
        "ensemble": {"rmse": 2.0, "nll": 2.0},
    }
    (line,) = findings(report, _scored(likelihood, targets), {0: 2.1}, REMEDY)
    assert "not measurably better than always answering the mean" in line
    report["test"]["members"]["rmse"] = [0.5]
    report["test"]["ensemble"]["rmse"] = 0.5
    assert findings(report, _scored(likelihood, targets), {0: 0.1}, REMEDY) == []
