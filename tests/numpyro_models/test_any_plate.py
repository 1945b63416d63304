"""Rows of a NumPyro model over devices: the plain plate's density, whatever the model does."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.distributions import constraints, transforms
from numpyro.infer.reparam import LocScaleReparam, TransformReparam
from numpyro.infer.util import potential_energy
from run_parts import mesh_of

from ensemble.numpyro_models.model import Model
from ensemble.numpyro_models.model_task import ModelTask
from ensemble.numpyro_models.sharded_distributions import sharded_plate
from ensemble.numpyro_models.sharded_model import make_model, split_rows

NUM_ROWS = 13
RNG = np.random.default_rng(5)
X = RNG.normal(size=NUM_ROWS).astype(np.float32)
GROUP = RNG.integers(0, 3, NUM_ROWS)
WEIGHTS = np.linspace(0.5, 2, NUM_ROWS).astype(np.float32)
IS_KNOWN = X > -1
KEYS = jax.random.split(jax.random.key(3), 2)
FORMS = {"noise": LocScaleReparam(0.0), "half": LocScaleReparam(0.5), "level": TransformReparam()}


def everything(x, group, weights, is_known, num_groups, plate=sharded_plate):
    """All that may be in, around and outside of the plate."""
    flat = numpyro.sample("flat", dist.ImproperUniform(constraints.real, (), ()))
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(num_groups)))
    with numpyro.plate("group", num_groups):
        effect = numpyro.sample("effect", dist.Normal(flat, 1.0))
    numpyro.factor("outside", -0.1 * jnp.sum(effect**4))
    to_level = transforms.AffineTransform(flat, 2.0)
    with plate("row", len(x)), handlers.reparam(config=FORMS):
        noise = numpyro.sample("noise", dist.Normal(effect[group], 0.5))
        half = numpyro.sample("half", dist.Normal(noise, 2.0))
        level = numpyro.sample("level", dist.TransformedDistribution(dist.Normal(), to_level))
        point = numpyro.sample("point", dist.ImproperUniform(constraints.positive, (), (2,)))
        total = numpyro.deterministic("total", half + level)
        numpyro.factor("inside", -point.sum(-1) + share[group])
        with numpyro.plate("inner", 3):
            inner = numpyro.sample("inner_effect", dist.Normal(total, 1.0))
            with handlers.scale(scale=weights):
                numpyro.sample("x", dist.Normal(inner, point[:, 0]), obs=jnp.stack([x, -x, x]))
        with handlers.mask(mask=is_known), handlers.scale(scale=0.5):
            numpyro.sample("again", dist.StudentT(3.0, total, 1.0), obs=x)
    with numpyro.plate("outer", 2, dim=-2), plate("other rows", len(x), dim=-1):
        numpyro.sample("third", dist.Normal(flat, jnp.ones((2, 1))), obs=jnp.stack([x, 2 * x]))


ARGUMENTS = (X, GROUP, WEIGHTS, IS_KNOWN, 3)


@pytest.fixture(scope="module")
def plain():
    """Parameters of two chains, and the density of a plain plate with its gradient."""
    model = functools.partial(everything, plate=numpyro.plate)
    params = ModelTask(Model(model, ARGUMENTS)).starts(KEYS, from_prior=False)
    density = jax.value_and_grad(lambda one: -potential_energy(model, ARGUMENTS, {}, one))
    return params, jax.jit(lambda params: jax.lax.map(density, params))(params)


@pytest.mark.check
@pytest.mark.parametrize("num_shards", [2, 4, 8])
def test_density_and_gradient_are_those_of_a_plain_plate(plain, num_shards):
    split = split_rows(Model(everything, ARGUMENTS), mesh_of(1, num_shards))
    params, expected = plain
    assert params["inner_effect"].shape == (2, 3, NUM_ROWS)
    assert params["noise_decentered"].shape == (2, NUM_ROWS)
    num_rows = -(-NUM_ROWS // num_shards)
    assert {leaf.sharding.shard_shape(leaf.shape) for leaf in split.data.values()} == {(num_rows,)}

    @jax.jit
    def both(params, data):
        density = split.bind(data)
        return jax.vmap(jax.value_and_grad(density))(params)

    value, grads = both(params, split.data)
    np.testing.assert_allclose(value, expected[0], rtol=2e-6)
    for name, leaf in expected[1].items():
        atol = 1e-5 * np.abs(leaf).max()
        np.testing.assert_allclose(grads[name], leaf, rtol=1e-5, atol=atol, err_msg=name)


def of_rows(x, plate=sharded_plate):
    """Statistics of rows, their number, and rows that depend on each other."""
    slope = numpyro.sample("slope", dist.Normal())
    with plate("row", len(x)):
        level = numpyro.sample("level", dist.Normal(jnp.sort(x), 1.0))
        before = jnp.concatenate([level[-1:], level[:-1]])
        numpyro.sample("x", dist.Normal(slope * (x - x.mean()) + before, 1 + 10 / len(x)), obs=x)
    numpyro.factor("total", -(level.sum() ** 2))
    with numpyro.plate("again", len(x)):
        numpyro.sample("y", dist.Normal(slope, 1.0), obs=jnp.asarray(X))


@pytest.mark.check
def test_rows_may_depend_on_each_other():
    plain = Model(functools.partial(of_rows, plate=numpyro.plate), (X,))
    params = plain.start(KEYS[0], False, plain.arrays)
    value, grads = jax.jit(jax.value_and_grad(plain.log_density))(params, plain.arrays)
    split = make_model(of_rows, mesh_of(1, 4), X)
    found, found_grads = jax.jit(lambda one, data: jax.value_and_grad(split.bind(data))(one))(
        params, split.data
    )
    np.testing.assert_allclose(found, value, rtol=1e-5)
    for name, leaf in grads.items():
        np.testing.assert_allclose(found_grads[name], leaf, rtol=1e-4, atol=1e-4)
