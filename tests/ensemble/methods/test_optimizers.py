"""Schedules over the whole horizon, and the two kinds of weight decay."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import make_blobs, small_config
from run_parts import validated

import ensemble
from ensemble import InputError
from ensemble.config.pieces import path_of
from ensemble.methods.optimizers import create_optimizer, learning_rate_schedule


def schedule(num_steps=100, **overrides):
    config = validated({"num_steps": num_steps, "learning_rate": 0.4, **overrides})
    return learning_rate_schedule(config, num_steps)


def test_schedules():
    assert schedule()(77) == 0.4
    cosine = schedule(lr_schedule="cosine")
    np.testing.assert_allclose([cosine(s) for s in (0, 50, 100)], [0.4, 0.2, 0], atol=1e-7)
    warmup = schedule(lr_schedule="warmup_cosine", lr_warmup_fraction=0.1)
    np.testing.assert_allclose(
        [warmup(s) for s in (0, 5, 10, 55, 100)], [0, 0.2, 0.4, 0.2, 0], atol=1e-7
    )


def one_step(gradient=0.0, **overrides):
    config = validated({"num_steps": 1, "learning_rate": 0.1, **overrides})
    optimizer = create_optimizer(config, optax.constant_schedule(0.1))
    params = {"w": jnp.array(2.0)}
    updates, _ = optimizer.update({"w": jnp.array(gradient)}, optimizer.init(params), params)
    return float(updates["w"])


@pytest.mark.parametrize(
    ("optimizer", "step"),
    [
        ("sgd", -0.1 * (1.0 + 0.5 * 2.0)),  # In the gradient.
        ("adam", -0.1),  # In the gradient, which adam normalises.
        ("adamw", -0.1 * (1.0 + 0.5 * 2.0)),  # Beside the normalised gradient.
    ],
)
def test_weight_decay(optimizer, step):
    assert one_step(1.0, optimizer=optimizer, weight_decay=0.5) == pytest.approx(step, rel=1e-4)
    assert one_step(0.0, optimizer=optimizer) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("clip", "step"), [(0.0, -0.3), (5.0, -0.3), (1.0, -0.1)])
def test_gradients_are_shortened_to_a_norm(clip, step):
    assert one_step(3.0, optimizer="sgd", clip_norm=clip) == pytest.approx(step)


def halved(config, num_steps):
    """The peak in the first half of the steps, then half of it."""
    return optax.piecewise_constant_schedule(config.learning_rate, {num_steps // 2: 0.5})


def lion(config, learning_rate, weight_decay):
    return optax.lion(learning_rate, weight_decay=weight_decay)


@pytest.mark.check
def test_an_optimizer_and_a_schedule_of_ones_own(tmp_path):
    assert schedule(lr_schedule=path_of(halved))(49) == pytest.approx(0.4)
    assert schedule(lr_schedule=path_of(halved))(51) == pytest.approx(0.2)
    assert one_step(-3.0, optimizer=lion) == pytest.approx(0.1), "lion takes the sign"
    config = {**small_config(), "optimizer": lion, "lr_schedule": halved, "learning_rate": 0.01}
    found = ensemble.train(config, make_blobs(), str(tmp_path), show_progress=False)
    assert found.report["metrics"]["test"]["accuracy"]["value"] > 0.7
    assert len(ensemble.load(tmp_path).members) == 4


def growing(config, learning_rate, weight_decay):
    """An optimizer whose state is another one after each step."""

    def update(grads, state, params):
        return grads, (state,)

    return optax.GradientTransformation(lambda params: (), update)


def test_an_optimizer_keeps_the_form_of_its_state():
    with pytest.raises(InputError, match=r"failed .*a state must keep its form"):
        ensemble.train(small_config(optimizer=growing), make_blobs(), show_progress=False)


def test_lambdas_of_the_same_code_are_the_same_piece():
    first, again, other = (path_of(one) for one in (*(lambda x: x + 1 for _ in "ab"), lambda x: x))
    assert first == again != other
