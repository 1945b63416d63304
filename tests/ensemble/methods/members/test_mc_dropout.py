"""MC dropout: passes with masks that all examples share, the same wherever they are predicted."""

import dataclasses
import pathlib

import jax
import numpy as np
import pytest
from conftest import small_config
from flax import linen as nn

import ensemble
from ensemble import UserError
from ensemble.export import export
from ensemble.fitted import OWN
from ensemble.predictor import Predictor

CONFIG = small_config(method="mc_dropout", model="mlp", ensemble_size=2, num_epochs=3) | {
    "mlp.widths": "32",
    "mlp.dropout": 0.3,
    "mc_dropout.num_passes": 8,
}
QUIET = {"show_progress": False}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run: its workdir, and its result."""
    from small_runs import make_blobs

    workdir = tmp_path_factory.mktemp("mc_dropout")
    return workdir, ensemble.train(CONFIG, make_blobs(), str(workdir), **QUIET)


def log_probs(predictor, inputs):
    return predictor.member_arrays(inputs)["log_probs"]


@pytest.mark.check
def test_a_member_predicts_with_the_mean_of_its_passes(run, blobs):
    workdir, result = run
    predictor = ensemble.load(workdir)
    assert predictor.description == "16 dropout masks of 2 members"
    of_passes = np.exp(log_probs(predictor, blobs["inputs"]))
    assert len(np.unique(of_passes[:, 0, 0])) == 16
    of_members = predictor.predict_members(blobs["inputs"])
    expected = of_passes.reshape(2, 8, *of_passes.shape[1:]).mean(axis=1)
    np.testing.assert_allclose(np.exp(of_members.arrays["log_probs"]), expected, atol=1e-6)
    assert len(result.report["test"]["scores"]["nll"]["members"]) == 2
    single = [one.mean(axis=1) for one in (of_passes, expected)]
    assert single[0].shape != single[1].shape


@pytest.mark.check
def test_the_same_estimators_on_any_devices_in_any_batch_and_after_loading(run, blobs):
    workdir, result = run
    inputs = blobs["inputs"][:70]
    expected = log_probs(result.predictor, inputs)
    for num_devices in (1, 3, 8):
        found = log_probs(ensemble.load(workdir, num_devices=num_devices), inputs)
        np.testing.assert_allclose(found, expected, atol=2e-6)
    for rows in (slice(0, 1), slice(13, 16), slice(5, 70)):
        found = log_probs(result.predictor, inputs[rows])
        np.testing.assert_allclose(found, expected[:, rows], atol=2e-6)


@pytest.mark.check
def test_an_export_has_the_same_passes(run, blobs):
    predictor = run[1].predictor
    exported = jax.export.deserialize(bytearray(export(predictor)))
    inputs = blobs["inputs"][:9]
    np.testing.assert_allclose(exported.call(inputs)["probs"], predictor(inputs).probs, atol=2e-6)


@pytest.mark.check
def test_report_and_evaluation_are_of_the_same_passes(run, blobs):
    workdir, result = run
    found = ensemble.evaluate(workdir, data=blobs, datasets=["uniform"], **QUIET)
    assert found["test"] == result.report["test"]
    assert found["members"] == [0, 1]


@pytest.mark.check
def test_passes_are_no_part_of_training(run, blobs, tmp_path):
    """More of them go on with the same members; the first are the same."""
    result = run[1]
    more = ensemble.train({**CONFIG, "mc_dropout.num_passes": 12}, blobs, str(tmp_path), **QUIET)
    ours, theirs = more.predictor.fitted, result.predictor.fitted
    jax.tree.map(np.testing.assert_array_equal, ours.sets, theirs.sets)
    found = log_probs(more.predictor, blobs["inputs"]).reshape(2, 12, -1)[:, :8]
    expected = log_probs(result.predictor, blobs["inputs"]).reshape(2, 8, -1)
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.check
def test_a_member_that_joins_leaves_the_passes_of_the_others(run, blobs, tmp_path):
    ensemble.train(CONFIG, blobs, str(tmp_path), **QUIET)
    ensemble.train({**CONFIG, "ensemble_size": 3}, blobs, str(tmp_path), **QUIET)
    grown = ensemble.load(tmp_path)
    assert (grown.fitted.num_sets, grown.fitted.num_estimators) == (3, 24)
    found = log_probs(grown, blobs["inputs"])[:16]
    np.testing.assert_allclose(found, log_probs(run[1].predictor, blobs["inputs"]), atol=2e-6)


def with_passes(predictor, num_passes, seed):
    """The same members by other keys and as many passes."""
    fitted = predictor.fitted
    keys = jax.random.key_data(jax.random.split(jax.random.key(seed), fitted.num_sets))
    sets = {**fitted.sets, OWN: np.asarray(keys)}
    fitted = dataclasses.replace(fitted, sets=sets, num_passes=num_passes)
    return Predictor(predictor.task, fitted, predictor.members)


@pytest.mark.check
def test_the_mean_of_many_passes_is_that_of_more(run, blobs):
    inputs = blobs["inputs"][:20]
    few = np.exp(log_probs(with_passes(run[1].predictor, 10_000, 1), inputs))
    many = np.exp(log_probs(with_passes(run[1].predictor, 100_000, 2), inputs))
    few, many = (one.reshape(2, -1, *one.shape[1:]) for one in (few, many))
    error = few.std(axis=1) * np.sqrt(1 / few.shape[1] + 1 / many.shape[1])
    off = (few.mean(axis=1) - many.mean(axis=1)) / error
    # Of 120 numbers, few of which are independent.
    assert np.abs(off).max() < 4


class TwoHeads(nn.Module):
    """Adds a head in training."""

    num_outputs: int

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Dropout(0.5)(x.reshape(len(x), -1), deterministic=not train)
        first, second = nn.Dense(self.num_outputs)(x), nn.Dense(self.num_outputs)(x)
        return first + second if train else first


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"mlp.dropout": 0.0}, "draws no noise where it predicts with a key; set config.mlp.dropo"),
        ({"model": "two_heads"}, "uses its switch for training for more than Dropout"),
        (
            {"model": "logistic_regression"},
            "draws no noise where it predicts with a key; use layers nn.Dropout",
        ),
        ({"mc_dropout.num_passes": 1}, "mc_dropout.num_passes=1 must be from 2 to 10000"),
    ],
)
def test_what_has_no_noise_of_its_own_is_refused(changes, part, blobs, tmp_path):
    ensemble.networks.register("two_heads", TwoHeads)
    config = {**CONFIG, **changes}
    if config["model"] != "mlp":
        config = {key: one for key, one in config.items() if not key.startswith("mlp.")}
    with pytest.raises(UserError) as error:
        ensemble.train(config, blobs, str(tmp_path / "run"), **QUIET)
    assert part in str(error.value)
    assert not pathlib.Path(tmp_path / "run" / "report.json").exists()
