"""A million samples by random walks against moments that are known."""

import names
import numpy as np
import pytest
from small import refused, run_command

WALKS = {
    "method": "rwm",
    "num_devices": 2,
    "num_chains": 2048,
    "sampler.num_warmup": 480,
    "sampler.num_samples": 1024,
    "log_every_steps": 1024,
}


def walk(workdir, **values):
    return names.train(names.config(WALKS, **values), None, str(workdir), show_progress=False)


def gaussian(positions):
    """Log density of a normal with means 1 and -2, variances 4 and 1, correlation 1/2."""
    z = (positions - np.array([1.0, -2.0])) / np.array([2.0, 1.0])
    return -(z[:, 0] ** 2 - z[:, 0] * z[:, 1] + z[:, 1] ** 2) / 1.5


DENSITIES = {
    "gaussian_mixture": ("gaussian_mixture", [0.92], [9.7016]),
    "a function": (lambda: names.density(gaussian, 2), [1, -2], [4, 1]),
}
"""Value of `config.density`, exact means, exact variances."""


@pytest.mark.parametrize(
    "case",
    [one if one == "gaussian_mixture" else pytest.param(one, marks=pytest.mark.check)
     for one in DENSITIES],
)  # fmt: skip
def test_moments_are_the_exact_ones_within_their_errors(case, tmp_path):
    density, means, variances = DENSITIES[case]
    walk(tmp_path, density=density if isinstance(density, str) else density())
    found = names.posterior(names.report(tmp_path))
    for name, exact in (("mean", means), ("variance", variances)):
        errors = np.abs(np.array(found[name]) - exact)
        assert (errors < 5 * np.array(found[f"mcse_{name}"])).all()
        assert (errors < 0.05 * np.array(variances)).all()
    assert found["nested_rhat_max"] < 1.02


@pytest.mark.check
def test_more_samples_go_on_from_those_there_are(tmp_path):
    walk(tmp_path / "whole")
    names.train(
        names.config({**WALKS, "sampler.num_samples": 512, "log_every_steps": 512}),
        None,
        str(tmp_path / "parts"),
        show_progress=False,
    )
    walk(tmp_path / "parts")
    found = [names.posterior(names.report(tmp_path / one)) for one in ("whole", "parts")]
    for name in ("mean", "variance"):
        np.testing.assert_allclose(found[0][name], found[1][name], rtol=1e-5)


@pytest.mark.check
def test_the_command_samples_the_mixture(tmp_path):
    few = names.flags(config=names.config(WALKS))
    done = run_command("train", "--config=mixture_rwm", f"--workdir={tmp_path}", *few)
    assert "2,097,152 samples of 2048 chains" in done.stdout.replace("2,048", "2048")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"density": "banana"}, ["banana", "gaussian_mixture"]),
        ({"num_chains": 0}, ["num_chains=0"]),
        ({"learning_rate": 0.1}, ["learning_rate"]),
    ],
)
def test_a_mistake_is_one_line(values, words, tmp_path):
    refused(lambda: walk(tmp_path / "run", **values), *words)
    assert not names.file(tmp_path / "run", "config.json").exists()
