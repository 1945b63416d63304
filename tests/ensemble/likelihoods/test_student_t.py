"""Student's t noise, whose degrees of freedom are learned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ensemble.likelihoods.gaussian import Gaussian
from ensemble.likelihoods.student_t import MIN_DF, StudentT

TARGETS = np.random.default_rng(0).normal(size=500).astype(np.float32)


def test_an_outlier_costs_less_than_under_a_gaussian():
    outputs, far = jnp.zeros((1, 2)), np.array([30.0], np.float32)
    student, gaussian = StudentT.of_data(TARGETS, ()), Gaussian.of_data(TARGETS, ())
    params = student.init(jax.random.key(0))
    assert student.log_prob(params, outputs, far) > gaussian.log_prob({}, outputs, far) + 100


@pytest.mark.check
def test_the_degrees_of_freedom_go_with_the_tails():
    """Gaussian data ask for more of them, heavy tails for fewer."""
    likelihood = StudentT.of_data(TARGETS, ())
    heavy = np.random.default_rng(1).standard_t(2.5, size=500).astype(np.float32)

    def slope(targets):
        def total(raw):
            return likelihood.log_prob({"raw_df": raw}, jnp.zeros((500, 2)), targets).mean()

        return float(jax.grad(total)(jnp.zeros(())))

    assert slope(TARGETS) > 0 > slope(heavy)


def test_there_always_is_a_variance():
    likelihood = StudentT.of_data(TARGETS, ())
    parts = likelihood.predict({"raw_df": jnp.float32(-100)}, jnp.zeros((1, 2)))
    assert float(parts["df"][0]) == pytest.approx(MIN_DF)
    assert np.isfinite(likelihood.standard_variance(parts)).all()
