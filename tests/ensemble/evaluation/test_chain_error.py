"""How far the test NLL of a posterior would move with more draws."""

import types

import numpy as np
import pytest

from ensemble.draws.predictive_error import OVER
from ensemble.evaluation import chain_error
from ensemble.likelihoods.gaussian import Gaussian


def make_subject(posterior, is_finished=True):
    losses = np.array([[0.2, 0.4], [0.3, 0.4], [0.2, 0.5]])  # Of three chains.
    scale = np.exp(losses) / np.sqrt(2 * np.pi)  # Of Gaussians with their means at the targets.
    likelihood = Gaussian(0.0, 1.0, -1.0, 1.0)
    return types.SimpleNamespace(
        report={} if posterior is None else {"posterior": posterior},
        is_finished=is_finished,
        view=likelihood.view({"loc": np.zeros((3, 2)), "scale": scale}, np.zeros(2)),
        likelihood=likelihood,
    )


def test_it_is_said_of_a_posterior():
    found = chain_error.score_chains(make_subject({"ess_bulk_min": 101.0}))
    densities = np.exp([[-0.2, -0.4], [-0.3, -0.4], [-0.2, -0.5]])
    assert found["nll"] == pytest.approx(-np.log(densities.mean(axis=0)).mean())
    low, high = found["nll_interval"]
    assert low < found["nll"] < high
    assert found["interval_over"] == OVER


@pytest.mark.parametrize(
    ("posterior", "is_finished"),
    [
        (None, True),
        ({"ess_bulk_min": 101.0}, False),
        ({"ess_bulk_min": 100.0}, True),
        ({"ess_bulk_min": None}, True),
        ({}, True),
    ],
)
def test_it_is_not_said_where_it_cannot_be(posterior, is_finished):
    found = chain_error.score_chains(make_subject(posterior, is_finished))
    assert found is None
