"""The contract of networks of images, over all that the package has, and parameter counts."""

import functools

import applications
import jax
import jax.numpy as jnp
import pytest

from ensemble import networks
from ensemble.testing.networks import PROMISES, NetworkCase

OTHERS = ("vit", "resnet50", "embedded_mlp", *applications.examples("NETWORKS"))
"""Of images that patches divide, with batch statistics, and of tables."""
SLOW = ("resnet20",)


def _is_of_the_package(name):
    module = getattr(networks.create(name, 7), "module", None)  # Other tests' may have none.
    return type(module).__module__.startswith("ensemble.")


NAMES = [name for name in networks.names() if name not in OTHERS and _is_of_the_package(name)]
COMPUTED = [pytest.param(name, marks=pytest.mark.soak) if name in SLOW else name for name in NAMES]
SHAPES = [(28, 28, 1), (8, 8, 1), (32, 32, 3), (9, 13, 2)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_logits_of_any_image_shape(name, shape):
    module = networks.create(name, 7).module
    images = jax.random.normal(jax.random.key(1), (3, *shape))
    logits, variables = jax.eval_shape(module.init_with_output, jax.random.key(0), images)
    assert logits.shape == (3, 7)
    assert logits.dtype == jnp.float32
    assert set(variables) == {"params"}


@functools.cache
def case_of(name):
    """A network of small images, as the kit has it."""
    return NetworkCase(name, (8, 8, 1), {}, num_outputs=10)


@pytest.mark.parametrize("promise", PROMISES, ids=str)
@pytest.mark.parametrize("name", COMPUTED)
def test_it_keeps(name, promise):
    promise.keep(case_of(name))


@pytest.mark.parametrize(
    ("name", "shape", "count"),
    [
        ("cnn", (28, 28, 1), 824_458),
        ("mlp", (28, 28, 1), 269_322),
        ("lenet5", (28, 28, 1), 107_786),
        ("resnet20", (32, 32, 3), 269_722),
    ],
)
def test_number_of_parameters(name, shape, count):
    module = networks.create(name, 10).module
    variables = jax.eval_shape(module.init, jax.random.key(0), jnp.ones([1, *shape]))
    assert sum(leaf.size for leaf in jax.tree.leaves(variables)) == count
