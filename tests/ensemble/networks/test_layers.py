"""Convolutions against Flax's own: parameters, values and gradients."""

import contextlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import lax

from ensemble.networks import layers

IMAGE_SHAPES = [(2, 8, 8, 1), (2, 7, 9, 5)]


@pytest.fixture(params=["cpu", "products", "accelerator"])
def backend(request, monkeypatch):
    """All forms of the layers, computed on CPU."""
    monkeypatch.setattr(layers, "on_cpu", lambda: request.param != "accelerator")
    with contextlib.ExitStack() as stack:
        if request.param == "products":
            stack.enter_context(layers.mapped_over_networks())
        yield request.param


def normal(seed, shape):
    return jax.random.normal(jax.random.key(seed), shape)


def value_and_grads(fn, *operands):
    """The value of `fn`, and the gradients of a scalar in which every output has its own weight."""

    def scalar_fn(*operands):
        value = fn(*operands)
        return jnp.vdot(value, normal(9, value.shape)), value

    argnums = tuple(range(len(operands)))
    grads, value = jax.jit(jax.grad(scalar_fn, argnums, has_aux=True))(*operands)
    return value, *grads


def assert_close(ours, theirs):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), ours, theirs)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(
    ("shape", "kernel_size", "padding"),
    [((2, 8, 8, 1), (3, 3), ((1, 1), (1, 1))), ((3, 7, 6, 5), (5, 4), ((2, 1), (0, 3)))],
)
def test_conv_and_its_gradients(shape, kernel_size, padding):
    images = normal(0, shape)
    kernel = normal(1, (*kernel_size, shape[-1], 6)) / 5

    def expected(images, kernel):
        axes = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(images, kernel, (1, 1), padding, dimension_numbers=axes)

    ours = value_and_grads(lambda *operands: layers.conv(*operands, padding), images, kernel)
    assert_close(ours, value_and_grads(expected, images, kernel))


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("shape", IMAGE_SHAPES)
def test_conv_relu_pool_and_its_gradients(shape):
    operands = normal(0, shape), normal(1, (3, 3, shape[-1], 6)) / 5, normal(2, (6,))

    def expected(images, kernel, bias):
        x = nn.Conv(6, (3, 3)).apply({"params": {"kernel": kernel, "bias": bias}}, images)
        return nn.avg_pool(nn.relu(x), window_shape=(2, 2), strides=(2, 2))

    assert_close(
        value_and_grads(layers.conv_relu_pool, *operands), value_and_grads(expected, *operands)
    )


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(("shape", "kernel_size"), [((2, 8, 8, 1), (5, 5)), ((2, 7, 9, 5), (3, 1))])
def test_conv_relu_max_pool_and_its_gradients(shape, kernel_size):
    operands = normal(0, shape), normal(1, (*kernel_size, shape[-1], 6)) / 5, normal(2, (6,))

    def expected(images, kernel, bias):
        x = nn.Conv(6, kernel_size).apply({"params": {"kernel": kernel, "bias": bias}}, images)
        return nn.max_pool(nn.relu(x), (2, 2), (2, 2), "SAME")

    assert_close(
        value_and_grads(layers.conv_relu_max_pool, *operands), value_and_grads(expected, *operands)
    )


@pytest.mark.parametrize("place", range(4))
def test_a_nan_among_four_values_is_the_largest(place):
    four = jnp.arange(4.0).at[place].set(jnp.nan).reshape(1, 4, 1)
    assert np.isnan(layers._first_largest(four)).all()


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("first", [0, 3])
def test_the_first_of_equal_values_has_the_gradient(first):
    images = jnp.where(jnp.arange(4) < first, 1.0, 2.0).reshape(1, 2, 2, 1)

    def largest(images):
        return layers.conv_relu_max_pool(images, jnp.ones((1, 1, 1, 1)), jnp.zeros(1)).sum()

    np.testing.assert_array_equal(jax.grad(largest)(images).ravel(), np.arange(4) == first)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(
    ("layer", "channels"), [(layers.conv_relu_pool, 5), (layers.conv_relu_max_pool, 1)]
)
def test_nan_is_not_rectified_away(layer, channels):
    images = jnp.zeros((2, 4, 4, channels)).at[0, 1, 2, 0].set(jnp.nan)
    kernel = jnp.ones((3, 3, channels, 2))
    bias = jnp.zeros(2)
    result = layer(images, kernel, bias)
    assert np.isnan(result[0]).all()
    assert np.isfinite(result[1]).all()


@pytest.mark.parametrize(
    ("kernel_size", "dtype", "shape"),
    [
        ((3, 3), jnp.float32, (2, 7, 8, 3)),
        ((5, 5), jnp.float32, (2, 6, 8, 3)),
        ((2, 4), jnp.float32, (2, 7, 8, 3)),
        ((3, 3), jnp.bfloat16, (2, 6, 8, 3)),
        ((5, 5), jnp.uint8, (2, 7, 8, 3)),
    ],
)
def test_the_pooled_convolution_is_flax_s_with_its_parameters(kernel_size, dtype, shape):
    images = (8 * normal(0, shape) ** 2).astype(dtype)
    ours = layers.ConvReluPool(layers.conv_relu_max_pool, 4, kernel_size)
    conv = nn.Conv(4, kernel_size)
    variables = ours.init(jax.random.key(1), images)
    jax.tree.map(np.testing.assert_array_equal, variables, conv.init(jax.random.key(1), images))
    expected = nn.max_pool(nn.relu(conv.apply(variables, images)), (2, 2), (2, 2), "SAME")
    result = ours.apply(variables, images)
    assert result.dtype == expected.dtype
    assert_close(result, expected)


def convolution_layouts(fn, *operands):
    """The layouts of all convolutions that `fn` is lowered to."""
    return set(
        re.findall(r"dim_numbers = (\[.*?\]->\[.*?\])", jax.jit(fn).lower(*operands).as_text())
    )


def test_gradients_are_convolutions_in_the_layout_that_is_fast_in_loops():
    images = normal(0, (2, 8, 8, 5))
    kernel = normal(1, (3, 3, 5, 6))
    padding = ((1, 1), (1, 1))

    def loss_fn(images, kernel, conv):
        return jnp.sum(conv(images, kernel, padding) ** 2)

    def layouts(conv):
        grad_fn = jax.grad(lambda *operands: loss_fn(*operands, conv), argnums=(0, 1))
        return convolution_layouts(grad_fn, images, kernel)

    fast = "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"
    assert layouts(layers.conv) == {fast}
    assert layouts(layers._conv) > {fast}


def test_few_channels_are_convolved_by_a_matrix_product():
    operands = normal(0, (2, 8, 8, 1)), normal(1, (3, 3, 1, 6)), normal(2, (6,))
    assert not convolution_layouts(layers.conv_relu_pool, *operands)


@pytest.mark.check
@pytest.mark.parametrize(
    ("layer", "width"), [(layers.conv_relu_pool, 1), (layers.conv_relu_max_pool, 0.1)]
)
def test_members_are_convolved_under_vmap(layer, width):
    images = normal(0, (2, 6, 6, 5))
    kernels = width * normal(1, (3, 3, 3, 5, 4))
    biases = normal(2, (3, 4))

    def grad_fn(kernel, bias):
        return jax.grad(lambda *p: jnp.sum(layer(images, *p) ** 2), (0, 1))(kernel, bias)

    mapped = jax.jit(jax.vmap(grad_fn))(kernels, biases)
    each = [jax.jit(grad_fn)(kernels[k], biases[k]) for k in range(3)]
    assert_close(mapped, jax.tree.map(lambda *leaves: jnp.stack(leaves), *each))
