"""Schedules over the whole horizon, and the two kinds of weight decay."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import make_blobs, small_config
from run_parts import validated

import ensemble
from ensemble import UserError, registry
from ensemble.methods.members.optimizers import create_optimizer, learning_rate_schedule


def schedule(num_steps=100, **overrides):
    config = validated({"num_steps": num_steps, "learning_rate": 0.4, **overrides})
    return learning_rate_schedule(config, num_steps)


def test_schedules():
    assert schedule()(77) == 0.4
    cosine = schedule(schedule="cosine")
    np.testing.assert_allclose([cosine(s) for s in (0, 50, 100)], [0.4, 0.2, 0], atol=1e-7)
    warmup = schedule(schedule="warmup_cosine", warmup_fraction=0.1)
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
    assert one_step(3.0, optimizer="sgd", gradient_clip=clip) == pytest.approx(step)


@pytest.fixture
def nobody_else(monkeypatch):
    """What a test registers is there in the test alone."""
    for tenants in (registry.OPTIMIZERS, registry.SCHEDULES):
        monkeypatch.setattr(tenants, "registered", {})


def halved(config, num_steps):
    """The peak in the first half of the steps, then half of it."""
    return optax.piecewise_constant_schedule(config.learning_rate, {num_steps // 2: 0.5})


def lion(config, learning_rate, weight_decay):
    return optax.lion(learning_rate, weight_decay=weight_decay)


@pytest.mark.check
def test_an_optimizer_and_a_schedule_of_ones_own(nobody_else, tmp_path, monkeypatch):
    ensemble.register("optimizer", "lion", registry.OptimizerEntry(lion))
    ensemble.register("schedule", "halved", registry.ScheduleEntry(halved))
    assert schedule(schedule="halved")(49) == pytest.approx(0.4)
    assert schedule(schedule="halved")(51) == pytest.approx(0.2)
    assert one_step(-3.0, optimizer="lion") == pytest.approx(0.1), "lion takes the sign"
    config = {**small_config(), "optimizer": "lion", "schedule": "halved", "learning_rate": 0.01}
    found = ensemble.train(config, make_blobs(), str(tmp_path), show_progress=False)
    assert found.report["test"]["scores"]["accuracy"]["value"] > 0.7
    assert len(ensemble.load(tmp_path).members) == 4
    monkeypatch.setattr(registry.OPTIMIZERS, "registered", {})
    with pytest.raises(UserError, match="optimizer='lion' is not known to this process"):
        ensemble.load(tmp_path)
    with pytest.raises(UserError, match="'lion' must be one of sgd, adam, adamw"):
        ensemble.train(config, make_blobs(), show_progress=False)


def descent(update):
    """An optimizer with a state of its own."""
    return lambda config, rate, decay: optax.GradientTransformation(lambda params: 0, update)


@pytest.mark.parametrize(
    ("factory", "line"),
    [
        (descent(lambda grads, *_: (jax.tree.map(jnp.sum, grads), 0)), "makes steps of the form"),
        (descent(lambda grads, *_: None), "the optimizer 'mine' failed"),
        (descent(lambda grads, *_: 1 / 0), r"failed at .*test_optimizers\.py:\d+ \(ZeroDivision"),
    ],
)
def test_steps_of_another_form_are_refused_before_a_run_is_begun(
    nobody_else, tmp_path, factory, line
):
    ensemble.register("optimizer", "mine", registry.OptimizerEntry(factory))
    config = {**small_config(), "optimizer": "mine"}
    with pytest.raises(UserError, match=line):
        ensemble.train(config, make_blobs(), str(tmp_path / "run"), show_progress=False)
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize(
    ("rate", "line"),
    [
        (lambda step: 0.1 if step < 3 else 0.01, r"failed .*TracerBool.* use jnp\.where"),
        (lambda step: "fast", "the schedule 'mine' failed"),
        (lambda step: jnp.ones(3), r"makes ShapeDtypeStruct\(shape=\(3,\).* must make a number"),
        (lambda step: 1 / 0, r"failed at .*test_optimizers\.py:\d+ \(ZeroDivision"),
    ],
)
def test_a_schedule_that_cannot_be_compiled_is_one_line(nobody_else, rate, line):
    ensemble.register("schedule", "mine", registry.ScheduleEntry(lambda config, num_steps: rate))
    with pytest.raises(UserError, match=line):
        ensemble.train({**small_config(), "schedule": "mine"}, make_blobs(), show_progress=False)


@pytest.mark.parametrize(
    ("factory", "line"),
    [
        (lambda config, rate, decay: 5, "made no optimizer: its factory must return an optax"),
        (lambda config: None, "the optimizer 'mine' failed .*TypeError"),
        (lambda config, rate, decay: 1 / 0, "the optimizer 'mine' failed .*ZeroDivisionError"),
    ],
)
def test_a_bad_optimizer_is_one_line(nobody_else, factory, line):
    ensemble.register("optimizer", "mine", registry.OptimizerEntry(factory))
    with pytest.raises(UserError, match=line):
        one_step(optimizer="mine")
    ensemble.register("schedule", "mine", registry.ScheduleEntry(lambda config, num_steps: 5))
    with pytest.raises(UserError, match="the schedule 'mine' made no schedule"):
        schedule(schedule="mine")
    with pytest.raises(UserError, match="'adam' is built in"):
        ensemble.register("optimizer", "adam", registry.OptimizerEntry(factory))
