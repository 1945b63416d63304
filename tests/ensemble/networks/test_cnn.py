"""The project's CNN against the plain one of the Flax guide."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from ensemble.networks.cnn import CNN


class PublishedCNN(nn.Module):
    """The module as Flax's MNIST example has it."""

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(features=32, kernel_size=(3, 3))(x)
        x = nn.relu(x)
        x = nn.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = nn.Conv(features=64, kernel_size=(3, 3))(x)
        x = nn.relu(x)
        x = nn.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = x.reshape((x.shape[0], -1))
        x = nn.Dense(features=256)(x)
        x = nn.relu(x)
        return nn.Dense(features=10)(x)


def init_params(module, shape=(28, 28, 1)):
    return jax.jit(module.init)(jax.random.key(0), jnp.ones([1, *shape]))["params"]


@pytest.mark.check
def test_same_parameters_from_the_same_key():
    ours = init_params(CNN(10))
    theirs = init_params(PublishedCNN())
    assert list(ours) == ["Conv_0", "Conv_1", "Dense_0", "Dense_1"]
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.check
@pytest.mark.parametrize(
    "shape",
    [
        (28, 28, 1),
        (9, 13, 2),
        (5, 4, 1),
    ],
)
def test_same_logits_and_gradients(shape):
    images = jax.random.uniform(jax.random.key(1), (6, *shape))
    labels = jnp.arange(6)
    params = init_params(PublishedCNN(), shape)

    def outputs(module):
        def loss_fn(params):
            logits = module.apply({"params": params}, images)
            return -jnp.sum(jax.nn.log_softmax(logits)[jnp.arange(6), labels]), logits

        return jax.jit(jax.value_and_grad(loss_fn, has_aux=True))(params)

    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5),
        outputs(CNN(10)),
        outputs(PublishedCNN()),
    )
