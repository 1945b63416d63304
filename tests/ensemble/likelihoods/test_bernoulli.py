"""Two classes by one output."""

import jax.numpy as jnp
import numpy as np
import pytest
from run_parts import of_classes

from ensemble import UserError
from ensemble.likelihoods.bernoulli import Bernoulli

LOGITS = jnp.array([[-2.0], [0.0], [90.0]])


def test_it_is_the_categorical_of_two_logits():
    two = jnp.concatenate([jnp.zeros_like(LOGITS), LOGITS], axis=-1)
    one, labels = Bernoulli(("a", "b")), jnp.array([0, 1, 1])
    assert one.num_outputs == 1
    np.testing.assert_allclose(
        one.log_prob({}, LOGITS, labels),
        of_classes(("a", "b")).log_prob({}, two, labels),
        rtol=1e-6,
    )
    log_probs = one.predict({}, LOGITS)["log_probs"]
    np.testing.assert_allclose(jnp.exp(log_probs).sum(axis=-1), 1, rtol=1e-6)


def test_more_than_two_classes_are_refused():
    with pytest.raises(UserError, match=r"3: set config\.likelihood='categorical'"):
        Bernoulli.of_data(np.array([0, 1, 2]), ("a", "b", "c"))


def test_numbers_are_refused():
    with pytest.raises(UserError, match="'bernoulli' is for classes"):
        Bernoulli.of_data(np.array([0.5, 1.5]), ())
