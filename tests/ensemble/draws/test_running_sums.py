"""Running sums of predictions against sums in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from run_parts import mesh_of, of_classes

from ensemble.draws.running_sums import add_draws, averages, evaluate_draws, zero_sums
from ensemble.sharding.transfer import place_split

NUM_DRAWS, NUM_CHAINS, NUM_EXAMPLES, NUM_CLASSES = 300, 2, 5, 3
CLASSES = of_classes("abc")


def run(log_probs, labels):
    """Averages over draws [T, C, N, K], padded to three shards."""
    mesh = mesh_of(1, 3)
    split = place_split(np.zeros((NUM_EXAMPLES, 1), np.float32), labels, mesh)
    assert len(split.targets) == 6
    padded = np.concatenate([log_probs, log_probs[:, :, -1:]], axis=2).astype(np.float32)

    @jax.jit
    def add_all(sums, log_probs):
        def add(sums, one):
            terms = evaluate_draws(CLASSES, {"log_probs": one}, split)
            return add_draws(CLASSES, sums, terms), None

        return jax.lax.scan(add, sums, log_probs)[0]

    sums = add_all(zero_sums(CLASSES, NUM_CHAINS, split), padded)
    return averages(CLASSES, sums, len(log_probs), NUM_EXAMPLES)


def draw(scale):
    rng = np.random.default_rng(0)
    logits = rng.normal(0, scale, (NUM_DRAWS, NUM_CHAINS, NUM_EXAMPLES, NUM_CLASSES))
    return scipy.special.log_softmax(logits, axis=-1), rng.integers(0, NUM_CLASSES, NUM_EXAMPLES)


def test_averages_and_scores_of_single_draws():
    log_probs, labels = draw(scale=3)
    predictions, scores = run(log_probs, labels)
    probs = np.exp(log_probs)
    np.testing.assert_allclose(np.exp(predictions["log_probs"]), probs.mean(axis=0), rtol=1e-6)
    entropies = -(probs * log_probs).sum(axis=-1)
    np.testing.assert_allclose(predictions["entropies"], entropies.mean(axis=0), rtol=2e-6)
    of_label = log_probs[..., np.arange(NUM_EXAMPLES), labels]
    np.testing.assert_allclose(scores["nll"], -of_label.mean(axis=(0, 2)), rtol=1e-6)
    hits = log_probs.argmax(axis=-1) == labels
    np.testing.assert_allclose(scores["accuracy"], hits.mean(axis=(0, 2)), rtol=1e-6)
    brier = ((probs - np.eye(NUM_CLASSES)[labels]) ** 2).sum(axis=-1)
    np.testing.assert_allclose(scores["brier"], brier.mean(axis=(0, 2)), rtol=1e-5)


def test_probabilities_too_small_for_float32_are_averaged_too():
    log_probs, labels = draw(scale=30)
    log_probs[..., 0] -= 300
    log_probs = scipy.special.log_softmax(log_probs, axis=-1)
    predictions, _ = run(log_probs, labels)
    expected = scipy.special.logsumexp(log_probs, axis=0) - np.log(NUM_DRAWS)
    assert expected.min() < -104  # Below float32's smallest number.
    np.testing.assert_allclose(predictions["log_probs"], expected, rtol=1e-5, atol=1e-5)


def test_many_draws_lose_nothing_to_rounding():
    """A plain sum of as many equal terms is off by 1e-3."""
    num_draws, log_prob = 300_000, np.log(np.float32([0.1, 0.2, 0.7]))
    split = place_split(
        np.zeros((1, 1), np.float32),
        np.zeros(1, np.int32),
        mesh_of(1),
    )
    predicted = {"log_probs": jnp.broadcast_to(log_prob, (1, 1, NUM_CLASSES))}
    one = evaluate_draws(CLASSES, predicted, split)

    @jax.jit
    def add_all(sums):
        def add(_, sums):
            return add_draws(CLASSES, sums, one)

        return jax.lax.fori_loop(0, num_draws, add, sums)

    sums = add_all(zero_sums(CLASSES, 1, split))
    predictions, scores = averages(CLASSES, sums, num_draws, 1)
    np.testing.assert_allclose(predictions["log_probs"][0, 0], log_prob, atol=5e-7)
    np.testing.assert_allclose(predictions["entropies"][0], one["entropies"][0], rtol=3e-7)
    assert scores["nll"][0] == pytest.approx(float(one["nll"][0]), rel=3e-7)


def test_a_class_that_never_has_any_probability():
    log_probs, labels = draw(scale=1)
    log_probs[..., 0] = -np.inf
    log_probs = scipy.special.log_softmax(log_probs, axis=-1)
    predictions, _ = run(log_probs, labels)
    assert np.isneginf(predictions["log_probs"][..., 0]).all()
    assert np.isfinite(predictions["entropies"]).all()
