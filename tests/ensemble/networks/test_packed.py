"""Packed layers are plain ones, of groups that do not mix; networks are divided by a keyword."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from ensemble import networks
from ensemble.networks import Packing, layers
from ensemble.networks.packed import PackedConv, PackedDense

SHAPES = {"mlp": (6,), "cnn": (8, 8, 1), "lenet5": (8, 8, 1), "resnet20": (8, 8, 3)}
ROWS = jax.random.normal(jax.random.key(1), (5, 6))


def variables_of(network, shape):
    return network.init(jax.random.key(0), jnp.ones((1, *shape)))


def num_params(name, packing, settings=None):
    network = networks.create(name, 3, settings or {}, packing=packing)
    variables = jax.eval_shape(lambda: variables_of(network, SHAPES[name]))
    return sum(leaf.size for leaf in jax.tree.leaves(variables))


@pytest.mark.check
@pytest.mark.parametrize("name", SHAPES)
def test_an_estimator_as_wide_as_the_network_is_the_network_to_the_bit(name):
    """alpha = M: as wide as M networks side by side."""
    plain = networks.create(name, 3)
    inputs = jax.random.normal(jax.random.key(2), (4, *SHAPES[name]))
    variables = variables_of(plain, SHAPES[name])
    expected = plain.apply(variables, inputs)[0]
    for packing in (Packing(1, 1.0), Packing(4, 4.0)):
        packed = networks.create(name, 3, packing=packing)
        jax.tree.map(np.testing.assert_array_equal, variables_of(packed, SHAPES[name]), variables)
        np.testing.assert_array_equal(packed.apply(variables, inputs)[0], expected)


@pytest.mark.check
def test_units_are_divided_and_parameters_counted():
    assert Packing(4, 2.0).units(128) == 64
    assert Packing(4, 2.0, 3).units(128) == 66
    assert Packing(4, 2.2).units(100) == 55
    assert Packing(1024, 1.0).units(10) == 1
    settings = {"widths": (32, 32)}
    # Sixteen units: 6 inputs to 16, 16 to 16 in groups, 16 to 3 outputs.
    for gamma in (1, 2, 4):
        expected = 6 * 16 + 16 + 16 * 16 // gamma + 16 + 16 * 3 + 3
        assert num_params("mlp", Packing(4, 2.0, gamma), settings) == expected
    for name in ("cnn", "lenet5", "resnet20"):
        whole = num_params(name, Packing())
        half = num_params(name, Packing(4, 2.0))
        assert 0.2 < half / whole < 0.3
        assert 0.5 < num_params(name, Packing(4, 2.0, 2)) / half < 0.6


@pytest.mark.check
def test_estimators_side_by_side_are_layers_of_all_their_groups():
    """As Laurent et al. have it: M * gamma groups of one network."""
    packing = Packing(3, 3.0, 2)
    widths = {"widths": (8, 12)}
    network = networks.create("mlp", 2, widths, packing=packing)
    keys = jax.random.split(jax.random.key(3), 3)
    each = [network.init(key, ROWS[:1])["params"] for key in keys]

    def joined(layer, part, axis):
        return np.concatenate([one[layer][part] for one in each], axis=axis)

    def layer(name, groups, x):
        axis = -1 if name == "Dense_0" else 0
        kernel = joined(name, "kernel", axis)
        bias = joined(name, "bias", 0)
        if name == "Dense_2":
            kernel = kernel.reshape(3, -1, 2)
        dense = PackedDense(len(bias), feature_group_count=groups)
        return dense.apply({"params": {"kernel": kernel, "bias": bias}}, x)

    x = nn.relu(layer("Dense_0", 1, ROWS))
    x = nn.relu(layer("Dense_1", 6, x))
    found = layer("Dense_2", 3, x).reshape(len(ROWS), 3, 2)
    for k, params in enumerate(each):
        expected = network.apply({"params": params}, ROWS)[0]
        np.testing.assert_allclose(found[:, k], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.check
def test_groups_of_a_dense_layer_do_not_mix():
    dense = PackedDense(4, feature_group_count=2)
    variables = dense.init(jax.random.key(0), ROWS)
    kernel = variables["params"]["kernel"]
    assert kernel.shape == (2, 3, 2)
    assert np.unique(kernel).size == kernel.size
    whole = np.zeros((6, 4))
    whole[:3, :2], whole[3:, 2:] = kernel
    found = dense.apply(variables, ROWS)
    np.testing.assert_allclose(found, ROWS @ whole, rtol=1e-5, atol=1e-6)
    slopes = jax.jacobian(lambda x: dense.apply(variables, x))(ROWS[0])
    assert (slopes[:2, 3:] == 0).all()
    assert (slopes[2:, :3] == 0).all()
    assert (slopes[:2, :3] != 0).all()


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize("strides", [1, 2])
def test_a_convolution_in_groups_is_flax_s(strides, on_cpu, monkeypatch):
    monkeypatch.setattr(layers, "on_cpu", lambda: on_cpu)
    images = jax.random.normal(jax.random.key(1), (3, 6, 6, 4))
    fields = {"strides": strides, "feature_group_count": 2}
    packed, plain = (kind(6, (3, 3), **fields) for kind in (PackedConv, nn.Conv))
    variables = plain.init(jax.random.key(0), images)
    jax.tree.map(np.testing.assert_array_equal, packed.init(jax.random.key(0), images), variables)

    def both(module):
        def loss(variables, images):
            return jnp.sum(jnp.sin(module.apply(variables, images)))

        return jax.value_and_grad(loss, argnums=(0, 1))(variables, images)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        both(packed),
        both(plain),
    )
    program = str(jax.make_jaxpr(lambda *args: packed.apply(*args))(variables, images))
    assert ("feature_group_count=2" in program) == (not on_cpu)


@pytest.mark.check
@pytest.mark.parametrize("pool", [nn.avg_pool, nn.max_pool])
@pytest.mark.parametrize("height", [7, 8])
def test_a_pooled_convolution_in_groups_is_flax_s(pool, height):
    images = jax.random.normal(jax.random.key(1), (3, height, 6, 8))
    layer = layers.conv_relu_pool if pool is nn.avg_pool else layers.conv_relu_max_pool
    module = layers.ConvReluPool(layer, 6, feature_group_count=2)
    variables = module.init(jax.random.key(0), images)
    plain = nn.Conv(6, (3, 3), feature_group_count=2)
    jax.tree.map(np.testing.assert_array_equal, variables, plain.init(jax.random.key(0), images))
    padding = "VALID" if pool is nn.avg_pool else "SAME"
    expected = pool(nn.relu(plain.apply(variables, images)), (2, 2), (2, 2), padding)
    np.testing.assert_allclose(module.apply(variables, images), expected, rtol=1e-4, atol=1e-5)
