"""A run that went wrong says so where its user looks: report, terminal, `load`, `evaluate`."""

import logging

import numpy as np
import pytest
from small_runs import small_config

import ensemble

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def noise():
    """Labels that inputs say nothing of."""
    return {"inputs": RNG.normal(size=(2000, 6)), "labels": RNG.integers(0, 2, 2000)}


@pytest.fixture(scope="module")
def lost(noise, tmp_path_factory):
    """A finished run whose members know nothing."""
    workdir = str(tmp_path_factory.mktemp("lost"))
    result = ensemble.train(
        small_config(learning_rate=0.001, num_epochs=1), noise, workdir, show_progress=False
    )
    return workdir, result


@pytest.mark.check
def test_an_ensemble_at_chance_is_said_everywhere(lost, noise, caplog):
    workdir, result = lost
    (line,) = [line for line in result.report["notes"] if "not measurably better" in line]
    assert line in repr(result).splitlines()
    with caplog.at_level(logging.WARNING):
        ensemble.load(workdir)
    assert line in caplog.text
    evaluation = ensemble.evaluate(workdir, datasets=[], data=noise)
    assert line in repr(evaluation).splitlines()


@pytest.mark.check
def test_a_good_run_says_nothing(blobs):
    config = small_config(num_epochs=20)
    assert ensemble.train(config, blobs, show_progress=False).report["notes"] == []


def test_a_network_that_ends_in_a_softmax_is_refused(blobs):
    import flax.linen as nn

    class WithSoftmax(nn.Module):
        num_outputs: int

        @nn.compact
        def __call__(self, x):
            return nn.softmax(nn.Dense(self.num_outputs)(x))

    with pytest.raises(ensemble.InputError, match=r"ends in a softmax.*takes logits"):
        ensemble.train(small_config(model=WithSoftmax), blobs)


@pytest.mark.check
def test_weights_of_examples_count_and_samplers_refuse_them():
    inputs = np.zeros((120, 3), np.float32)
    data = {"inputs": inputs, "labels": np.arange(120) % 2}
    weights = np.where(data["labels"] == 1, 3.0, 1.0)
    config = small_config(num_epochs=200, train_on_all=True, batch_size=120, momentum=0.0)
    config |= {"log_every_steps": 100, "eval_every_epochs": 100}
    probs = ensemble.train(config, data | {"sample_weight": weights}).predictor(inputs[:1]).probs
    np.testing.assert_allclose(probs[0, 1], 0.75, atol=0.05)
    with pytest.raises(ensemble.InputError, match="in a posterior every example counts once"):
        ensemble.train(
            {"model": "small_runs:Tiny", "method": "hmc"}, data | {"sample_weight": weights}
        )
