"""The categorical likelihood against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from ensemble.likelihoods.categorical import Categorical

CLASSES = Categorical(list("abcd"))


@pytest.fixture
def case():
    """Logits [N, C], and labels."""
    rng = np.random.default_rng(0)
    return rng.normal(0, 3, (50, 4)).astype(np.float32), rng.integers(0, 4, 50)


def test_the_outputs_are_logits(case):
    outputs, labels = case
    expected = scipy.special.log_softmax(outputs.astype(np.float64), axis=-1)
    assert CLASSES.num_outputs == 4
    assert CLASSES.init(jax.random.key(0)) == {}
    predicted = CLASSES.predict({}, outputs)
    assert predicted.keys() == {"log_probs"}
    np.testing.assert_allclose(predicted["log_probs"], expected, rtol=1e-5, atol=1e-6)
    log_prob = CLASSES.log_prob({}, outputs, labels)
    np.testing.assert_allclose(log_prob, expected[np.arange(50), labels], rtol=1e-5, atol=1e-6)


def test_probabilities_are_float32_whatever_the_network_computes_in(case):
    outputs, labels = case
    half = jnp.asarray(outputs, jnp.bfloat16)
    expected = CLASSES.log_prob({}, half.astype(jnp.float32), labels)
    assert CLASSES.log_prob({}, half, labels).dtype == jnp.float32
    np.testing.assert_array_equal(CLASSES.log_prob({}, half, labels), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_smoothed_labels_are_the_cross_entropy_with_mixed_targets(case, smoothing):
    outputs, labels = case
    mixed = (1 - smoothing) * np.eye(4)[labels] + smoothing / 4
    expected = (mixed * scipy.special.log_softmax(outputs, axis=-1)).sum(axis=-1)
    found = CLASSES.smoothed_log_prob(outputs, labels, smoothing)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_mean_over_a_teacher_s_classes_is_a_cross_entropy(case):
    outputs, _ = case
    probs = scipy.special.softmax(np.random.default_rng(1).normal(size=(50, 4)), axis=-1)
    expected = (probs * scipy.special.log_softmax(outputs, axis=-1)).sum(axis=-1)
    found = CLASSES.expected_log_prob({}, outputs, {"probs": probs})
    np.testing.assert_allclose(found, expected, rtol=1e-5)
