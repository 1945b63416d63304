"""The Dirichlet of a teacher's members, against draws and against its moments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from small_runs import make_blobs, small_config

import ensemble
from ensemble.likelihoods.dirichlet import Dirichlet

CLASSES = Dirichlet(list("abc"))
RNG = np.random.default_rng(0)


def entropy(probs):
    """Nats, over the last axis."""
    return scipy.special.entr(probs).sum(axis=-1)


def taught_by(probs):
    """What `exported` says of members with these probabilities [T, B, C]."""
    log_probs = jnp.log(jnp.asarray(probs, jnp.float32))
    return CLASSES.exported({"log_probs": log_probs}, None)


@pytest.mark.parametrize("log_precision", [-2.0, 0.0, 3.0])
def test_the_entropy_is_that_of_draws(log_precision):
    raw = 15 * np.arctanh(log_precision / 15)
    outputs = jnp.array([[0.5, -1.0, 2.0, raw]])
    predicted = CLASSES.predict({}, outputs)
    mean = scipy.special.softmax(outputs[0, :3])
    np.testing.assert_allclose(np.exp(predicted["log_probs"][0]), mean, rtol=1e-5)
    draws = RNG.dirichlet(mean * np.exp(log_precision), 40_000)
    error = entropy(draws).std() / 200
    assert abs(float(predicted["entropies"][0]) - entropy(draws).mean()) < 5 * error


@pytest.mark.parametrize(("log_precision", "share"), [(40.0, 0.0), (-40.0, 1.0)])
def test_precisions_beyond_all_measure_stay_finite(log_precision, share):
    outputs = jnp.array([[0.5, -1.0, 2.0, log_precision]])
    predicted = CLASSES.predict({}, outputs)
    total = entropy(np.exp(np.asarray(predicted["log_probs"], np.float64)))[0]
    epistemic = total - float(predicted["entropies"][0])
    assert epistemic == pytest.approx(share * total, abs=1e-4)


@pytest.mark.check
def test_members_that_are_draws_of_a_dirichlet_are_matched():
    """Descent on the objective finds the mean and the precision that the draws have."""
    concentrations = np.array([4.0, 1.0, 3.0])
    taught = taught_by(RNG.dirichlet(concentrations, (4000, 1)))

    def objective(outputs):
        return CLASSES.expected_log_prob({}, outputs, taught)[0]

    ascend = jax.jit(lambda outputs: outputs + jax.grad(objective)(outputs))
    outputs = jnp.zeros((1, 4))
    for _ in range(400):
        outputs = ascend(outputs)
    precision = np.exp(15 * np.tanh(outputs[0, 3] / 15))
    found = scipy.special.softmax(outputs[0, :3]) * precision
    np.testing.assert_allclose(found, concentrations, rtol=0.1)


@pytest.mark.check
def test_members_that_agree_drive_the_precision_up_and_others_down():
    outputs = jnp.zeros((1, 4))

    def slope(probs):
        taught = taught_by(np.array(probs)[:, None])
        return float(jax.grad(lambda x: CLASSES.expected_log_prob({}, x, taught)[0])(outputs)[0, 3])

    assert slope([[0.6, 0.3, 0.1], [0.6, 0.3, 0.1]]) > 0.1
    assert slope([[0.98, 0.01, 0.01], [0.01, 0.01, 0.98]]) < -0.1


def test_labels_cannot_teach_it():
    with pytest.raises(ensemble.UserError, match="ensemble: use `ensemble distill"):
        ensemble.train(small_config(likelihood="dirichlet"), data=make_blobs())
