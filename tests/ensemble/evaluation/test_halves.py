"""How far predictions of one law are apart by chance."""

import numpy as np
import pytest

from ensemble import metrics
from ensemble.evaluation import halves


def make_members(rng, base, number):
    logits = base + 0.3 * rng.normal(size=(number, *base.shape))
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize(("num_members", "num_splits"), [(1, 0), (2, 1), (3, 3), (4, 3), (9, 10)])
def test_halves_share_out_the_members(num_members, num_splits):
    weights = halves.split_weights(num_members)
    assert weights.shape == (num_splits, 2, num_members)
    np.testing.assert_allclose(weights.sum(axis=2), 1)
    assert not (weights[:, 0] * weights[:, 1]).any()
    assert len({one.tobytes() for one in weights}) == num_splits


@pytest.mark.parametrize(("ours", "theirs"), [(4, 4), (3, 8)])
def test_by_chance_is_how_far_ensembles_of_one_law_are(ours, theirs):
    found, expected = [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        base = rng.normal(size=(50, 5))
        pair = [make_members(rng, base, one) for one in (ours, theirs)]
        variation = metrics.total_variation(*map(metrics.ensemble_log_probs, pair))
        each = [halves.of_classes(one)["total_variation"] for one in pair]
        found.append(variation)
        expected.append(halves.by_chance(each[0], ours, each[1], theirs))
    assert np.mean(found) == pytest.approx(np.mean(expected), rel=0.05)


def test_one_member_has_no_halves():
    members = make_members(np.random.default_rng(0), np.zeros((7, 3)), 1)
    assert halves.of_classes(members) is None
    assert halves.by_chance(None, 1, 0.1, 4) is None
    comparison = {"agreement": 0.5, "total_variation": 0.25, "halves": None}
    said = halves.sentence({**comparison, "total_variation_by_chance": None})
    assert said.endswith("is 0.25; what chance makes of it takes two members of each.")


def test_it_is_said_beside_what_chance_makes_of_it():
    comparison = {
        "agreement": 0.913,
        "total_variation": 0.289,
        "halves": {"agreement": 0.97, "total_variation": 0.031},
        "total_variation_by_chance": 0.027,
    }
    assert halves.sentence(comparison) == (
        "They predict the same class on 91.3% of test examples, and the total variation of their "
        "probabilities is 0.29; by chance alone, with so many members, it would be about 0.027 "
        "(two halves of the other: 97.0% and 0.031)."
    )
    numbers = {"wasserstein": 0.2, "halves": {"wasserstein": 0.1}, "wasserstein_by_chance": 0.07}
    assert "is 0.2 of the other's standard deviations; by chance" in halves.sentence(numbers)
    assert halves.sentence({"recipe": {}}) == ""
