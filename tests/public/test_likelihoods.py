"""What holds of likelihoods beside the rows of `runs.RUNS`, which learn and score by each."""

import names
import numpy as np
import pytest
from runs import LIKELIHOODS
from small import refused, train

HMC = {
    "method": "hmc",
    "model": "mlp",
    "mlp.widths": "8",
    "prior": "normal(1)",
    "init_from": "prior",
    "num_chains": 1,
    "num_devices": 1,
    "log_every_steps": 10,
    "sampler.step_size": 0.02,
    "sampler.num_warmup": 20,
    "sampler.num_samples": 20,
    "sampler.num_leapfrog_steps": 4,
}
SAMPLED = ("bernoulli", "gaussian", "student_t", "mixture_of_gaussians")
"""Those that no row of `runs.RUNS` samples by."""


@pytest.mark.check
@pytest.mark.parametrize("likelihood", SAMPLED)
def test_a_posterior_is_sampled_by_it(likelihood, tmp_path):
    data = LIKELIHOODS[likelihood]()
    config = names.config(HMC, likelihood=likelihood)
    result = names.train(config, data, str(tmp_path / "run"), show_progress=False)
    assert np.isfinite(names.number(names.report(tmp_path / "run"), "nll"))
    loaded, trained = (
        one(data["inputs"][:7]) for one in (names.load(tmp_path / "run"), result.predictor)
    )
    for name, values in names.arrays(trained).items():
        np.testing.assert_allclose(names.arrays(loaded)[name], values, rtol=1e-3, err_msg=name)


REFUSED = {
    "numbers as classes": ("categorical", "gaussian", "categorical", "likelihood"),
    "classes as numbers": ("gaussian", "categorical", "gaussian", "likelihood"),
    "three classes as two": ("bernoulli", "categorical", "bernoulli", "3"),
    "no such": ("gausian", "gaussian", "gausian", "gaussian"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_targets_that_a_likelihood_does_not_take_are_one_line(case, tmp_path):
    likelihood, data, *words = REFUSED[case]
    refused(lambda: train({"likelihood": likelihood}, LIKELIHOODS[data](), tmp_path), *words)
    assert not names.file(tmp_path, "config.json").exists()
