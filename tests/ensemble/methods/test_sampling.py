"""Sampling through `ensemble.train`: what a run leaves, how it goes on, what it refuses."""

import json

import numpy as np
import pytest
import scipy.special
from run_parts import draws_of

import ensemble
from ensemble import InputError, TrainingError
from ensemble.methods import start


def sampling_config(**overrides):
    """A regression on the blobs, of two chains on two devices.

    Every number of draws that is logged at a time is a program to compile: here are few.
    """
    hmc = {
        "step_size": 0.1,
        "num_leapfrog_steps": 5,
        "num_warmup": 20,
        "num_samples": 30,
        "thinning": 3,
    } | overrides.pop("sampler", {})
    config = {
        "model": "logistic_regression",
        "method": "hmc",
        "prior": "normal(1)",
        "num_chains": 2,
        "num_devices": 2,
        "log_every_steps": 20,
        "sampler": hmc,
    }
    return {**config, **overrides}


def report_of(workdir):
    return json.loads((workdir / "results.json").read_text())


def stored(workdir, split="test"):
    with np.load(workdir / "predictions" / f"{split}.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def values_of(workdir):
    draws = draws_of(workdir)
    return draws.scalars(), *draws.positions()


@pytest.fixture(scope="module")
def finished(blobs, tmp_path_factory):
    """A run that keeps every draw, and its result."""
    workdir = tmp_path_factory.mktemp("posterior")
    config = sampling_config(sampler={"thinning": 1})
    return workdir, ensemble.train(config, data=blobs, workdir=str(workdir))


@pytest.mark.check
def test_predictions_are_the_averages_over_all_draws(finished, blobs):
    workdir, result = finished
    _, positions, numbers = values_of(workdir)
    assert numbers.tolist() == list(range(20, 50))
    kernel, bias = (np.float64(positions["params"]["Dense_0"][name]) for name in ("kernel", "bias"))
    dataset = result.predictor.task.dataset
    for split in ("validation", "test"):
        inputs, labels = dataset.splits[split]
        x = (inputs.astype(np.float64) - dataset.shift) * dataset.scale
        logits = np.einsum("nf,cdfk->cdnk", x, kernel)
        log_probs = scipy.special.log_softmax(logits + bias[:, :, None], axis=-1)
        probs = np.exp(log_probs)
        predictions = stored(workdir, split)
        np.testing.assert_allclose(np.exp(predictions["log_probs"]), probs.mean(axis=1), atol=1e-5)
        entropies = -(probs * log_probs).sum(axis=-1).mean(axis=1)
        np.testing.assert_allclose(predictions["entropies"], entropies, atol=1e-5)
        report = report_of(workdir)
        aleatoric = report["metrics"][split]["aleatoric"]["value"]
        assert aleatoric == pytest.approx(entropies.mean(), abs=1e-5)
        accuracy = (log_probs.argmax(axis=-1) == labels).mean()
        nll = -log_probs[..., np.arange(len(labels)), labels].mean()
        brier = ((probs - np.eye(3)[labels]) ** 2).sum(axis=-1).mean()
        expected = {"accuracy": accuracy, "nll": nll, "brier": brier}
        assert report["single_draw"][split] == pytest.approx(expected, rel=1e-4)


@pytest.mark.check
def test_chains_that_all_refuse_end_the_run(blobs):
    config = sampling_config(sampler={"step_size": 1e6, "num_warmup": 0, "num_samples": 20})
    line = (
        r"all of the \d chains under way became stuck by step \d+; lower config.sampler.step_size"
    )
    with pytest.raises(TrainingError, match=line):
        ensemble.train(config, data=blobs)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"method": "gibbs"}, "config.method='gibbs'"),
        ({"sampler": {"mass_matrix": "round"}}, "low_rank, dense"),
        ({"sampler": {"num_samples": 0}}, "config.sampler.num_samples=0"),
        ({"prior": "none"}, "config.prior='none'.*'normal"),
        ({"prior": "normal(0)"}, "positive scales"),
        (
            {"augment": {"shift": 1}},
            "config.augment.shift=1.*'deep_ensemble'",
        ),
        ({"label_smoothing": 0.1}, "label_smoothing=0.1.*config.method='deep_ensemble'"),
        ({"num_epochs": 3}, "config.num_epochs=3 is for .*: remove it"),
        (
            {"method": "mclmc", "sampler": {"mass_matrix": "dense"}},
            "must be one of identity, diagonal, kronecker",
        ),
        (
            {"model": "small_runs:Tiny", "sampler": {"mass_matrix": "kronecker"}},
            "needs a linear model",
        ),
        ({"init_from": "/nowhere"}, "/nowhere is not a workdir"),
        ({"stop_when": {"r_hat": 0.9}}, "config.stop_when.r_hat=0.9 must be above 1"),
        ({"num_chains": 0}, "config.num_chains=0 must be a whole number above 0"),
        (
            {"sampler": {"thinning": 31}},
            "config.sampler.thinning=31.*config.sampler.num_samples=30",
        ),
        ({"init_from": "map"}, "config.init_from='map' is for .*'kronecker'"),
    ],
)
def test_bad_input_is_one_line(change, line, blobs, monkeypatch):
    monkeypatch.setattr(start, "find_map", None)  # Nothing that takes long comes before.
    with pytest.raises(InputError, match=line):
        ensemble.train(sampling_config(**change), data=blobs)
