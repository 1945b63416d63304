"""Generated data sets: where their inputs lie, and what their truth is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples.coverage import known_truth

POINTS = jnp.linspace(-1.5, 1.5, 31)


def draw(is_wave, seed=0):
    drawn = jax.jit(known_truth.draw_curve, static_argnums=0)
    return drawn(known_truth.make_model(), jax.random.key(seed), is_wave, POINTS)


@pytest.mark.check
def test_inputs_lie_on_both_sides_of_the_gap():
    inputs = np.asarray(draw(False).inputs)
    assert len(inputs) == known_truth.NUM_EXAMPLES
    assert np.abs(inputs).min() >= known_truth.GAP
    assert np.abs(inputs).max() <= known_truth.EDGE
    assert 10 < (inputs < 0).sum() < 50


def test_the_truths_differ_in_their_function_alone():
    drawn, wave = draw(False), draw(True)
    np.testing.assert_array_equal(drawn.inputs, wave.inputs)
    np.testing.assert_array_equal(drawn.truth["scale"], wave.truth["scale"])
    assert np.abs(drawn.truth["loc"] - wave.truth["loc"]).max() > 0.1


@pytest.mark.check
def test_targets_are_the_truth_and_its_noise():
    model = known_truth.make_model()
    curve = draw(False)
    at_inputs = np.interp(curve.inputs, POINTS, curve.truth["loc"])
    errors = (np.asarray(curve.targets) - at_inputs) / curve.truth["scale"][0]
    assert 0.7 < errors.std() < 1.3
    # The prior's draws are of the size that the noise was chosen for.
    params = jax.vmap(model.draw)(jax.random.split(jax.random.key(0), 200))
    functions = jax.vmap(model.predict, (0, None))(params, POINTS)
    assert 0.7 < np.asarray(functions["loc"]).std() < 1.3
    assert 0.1 < np.median(functions["scale"]) < 0.2
