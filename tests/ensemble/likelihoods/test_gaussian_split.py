"""A Gaussian whose variance is split, as a teacher's is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ensemble.likelihoods.gaussian import Gaussian
from ensemble.likelihoods.gaussian_split import SHARE, GaussianSplit
from ensemble.scoring.sections import score_split, values_in, values_of

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
    found, plain = (
        score_split(SPLIT.view(arrays, TARGETS)),
        score_split(PLAIN.view(expected, TARGETS)),
    )
    for name in values_in(found, "members"):
        assert found["scores"][name] == plain["scores"][name]


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
        mean = values_of(SPLIT.view(arrays, TARGETS))[part]
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


def test_it_accepts_what_a_gaussian_accepts(arrays):
    threshold = float(np.median(SPLIT.view(arrays, TARGETS).doubt))
    accepted = PLAIN.prediction(arrays, None, threshold).accepted
    assert 0 < accepted.sum() < len(TARGETS)
    np.testing.assert_array_equal(SPLIT.prediction(arrays, None, threshold).accepted, accepted)
    exported = jax.jit(SPLIT.exported, static_argnums=1)(arrays, None, threshold)
    np.testing.assert_array_equal(exported["accepted"], accepted)


@pytest.mark.check
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_factor_changes_both_parts_alike(arrays, factor):
    before, after = (SPLIT.prediction(arrays, one) for one in (None, factor))
    exported = jax.jit(SPLIT.exported, static_argnums=1)(arrays, factor)
    for part in ("aleatoric", "epistemic"):
        scaled = factor**2 * getattr(before, part)
        np.testing.assert_allclose(getattr(after, part), scaled, rtol=1e-5)
        np.testing.assert_allclose(exported[part], scaled, rtol=1e-4)


def test_scores_and_their_intervals_are_of_the_split(arrays):
    found = score_split(SPLIT.view(arrays, TARGETS))["scores"]
    for part in ("aleatoric", "epistemic"):
        expected = getattr(SPLIT.prediction(arrays, None), part).mean()
        assert found[part]["value"] == pytest.approx(expected, rel=1e-5)
        low, high = found[part]["interval"]
        assert low < expected < high
