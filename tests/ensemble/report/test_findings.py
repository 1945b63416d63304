"""What scores say against a run: nothing of a good one, and the likely cause of a bad one."""

import re
import types

import numpy as np
import pytest

from ensemble import likelihoods
from ensemble.likelihoods.categorical import Categorical
from ensemble.likelihoods.gaussian import Gaussian
from ensemble.report.findings import findings
from ensemble.task import Scored

REMEDY = "lower config.learning_rate=0.1"
LABELS = np.repeat([0, 1, 2], [500, 300, 200])
LIKELIHOOD = Categorical("abc")


def _scored(likelihood, targets):
    return Scored(
        types.SimpleNamespace(targets=lambda split: targets, train_weights=None), likelihood
    )


def _predicted(accuracies, sure=0.9):
    """Log-probabilities [M, N, C] of members that are so often right, so sure of an answer."""
    rng = np.random.default_rng(1)
    answers = np.array([LABELS] * len(accuracies))
    for answer, accuracy in zip(answers, accuracies, strict=True):
        wrong = rng.permutation(len(LABELS))[: round((1 - accuracy) * len(LABELS))]
        answer[wrong] = (answer[wrong] + 1) % 3
    rest = np.broadcast_to((1 - np.asarray(sure)) / 2, len(accuracies))[:, None, None]
    return np.log(np.where(np.eye(3)[answers] > 0, 1 - 2 * rest, rest))


def _of(log_probs, losses=(), failed=(), likelihood=LIKELIHOOD, targets=LABELS, **entries):
    """What is found of predictions of the members that have not failed."""
    arrays = log_probs if isinstance(log_probs, dict) else {"log_probs": log_probs}
    num_members = len(next(iter(arrays.values()))) + len(failed)
    report = {
        "num_members": num_members,
        "live_members": [k for k in range(num_members) if k not in failed],
        "failed_members": dict.fromkeys(failed, "non-finite"),
        "test": likelihood.summarise(arrays, targets),
        **entries,
    }
    scored = _scored(likelihood, targets)
    return findings(report, scored, {"test": arrays}, dict(enumerate(losses)), REMEDY)


def test_a_good_run_has_nothing_said_against_it():
    assert _of(_predicted([0.9, 0.92]), [0.2, 0.2]) == []


@pytest.mark.parametrize(
    ("loss", "cause"),
    [
        (6e13, "has diverged, to 6e+13 nats: lower config.learning_rate=0.1"),
        (1.04, "is 1.04 nats, beside 1.03 of a constant"),
        (0.01, "by heart"),
        (np.nan, "inputs and targets belong together"),
    ],
)
def test_accuracy_at_chance_and_its_cause(loss, cause):
    (line,) = _of(_predicted([0.5], 0.4), [loss])
    assert "not measurably better than always answering 'a': accuracy 0.5 against 0.5" in line
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
    found = findings(report, _scored(LIKELIHOOD, LABELS), {}, {0: loss, 1: loss}, REMEDY)
    assert len(found) == bool(says)
    assert says in " ".join(found)


def test_probabilities_may_tell_what_accuracy_does_not():
    told = np.array([[0.9, 0.05, 0.05], [0.5, 0.45, 0.05], [0.5, 0.05, 0.45]])
    (line,) = _of(np.log(told)[None, LABELS], [0.5])
    assert "Its NLL of 0.4519 nats is better than the 1.03 of that" in line
    assert "learning_rate" not in line


def test_what_differs_by_chance_alone_is_not_measurable():
    """Fifty answers differ from the constant's, and little more than half of them are right."""
    log_probs = np.log(np.full((1, 1000, 3), 0.2) + 0.4 * np.eye(3)[0])
    log_probs[0, [*range(480, 500), *range(500, 530)]] = np.log([0.2, 0.6, 0.2])
    (line,) = _of(log_probs, [0.2])
    assert "not measurably better than always answering 'a': accuracy 0.51 against 0.5" in line


def test_weights_may_be_meant_to_cost_accuracy():
    (line,) = _of(_predicted([0.5], 0.4), [0.3], config={"class_weights": "balanced"})
    assert "is not measurably more often right than always answering 'a': 0.5 against 0.5" in line
    assert "It learned by weights" in line
    assert "nats" not in line  # They are weighted, and no constant's.
    assert _of(_predicted([0.9]), [0.3], config={"class_weights": "balanced"}) == []
    (line,) = _of(_predicted([0.5], 1 - 1e-10), [0.3], config={"class_weights": "balanced"})
    assert "not measurably better" in line  # Weights do not make an NLL of 12 nats.
    assert "weights" not in line


def test_members_that_are_worse_are_named():
    (line,) = _of(_predicted([0.9, 0.5, 0.9]), [0.2, 1.2, 0.2])
    assert "1 member of 3 are not measurably better than always answering 'a': 1." in line
    assert "is 1.2 nats, beside 1.03 of a constant" in line
    (line,) = _of(_predicted([0.9, 0.9], [0.9, 1 - 1e-10]), [0.2, 1e9])
    assert "diverged, to 1e+09" in line


def test_probabilities_that_are_worse_than_frequencies():
    (line,) = _of(_predicted([0.8], 1 - 2 * np.exp(-7.5)), [0.01])
    assert "NLL of 1.501 nats is worse than the 1.03" in line
    assert "early_stopping_epochs" in line


def test_members_that_failed_get_a_remedy():
    (line,) = _of(_predicted([0.9]), failed=[1, 2])
    assert line == (
        "2 of 3 became non-finite and are left out: 1, 2; lower config.learning_rate=0.1."
    )


@pytest.mark.parametrize(
    ("rhat", "ess", "chance", "says"),
    [
        (1.002, (900, 350), 1.01, "hold too few independent draws"),
        (1.002, (900, 500), 1.01, ""),
        (1.002, (900, None), 1.01, "hold too few independent draws"),
        (1.002, 900, 1.01, ""),
        (2.9, 6, 1.4, "do not agree"),
        (2.9, 6, None, "do not agree"),  # Of an older run.
        (np.inf, 4, np.nan, "do not agree"),
        (1.02, 900, 1.01, "do not agree"),
        (1.02, 350, 1.03, "hold too few independent draws"),
        (1.0, 90, 1.1, "hold too few independent draws"),
        (np.nan, 9, np.nan, ""),
    ],
)
def test_chains_that_disagree(rhat, ess, chance, says):
    posterior = {"rhat_max": rhat, "ess_bulk_min": ess, "num_warmup": 30, "num_samples": 50}
    posterior["rhat_chance"] = chance
    if isinstance(ess, tuple):  # Reports of older runs may have no tail ESS.
        posterior |= {"ess_bulk_min": ess[0], "ess_tail_min": ess[1]}
    found = _of(_predicted([0.9]), posterior=posterior)
    assert len(found) == bool(says)
    assert not says or f"The chains {says}: R-hat" in found[0]
    assert not says or f"config.sampler.num_samples={50}" in found[0]
    assert ("tail ESS from 350 (above 400" in " ".join(found)) == (ess == (900, 350))


@pytest.mark.parametrize(
    ("posterior", "remedy"),
    [
        ({}, "Raise config.sampler.target_acceptance=0.8 to such as 0.95."),
        ({"energy_variance": 1e-3}, "Compare with config.method='adjusted_mclmc'."),
    ],
)
def test_draws_of_a_network_that_diverged(posterior, remedy):
    posterior = {"rhat_max": 1.001, "ess_bulk_min": 900, "num_warmup": 30, **posterior}
    config = {"sampler": {"target_acceptance": 0.8, "step_size": 0.1}}
    (line,) = _of(_predicted([0.9]), posterior={**posterior, "divergences": 3}, config=config)
    assert line.startswith("3 draws diverged: the posterior has places that are too narrow")
    assert line.endswith(f"may be missing here. {remedy}")


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
    arrays = {"loc": np.full((1, 400), 5.0), "scale": np.full((1, 400), 2.0)}
    (line,) = _of(arrays, [2.1], likelihood=likelihood, targets=targets)
    assert "not measurably better than always answering the mean" in line
    arrays = {"loc": targets[None] + rng.normal(size=400), "scale": np.full((1, 400), 1.0)}
    assert _of(arrays, [0.1], likelihood=likelihood, targets=targets) == []


HEAVY = np.random.default_rng(2).standard_t(1.5, 800)
SPREADS = np.exp(np.random.default_rng(3).normal(size=800))
COUNTS = np.random.default_rng(4).poisson(SPREADS).astype(float)


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
    scores = likelihood.summarise(members, targets)["ensemble"]
    assert scores["rmse"] > likelihood.constant(targets, targets).value
    assert _of(members, [1.0, 1.0], likelihood=likelihood, targets=targets) == []


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
    nll = likelihood.summarise(arrays, targets)["ensemble"]["nll"]
    constant = likelihood.constant(targets, targets)
    assert nll - 0.02 < constant.loss <= nll + 1e-5
    (line,) = _of(arrays, [nll], likelihood=likelihood, targets=targets)
    assert "not measurably better than always answering the mean" in line
    assert (
        f", NLL {nll:.4g} against {constant.loss:.4g} of one distribution of its kind that" in line
    )


def test_a_member_that_lowers_the_loss_is_not_lost():
    targets = SPREADS * np.random.default_rng(5).normal(size=800)
    likelihood = likelihoods.of_data("gaussian", targets, ())
    arrays = {"loc": np.zeros((2, 800)), "scale": np.stack([SPREADS, np.full(800, 3.0)])}
    (line,) = _of(arrays, [1.0, 2.0], likelihood=likelihood, targets=targets)
    assert "1 member of 2 are not measurably better" in line
    assert ": 1. " in line


@pytest.mark.parametrize(
    ("posterior", "num_bad_k", "says"),
    [
        ({"rhat_max": 1.001, "divergences": 0}, 0, []),
        ({"rhat_max": np.nan, "divergences": 0}, 0, ["R-hat of mu is no finite number"]),
        ({"rhat_max": 1.001, "divergences": 3}, 0, ["3 draws diverged: .*acceptance=0.8 to"]),
        (
            {"rhat_max": 1.004, "divergences": 0, "ess_bulk_min": 208},
            0,
            ["bulk ESS from 208 .* they are too few. Raise config.sampler.num_samples=100"],
        ),
        (
            {"rhat_max": 1.004, "divergences": 0, "ess_bulk_min": 40},
            0,
            ["The chains mix slowly. Raise"],
        ),
        ({"rhat_max": 1.3, "divergences": 0}, 2, ["mass='low_rank'", "above 0.62 for 2 observ"]),
        ({"rhat_max": 1.3, "divergences": 9}, 0, ["Begin with the draws that div", "9 draws"]),
        (
            {"rhat_max": 3.1, "divergences": 0, "accept_by_chain": [0.8, 0.8, 0.01, 0.9]},
            0,
            ["1 chain of 4 hardly moved: 3, with 1% accepted. Raise"],
        ),
        (
            {"rhat_max": 3.1, "divergences": 0, "modes_scalar": "x", "modes": [[0, 2], [1]]},
            0,
            [r"2 separate modes \(0, 3; 1\), which x tells apart, .*method='tempering'"],
        ),
    ],
)
def test_draws_of_a_model_that_cannot_be_relied_on(posterior, num_bad_k, says):
    numbers = {"rhat_worst": "mu", "ess_bulk_min": 900, "num_warmup": 100, "num_samples": 100}
    report = {
        "failed_members": {},
        "live_members": [0, 1, 3, 4],
        "sites": {},
        "information_criteria": {"y": {"good_k": 0.62, "num_bad_k": num_bad_k}},
        "posterior": {**numbers, **posterior},
        "config": {"sampler": {"target_acceptance": 0.8}},
    }
    lines = findings(report, None, {}, {}, REMEDY)
    assert len(lines) == len(says)
    for line, expected in zip(lines, says, strict=True):
        assert re.search(expected, line)


def test_a_ladder_whose_neighbours_hardly_swap_is_too_coarse():
    report = {
        "failed_members": {},
        "live_members": [1],
        "posterior": {"num_samples": 100},
        "config": {"ladder": {"num_replicas": 3}},
        "ladder": {"swap_rates": [[0.5, 0.4], [0.6, 0.02]]},
    }
    (line,) = findings(report, None, {}, {}, REMEDY)
    assert line.startswith("Replicas 1 and 2 of chain 1 swapped in only 2.0% of attempts")
    assert "num_replicas=3" in line


def test_chains_whose_steps_are_too_long_are_told_of_these_and_not_to_run_for_longer():
    posterior = {"rhat_max": 3.9, "ess_bulk_min": 12.0, "rhat_chance": 1.2, "num_warmup": 0}
    posterior |= {"num_samples": 30, "energy_variance": 82.0, "divergences": 30}
    config = {"sampler": {"step_size": 0.05}}
    slow, steps = _of(_predicted([0.9]), posterior=posterior, config=config)
    assert slow.endswith("may be off. Begin with the step size, below.")
    assert "In a new workdir lower config.sampler.step_size=0.05 to 0.016" in steps
