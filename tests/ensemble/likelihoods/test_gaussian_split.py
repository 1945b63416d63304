"""A Gaussian whose variance is split, as a teacher's is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ensemble.likelihoods.gaussian import Gaussian
from ensemble.likelihoods.gaussian_split import SHARE, GaussianSplit

TARGETS = np.array([1.0, 2.0, 4.0, 9.0], np.float32)
SPLIT, PLAIN = GaussianSplit.of_data(TARGETS, ()), Gaussian.of_data(TARGETS, ())
OUTPUTS = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 3)), jnp.float32)  # [M, N, K].


@pytest.fixture
def arrays():
    """Predictions of two members."""
    return {name: np.asarray(one) for name, one in SPLIT.predict({}, OUTPUTS).items()}


def test_the_distribution_is_a_gaussian_s(arrays):
    predicted = PLAIN.predict({}, OUTPUTS[..., :2])
    expected = {name: np.asarray(one) for name, one in predicted.items()}
    for name, one in expected.items():
        np.testing.assert_array_equal(arrays[name], one)
    found, plain = SPLIT.summarise(arrays, TARGETS), PLAIN.summarise(expected, TARGETS)
    assert found["ensemble"] == plain["ensemble"]


def test_the_parts_of_the_variance_are_moved_and_not_changed(arrays):
    found, plain = SPLIT.prediction(arrays, None), PLAIN.prediction(arrays, None)
    doubt = (arrays[SHARE] * arrays["scale"] ** 2).mean(axis=0)
    np.testing.assert_allclose(found.epistemic, plain.epistemic + doubt, rtol=1e-5)
    np.testing.assert_allclose(
        found.aleatoric + found.epistemic, found.standard_deviation**2, rtol=1e-5
    )
    exported = jax.jit(SPLIT.exported)(arrays, None)
    for part in ("aleatoric", "epistemic"):
        np.testing.assert_allclose(exported[part], getattr(found, part), rtol=1e-4)
        mean = SPLIT.summarise(arrays, TARGETS)["diversity"][part]
        assert mean == pytest.approx(getattr(found, part).mean(), rel=1e-5)


def test_the_share_that_is_learned_is_the_teacher_s():
    taught = {"mean": 3.0, "aleatoric": 1.5, "epistemic": 0.5}

    def objective(outputs):
        return SPLIT.expected_log_prob({}, outputs, taught)[0]

    ascend = jax.jit(lambda outputs: outputs + 0.1 * jax.grad(objective)(outputs))
    outputs = jnp.zeros((1, 3))
    for _ in range(500):
        outputs = ascend(outputs)
    parts = SPLIT.predict({}, outputs)
    assert float(parts[SHARE][0]) == pytest.approx(0.25, abs=1e-3)
    assert float(parts["scale"][0] ** 2) == pytest.approx(2.0, abs=1e-2)


def test_a_file_without_a_share_is_refused(arrays):
    SPLIT.check_predictions(arrays, TARGETS)
    for share in (arrays[SHARE] + 1, None):
        forged = {**arrays, SHARE: share} if share is not None else dict(arrays)
        if share is None:
            del forged[SHARE]
        with pytest.raises(ValueError, match="must be there, and from 0 to 1"):
            SPLIT.check_predictions(forged, TARGETS)
