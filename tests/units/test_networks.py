"""Networks: shapes, numbers of parameters, keys, and each example by itself."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ensemble import networks
from ensemble.config.builtin import MODELS, NUM_QUANTILES

SMALL = {
    "cnn": (8, 8, 1),
    "lenet5": (8, 8, 1),
    "logistic_regression": (5,),
    "mlp": (5,),
    "mlp piecewise_linear": (5,),
    "resnet20": (8, 8, 1),
    "vit": (8, 8, 1),
}
"""The shape of an example, by name."""
LARGE = ("resnet50",)
"""Tested beside the weights that are read into it."""
SETTINGS = {"vit": {"size": "Ti", "patch": 4}}
NAMES = [
    pytest.param(name, marks=pytest.mark.check) if name in ("vit", "resnet20") else name
    for name in SMALL
]
SIZES = {
    "cnn": ((28, 28, 1), 824_458),
    "mlp": ((28, 28, 1), 269_322),
    "lenet5": ((28, 28, 1), 107_786),
    "resnet20": ((32, 32, 3), 269_722),
}


@functools.cache
def made(name):
    """A network, how it is initialised, examples, and the variables of a member."""
    model, *embedding = name.split(" ")
    settings = {"embedding": embedding[0]} if embedding else SETTINGS.get(name, {})
    quantiles = np.linspace(-2, 2, NUM_QUANTILES)[None].repeat(5, axis=0)
    network = networks.create(model, 7, settings, quantiles=quantiles)
    inputs = jax.random.normal(jax.random.key(1), (8, *SMALL[name]))
    init = jax.jit(network.init)
    return network, init, inputs, init(jax.random.key(0), inputs[:1])


def test_every_network_is_here():
    names = {name.split(" ")[0] for name in (*SMALL, *LARGE)}
    assert names == set(MODELS.names) - {"matrix_factorisation"}


@pytest.mark.parametrize("name", SIZES)
def test_number_of_parameters_and_form_of_outputs(name):
    shape, count = SIZES[name]
    network = networks.create(name, 10)
    inputs = jnp.ones((3, *shape))
    variables = jax.eval_shape(network.init, jax.random.key(0), inputs)
    outputs, rest = jax.eval_shape(network.apply, variables, inputs)
    assert (outputs.shape, outputs.dtype) == ((3, 10), jnp.float32)
    assert sum(leaf.size for leaf in jax.tree.leaves(variables)) == count
    assert rest.keys() == variables.keys() - {"params"}


@pytest.mark.check
@pytest.mark.parametrize("name", NAMES)
def test_members_differ_by_their_key_alone(name):
    _, init, inputs, variables = made(name)
    again, other = (init(jax.random.key(seed), inputs[:1])["params"] for seed in (0, 1))
    jax.tree.map(np.testing.assert_array_equal, variables["params"], again)
    pairs = zip(jax.tree.leaves(again), jax.tree.leaves(other), strict=True)
    assert any(np.any(one != two) for one, two in pairs)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_predicted_alone_as_beside_padding(name):
    network, _, inputs, variables = made(name)
    apply = jax.jit(lambda inputs: network.apply(variables, inputs)[0])
    outputs = apply(inputs[:4])
    padded = apply(inputs[:4].at[2:].set(0))
    np.testing.assert_allclose(padded[:2], outputs[:2], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(apply(inputs[1:2]), outputs[1:2], rtol=1e-4, atol=1e-5)
    assert np.isfinite(outputs).all()
    assert np.std(outputs) > 0


@pytest.mark.check
@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_has_a_finite_slope(name):
    network, _, inputs, variables = made(name)

    def loss(params):
        outputs, _ = network.apply({**variables, "params": params}, inputs)
        return -jnp.mean(jax.nn.log_softmax(outputs)[:, 3])

    for path, leaf in jax.tree_util.tree_leaves_with_path(
        jax.jit(jax.grad(loss))(variables["params"])
    ):
        assert np.any(leaf != 0), path
        assert np.isfinite(leaf).all(), path
