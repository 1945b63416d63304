"""The value of one more member: against brute force, and where the law is known."""

import itertools

import numpy as np
import pytest
from scipy.special import log_softmax
from test_sections import labelled, make_predictions

from ensemble import metrics
from ensemble.evaluation.next_member import MAX_SUBSETS, score_sizes
from ensemble.likelihoods.gaussian import Gaussian
from ensemble.likelihoods.poisson import Poisson


def test_scores_of_all_subsets_match_brute_force():
    predictions = make_predictions(0, num_members=4, num_examples=50)
    section = score_sizes(predictions)
    assert section["sizes"] == [1, 2, 3, 4]
    assert section["num_subsets"] == [4, 6, 4, 1]
    for size in section["sizes"]:
        scored = [
            metrics.scores(
                metrics.ensemble_log_probs(predictions.arrays["log_probs"][list(subset)]),
                predictions.targets,
            )
            for subset in itertools.combinations(range(4), size)
        ]
        for name in metrics.SCORES:
            values = [one[name] for one in scored]
            assert section["mean"][name][size - 1] == pytest.approx(np.mean(values))
            assert section["low"][name][size - 1] == pytest.approx(min(values))
            assert section["high"][name][size - 1] == pytest.approx(max(values))


@pytest.mark.parametrize("num_estimators", [(1, 1, 1, 1), (40, 40, 40, 40), (3, 1, 5, 2)])
@pytest.mark.parametrize(
    "likelihood", [Gaussian(0.0, 1.0, -5.0, 5.0), Poisson(0.0, 1.0, 0.0, 20.0)]
)
def test_the_crps_of_mixtures_follows_from_that_of_pairs(likelihood, num_estimators):
    rng = np.random.default_rng(0)
    size = (sum(num_estimators), 30)
    arrays = {"rate": np.exp(rng.normal(1, 0.5, size))}
    if isinstance(likelihood, Gaussian):
        arrays = {"loc": rng.normal(size=size), "scale": np.exp(rng.normal(-1, 0.3, size))}
    members = np.repeat(np.arange(4), num_estimators)
    view = likelihood.view(arrays, rng.poisson(2, 30), members)
    section = score_sizes(view)
    for size in section["sizes"]:
        some = [view.members(one) for one in itertools.combinations(range(4), size)]
        values = [one.crps.mean() for one in some]
        found = [section[name]["crps"][size - 1] for name in ("mean", "low", "high")]
        expected = [np.mean(values), min(values), max(values)]
        np.testing.assert_allclose(found, expected, rtol=2e-4)


def test_probabilities_that_underflow_beside_another_member_survive():
    log_probs = np.array([[[-900.0, 0.0]], [[-901.0, 0.0]], [[0.0, -900.0]]])
    section = score_sizes(labelled(log_probs, np.array([0])))
    expected = np.mean([metrics.nll(one, np.array([0])) for one in log_probs])
    assert section["mean"]["nll"][0] == pytest.approx(expected)
    assert expected > 600


def test_impossible_labels_give_infinite_scores_and_say_so():
    with np.errstate(divide="ignore"):
        log_probs = np.log(np.array([[[1.0, 0.0]]] * 3))
    section = score_sizes(labelled(log_probs, np.array([1])))
    assert section["mean"]["nll"] == [np.inf] * 3
    assert section["expected_gain"]["nll"] is None


def test_the_expected_gain_in_brier_score_is_what_another_member_brings():
    """Members drawn alike: the Brier score falls as a + b / M exactly, in the mean."""
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=4000)
    logits = rng.normal(size=(4000, 3)) + rng.normal(size=(6, 4000, 3))
    log_probs = log_softmax(logits, axis=-1)
    five = score_sizes(labelled(log_probs[:5], labels))
    six = score_sizes(labelled(log_probs, labels))
    gained = five["mean"]["brier"][-1] - six["mean"]["brier"][-1]
    assert five["expected_gain"]["brier"] == pytest.approx(gained, rel=0.3)
    assert five["expected_gain"]["nll"] > 0


def test_copies_of_a_member_bring_nothing():
    predictions = make_predictions(0, num_members=1, num_examples=40)
    copies = labelled(np.repeat(predictions.arrays["log_probs"], 5, axis=0), predictions.targets)
    section = score_sizes(copies)
    assert section["mean"]["nll"] == pytest.approx([section["mean"]["nll"][0]] * 5)
    assert section["expected_gain"]["nll"] == pytest.approx(0, abs=1e-12)


def test_order_of_members_changes_nothing():
    predictions = make_predictions(0, num_members=8, num_examples=30)
    shuffled = labelled(predictions.arrays["log_probs"][::-1], predictions.targets)
    ours, theirs = score_sizes(predictions), score_sizes(shuffled)
    for name in metrics.SCORES:
        assert theirs["mean"][name] == pytest.approx(ours["mean"][name])


@pytest.mark.check
def test_of_many_members_a_seeded_sample_of_subsets_is_scored():
    predictions = make_predictions(0, num_members=12, num_examples=20)
    section = score_sizes(predictions)
    assert section["num_subsets"][0] == section["num_subsets"][-2] == 12
    many = make_predictions(0, num_members=75, num_examples=5)
    section_of_many = score_sizes(many)
    members = [metrics.nll(one, many.targets) for one in many.arrays["log_probs"]]
    assert section_of_many["mean"]["nll"][0] == pytest.approx(np.mean(members))
    assert max(section["num_subsets"]) == MAX_SUBSETS
    assert section == score_sizes(predictions)


def test_the_gain_is_what_the_last_member_brought_scaled_to_the_next():
    predictions = make_predictions(0, num_members=5)
    section = score_sizes(predictions)
    assert section["expected_gain"].keys() == set(metrics.SCORES)
    for name, sign in (("nll", -1), ("ece", -1), ("accuracy", 1), ("accuracy_at_80", 1)):
        last = section["mean"][name][-1] - section["mean"][name][-2]
        assert section["expected_gain"][name] == pytest.approx(sign * last * 4 / 6)


def test_the_gain_of_one_good_among_poor_members_is_not_known():
    """One right member and two of noise: what a fourth would be like, nobody knows."""
    rng, labels = np.random.default_rng(0), np.arange(300) % 3
    logits = rng.normal(size=(3, 300, 3))
    logits[0, np.arange(300), labels] += 8
    section = score_sizes(labelled(log_softmax(logits, axis=-1), labels))
    low, high = section["gain_interval"]
    assert low < 0 < high


@pytest.mark.parametrize("num_members", [1, 2])
def test_of_one_or_two_members_nothing_is_known(num_members):
    few = score_sizes(make_predictions(0, num_members=num_members))
    assert set(few["expected_gain"].values()) == {None}
    assert few["gain_interval"] is None


def test_one_test_example_tells_nothing():
    tiny = score_sizes(make_predictions(0, num_examples=1))
    assert tiny["gain_interval"] is None
