"""Linen modules are told whether they train by any of the usual names, or are refused."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ensemble.networks.linen import LinenNetwork


class ByTrain(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = False):
        return nn.Dense(2)(nn.Dropout(0.5, deterministic=not train)(x))


class ByTraining(nn.Module):
    @nn.compact
    def __call__(self, x, *, training=False):
        x = nn.BatchNorm(use_running_average=not training)(x)
        return nn.Dense(2)(x)


class ByDeterministic(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic: bool = True):
        return nn.Dense(2)(nn.Dropout(0.5)(x, deterministic))


class ByField(nn.Module):
    deterministic: bool = True

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.Dropout(0.5, deterministic=self.deterministic)(x))


class ByEither(nn.Module):
    deterministic: bool | None = None

    @nn.compact
    def __call__(self, x, deterministic: bool | None = None):
        rests = nn.merge_param("deterministic", self.deterministic, deterministic)
        return nn.Dense(2)(nn.Dropout(0.5, deterministic=rests)(x))


class Partly(nn.Module):
    """A part whose statistics are frozen on purpose, beside one that learns them."""

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.BatchNorm(use_running_average=True)(x)
        return nn.Dense(2)(nn.BatchNorm(use_running_average=not train)(x))


KEY = jax.random.key(0)
INPUTS = jnp.asarray(np.random.default_rng(0).normal(3, 2, (16, 4)), jnp.float32)


def _apply(module, train):
    network = LinenNetwork(module())
    variables = network.init(KEY, INPUTS)
    outputs, state = network.apply(variables, INPUTS, train, KEY if train else None)
    return outputs, state, variables


@pytest.mark.parametrize("module", [ByTrain, ByDeterministic, ByField, ByEither])
def test_dropout_drops_in_training_alone(module):
    quiet = _apply(module, False)[0]
    noisy = _apply(module, True)[0]
    assert not np.allclose(quiet, noisy)
    np.testing.assert_array_equal(quiet, _apply(module, False)[0])


@pytest.mark.parametrize("module", [ByTraining, Partly])
def test_statistics_move_in_training_alone(module):
    _, state, variables = _apply(module, True)
    moved = jax.tree.map(
        lambda a, b: not np.array_equal(a, b), state, {"batch_stats": variables["batch_stats"]}
    )
    assert any(jax.tree.leaves(moved))
    _, state, variables = _apply(module, False)
    jax.tree.map(np.testing.assert_array_equal, state["batch_stats"], variables["batch_stats"])


class ByStreams(nn.Module):
    """Draws of three streams, as they are."""

    @nn.compact
    def __call__(self, x, train: bool = False):
        streams = ("dropout", "augment", "mix", "mix") if train else ()
        draws = [jax.random.normal(self.make_rng(name), (len(x),)) for name in streams]
        return jnp.stack([*draws, x[:, 0]], axis=1)


def _noise(key):
    network = LinenNetwork(ByStreams())
    return network.apply(network.init(KEY, INPUTS), INPUTS, True, key)[0][:, :-1].T


def test_each_stream_that_a_module_asks_for_has_noise_of_its_own():
    noise = _noise(KEY)
    assert len({one.tobytes() for one in np.asarray(noise)}) == 4
    assert np.abs(np.corrcoef(noise) - np.eye(4)).max() < 0.8  # Of 16 examples.
    np.testing.assert_array_equal(noise, _noise(KEY))
    np.testing.assert_array_equal(noise, jax.jit(_noise)(KEY))
    assert (noise != _noise(jax.random.key(1))).all()
