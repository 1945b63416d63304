"""What scores say against a run: nothing of a good one, and the likely cause of a bad one."""

import numpy as np
import pytest
from words.reports import (
    FOUND,
    found_of,
    found_of_chains,
    found_without_scores,
    predicted,
)

from ensemble import likelihoods
from ensemble.likelihoods.gaussian import Gaussian
from ensemble.report.advantage import beaten
from ensemble.scoring.sections import values_of

BALANCED = {"class_weights": "balanced"}
DISAGREE, FEW = "do not agree", "hold too few independent draws"


def test_a_good_run_has_nothing_said_against_it():
    assert found_of(predicted([0.9, 0.92]), [0.2, 0.2]) == []
    assert found_of(predicted([0.9]), [0.3], config=BALANCED) == []


@pytest.mark.parametrize("case", FOUND)
def test_a_bad_one_has_a_line_for_each_fault(case):
    assert len(FOUND[case]()) == 1 + (case in ("model_bad_k", "model_disagree_and_diverge"))


@pytest.mark.parametrize(("loss", "config"), [(0.9, {}), (1.1, {"label_smoothing": 0.1})])
def test_without_a_held_out_split_a_loss_that_is_low_or_another_tells_nothing(loss, config):
    assert found_without_scores(loss, config) == []


def test_what_differs_by_chance_alone_is_not_measurable():
    """Fifty answers differ from the constant's, and little more than half of them are right."""
    log_probs = np.log(np.full((1, 1000, 3), 0.2) + 0.4 * np.eye(3)[0])
    log_probs[0, [*range(480, 500), *range(500, 530)]] = np.log([0.2, 0.6, 0.2])
    (line,) = found_of(log_probs, [0.2])
    assert "0.51 against 0.5" in line


def test_weights_do_not_make_an_nll_of_12_nats():
    meant, lost = (
        found_of(predicted([0.5], sure), [0.3], config=BALANCED)[0] for sure in (0.4, 1 - 1e-10)
    )
    assert "weights" in meant
    assert "nats" not in meant  # They are weighted, and no constant's.
    assert "weights" not in lost


@pytest.mark.parametrize(
    ("rhat", "ess", "chance", "says"),
    [
        (1.002, (900, 350), 1.01, FEW),
        (1.002, (900, 500), 1.01, None),
        (1.002, (900, None), 1.01, FEW),
        (1.002, 900, 1.01, None),
        (2.9, 6, 1.4, DISAGREE),
        (2.9, 6, None, DISAGREE),  # Of an older run.
        (np.inf, 4, np.nan, DISAGREE),
        (1.02, 900, 1.01, DISAGREE),
        (1.02, 350, 1.03, FEW),
        (1.0, 90, 1.1, FEW),
        (np.nan, 9, np.nan, None),
    ],
)
def test_chains_that_disagree_or_have_few_draws(rhat, ess, chance, says):
    found = found_of_chains(rhat, ess, chance)
    assert len(found) == (says is not None)
    assert all(f"The chains {says}: R-hat" in line for line in found)
    assert all("config.sampler.num_samples=50" in line for line in found)
    assert ("from 350 (above 400" in " ".join(found)) == (ess in ((900, 350), 350))


def test_numbers_are_compared_with_their_mean():
    rng = np.random.default_rng(0)
    targets = rng.normal(5, 2, 400)
    likelihood = Gaussian.of_data(targets, ())
    constant = beaten(likelihood, targets, targets)
    assert constant.value == pytest.approx(targets.std(), rel=1e-6)
    expected = -np.mean(
        -0.5 * ((targets - targets.mean()) / targets.std()) ** 2
        - np.log(targets.std() * np.sqrt(2 * np.pi))
    )
    assert constant.loss == pytest.approx(expected, rel=1e-6)
    arrays = {"loc": np.full((1, 400), 5.0), "scale": np.full((1, 400), 2.0)}
    assert len(found_of(arrays, [2.1], likelihood=likelihood, targets=targets)) == 1
    arrays = {"loc": targets[None] + rng.normal(size=400), "scale": np.full((1, 400), 1.0)}
    assert found_of(arrays, [0.1], likelihood=likelihood, targets=targets) == []


HEAVY = np.random.default_rng(2).standard_t(1.5, 800)
SPREADS = np.exp(np.random.default_rng(3).normal(size=800))
COUNTS = np.random.default_rng(4).poisson(SPREADS).astype(float)


@pytest.mark.check
@pytest.mark.parametrize(
    ("name", "targets", "arrays"),
    [
        ("student_t", HEAVY * SPREADS, {"scale": SPREADS, "df": np.full(800, 2.2)}),
        ("laplace", HEAVY * SPREADS, {"scale": 1.5 * SPREADS}),
        ("gaussian", SPREADS * np.random.default_rng(5).normal(size=800), {"scale": SPREADS}),
    ],
)
def test_what_lowers_the_loss_that_was_learned_is_better_than_a_constant(name, targets, arrays):
    """Inputs say how far targets spread, and nothing of their mean: RMSE cannot tell."""
    likelihood = likelihoods.of_data(name, targets, ())
    arrays = {"loc": np.full(800, targets.mean() + 0.1), **arrays}
    members = {key: np.stack([one, one]) for key, one in arrays.items()}
    scores = values_of(likelihood.view(members, targets))
    assert scores["rmse"] > beaten(likelihood, targets, targets).value
    assert found_of(members, [1.0, 1.0], likelihood=likelihood, targets=targets) == []


@pytest.mark.check
@pytest.mark.parametrize(
    ("name", "targets", "fitted"),
    [
        ("student_t", HEAVY, {"loc": 0.0, "scale": 1.0, "df": 2.1}),
        ("laplace", HEAVY, {"loc": 0.0, "scale": 1.9}),
        ("negative_binomial", COUNTS, {"rate": COUNTS.mean(), "dispersion": 1.2}),
        ("poisson", COUNTS, {"rate": COUNTS.mean()}),
    ],
)
def test_tails_that_fit_all_inputs_alike_are_no_better_than_a_constant(name, targets, fitted):
    """The constant is a distribution of the same family, not the normal one."""
    likelihood = likelihoods.of_data(name, targets, ())
    arrays = {key: np.full((1, 800), value) for key, value in fitted.items()}
    nll = values_of(likelihood.view(arrays, targets))["nll"]
    constant = beaten(likelihood, targets, targets)
    assert nll - 0.02 < constant.loss <= nll + 1e-5
    (line,) = found_of(arrays, [nll], likelihood=likelihood, targets=targets)
    assert f"NLL {nll:.4g} against {constant.loss:.4g} " in line


def test_a_member_that_lowers_the_loss_is_not_lost():
    targets = SPREADS * np.random.default_rng(5).normal(size=800)
    likelihood = likelihoods.of_data("gaussian", targets, ())
    arrays = {"loc": np.zeros((2, 800)), "scale": np.stack([SPREADS, np.full(800, 3.0)])}
    (line,) = found_of(arrays, [1.0, 2.0], likelihood=likelihood, targets=targets)
    assert ": 1. " in line


def test_a_member_that_is_too_sure_is_told_apart_from_one_that_knows_nothing():
    rng = np.random.default_rng(0)
    targets = rng.normal(5, 2, 400)
    likelihood = likelihoods.of_data("gaussian", targets, ())
    locs = [targets + rng.normal(size=400) for _ in range(2)]
    arrays = {"loc": np.stack(locs), "scale": np.outer([1.0, 0.1], np.ones(400))}
    (line,) = found_of(arrays, [1.4, -1.0], likelihood=likelihood, targets=targets)
    assert "1 member of 2 has a worse NLL than always answering the mean" in line
    assert "though a better RMSE: 1. " in line


def test_chains_whose_steps_are_too_long_are_told_of_these_and_not_to_run_for_longer():
    posterior = {"rhat_max": 3.9, "ess_bulk_min": 12.0, "rhat_chance": 1.2, "num_warmup": 0}
    posterior |= {"num_samples": 30, "energy_variance": 82.0, "divergences": 30}
    config = {"sampler": {"step_size": 0.05}}
    slow, steps = found_of(predicted([0.9]), posterior=posterior, config=config)
    assert "num_samples" not in slow
    assert "config.sampler.step_size=0.05 to 0.016" in steps
