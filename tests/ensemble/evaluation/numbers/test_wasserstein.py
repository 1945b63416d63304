"""Distances of distributions of numbers, where they are known."""

import math

import numpy as np
import pytest
import scipy.special

from ensemble import likelihoods
from ensemble.evaluation.numbers import wasserstein
from ensemble.likelihoods.mixture_density import GRID

NUM_MEMBERS, NUM_EXAMPLES = 4, 30


@pytest.fixture(scope="module")
def gaussian():
    targets = np.random.default_rng(0).normal(size=300)
    return likelihoods.named("gaussian").of_data(targets, ())


def members(loc, scale):
    shape = (NUM_MEMBERS, NUM_EXAMPLES)
    return {"loc": np.broadcast_to(loc, shape), "scale": np.broadcast_to(scale, shape)}


def distances(likelihood, ours, theirs):
    first, second = (likelihood.distribution(one) for one in (ours, theirs))
    return wasserstein.distances(first, NUM_MEMBERS, second, NUM_MEMBERS)


def test_of_normal_distributions_it_is_known(gaussian):
    moved = distances(gaussian, members(0.3, 0.5), members(0.0, 0.5))
    assert moved["wasserstein"] == pytest.approx(0.6, rel=2e-3)  # The mean moves by so many sd.
    wider = distances(gaussian, members(0.0, 1.0), members(0.0, 0.5))
    assert wider["wasserstein"] == pytest.approx(math.sqrt(2 / math.pi), rel=5e-3)
    assert wider["halves"] == {"wasserstein": 0.0}
    assert wider["wasserstein_by_chance"] == 0


def test_members_that_differ_put_it_into_proportion(gaussian):
    rng = np.random.default_rng(1)
    noise = [0.1 * rng.normal(size=(NUM_MEMBERS, NUM_EXAMPLES)) for _ in range(2)]
    found = distances(gaussian, members(noise[0], 0.5), members(noise[1], 0.5))
    assert found["wasserstein"] == pytest.approx(found["wasserstein_by_chance"], rel=0.3)
    assert found["halves"]["wasserstein"] > found["wasserstein_by_chance"]


def test_chains_are_read_off_their_grid(gaussian):
    loc = np.array([-0.2, 0.1, 0.3, 0.0])[:, None]
    ours, theirs = members(loc, 0.5), members(0.0, 0.6)
    grid_cdf = gaussian.cdf(
        {name: one[..., None] for name, one in ours.items()}, gaussian.grid, np, scipy.special
    )
    chains = gaussian.distribution({GRID: grid_cdf})
    exact = gaussian.distribution(ours)
    values = np.linspace(-1, 1, NUM_EXAMPLES)
    np.testing.assert_allclose(chains.member_cdfs(values), exact.member_cdfs(values), atol=2e-3)
    beyond = chains.member_cdfs(np.full(NUM_EXAMPLES, 1e6))
    np.testing.assert_allclose(beyond, 1, atol=1e-6)
    found = wasserstein.distances(chains, NUM_MEMBERS, gaussian.distribution(theirs), NUM_MEMBERS)
    assert found["wasserstein"] == pytest.approx(
        distances(gaussian, ours, theirs)["wasserstein"], abs=5e-3
    )
