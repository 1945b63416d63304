"""MC dropout: passes with masks that all examples share, the same wherever they are predicted."""

import numpy as np
import pytest
from conftest import small_config

import ensemble

CONFIG = small_config(method="mc_dropout", model="mlp", ensemble_size=2, num_epochs=3) | {
    "mlp.widths": "32",
    "dropout": 0.3,
    "num_draws": 8,
}
QUIET = {"show_progress": False}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run: its workdir, and its result."""
    from small_runs import make_blobs

    workdir = tmp_path_factory.mktemp("mc_dropout")
    return workdir, ensemble.train(CONFIG, make_blobs(), str(workdir), **QUIET)


def log_probs(predictor, inputs):
    return predictor(inputs).member_log_probs


@pytest.mark.check
def test_a_member_predicts_with_the_mean_of_its_passes(run, blobs):
    workdir, result = run
    predictor = ensemble.load(workdir)
    of_passes = np.exp(log_probs(predictor, blobs["inputs"]))
    assert len(np.unique(of_passes[:, 0, 0])) == 16
    of_members = predictor.predict_members(blobs["inputs"])
    expected = of_passes.reshape(2, 8, *of_passes.shape[1:]).mean(axis=1)
    np.testing.assert_allclose(np.exp(of_members.arrays["log_probs"]), expected, atol=1e-6)
    assert len(result.report["metrics"]["test"]["nll"]["members"]) == 2
    single = [one.mean(axis=1) for one in (of_passes, expected)]
    assert single[0].shape != single[1].shape
