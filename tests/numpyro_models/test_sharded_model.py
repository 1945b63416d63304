"""Sharded distributions and models against float64 on one device, and the traps they avoid."""

import functools
import re

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.sharding import PartitionSpec as P
from numpyro import handlers
from numpyro.infer.util import log_density
from run_parts import mesh_of, over_chains

from ensemble import InputError
from ensemble.methods.leafwise_metric import leafwise_metric
from ensemble.numpyro_models.model import Model
from ensemble.numpyro_models.sharded_distributions import Sharded, sharded_plate
from ensemble.numpyro_models.sharded_model import make_model

KEY = jax.random.key(0)
DATA = "data"
"""The axis of a mesh over which rows are spread."""


def on_shards(function, in_specs, out_specs, **kwargs):
    mapped = jax.shard_map(
        function, mesh=mesh_of(1, 8), in_specs=in_specs, out_specs=out_specs, **kwargs
    )
    return jax.jit(mapped)


def test_shards_draw_differently_from_one_key():
    def draw(rng_key):
        shared = dist.Normal().sample(rng_key)
        return shared, Sharded(dist.Normal(), DATA).sample(rng_key, (1,))

    shared, split = on_shards(draw, P(), (P(), P(DATA)))(KEY)
    assert shared.shape == ()
    expected = [jax.random.normal(jax.random.fold_in(KEY, shard), (1,))[0] for shard in range(8)]
    np.testing.assert_allclose(split, np.stack(expected), rtol=1e-6)
    assert len(set(np.asarray(split).tolist())) == 8


def test_the_log_density_is_that_of_all_shards_on_each():
    def log_prob(values):
        one = Sharded(dist.Normal(), DATA)
        batch = Sharded(dist.Normal(jnp.zeros(2), 1), DATA)
        return one.log_prob(values[0]), batch.log_prob(values), batch.to_event(1).log_prob(values)

    values = np.random.default_rng(0).normal(size=16).astype("f4")
    one, batch, event = on_shards(log_prob, P(DATA), P())(values)
    assert float(one) == pytest.approx(float(dist.Normal().log_prob(values[::2]).sum()))
    expected = dist.Normal().log_prob(values.reshape(8, 2)).sum(axis=0)
    np.testing.assert_allclose(batch, expected, rtol=1e-6)
    assert float(event) == pytest.approx(float(expected.sum()))


def test_a_mask_is_applied_before_the_sum():
    def log_prob(value):
        mask = jax.lax.axis_index(DATA) < 3
        return Sharded(dist.Normal(), DATA).mask(mask).log_prob(value[0])

    value = on_shards(log_prob, P(DATA), P())(jnp.zeros(8))
    assert float(value) == pytest.approx(3 * float(dist.Normal().log_prob(0.0)))


def joint():
    """A shared variable, and one on every shard around it."""
    centre = numpyro.sample("centre", dist.Normal(0, 1))
    numpyro.sample("split", Sharded(dist.Normal(centre, 2), DATA))


@pytest.mark.check
def test_a_joint_of_shared_and_sharded_variables():
    def draw(rng_key):
        sites = handlers.trace(handlers.seed(joint, rng_key)).get_trace()
        values = {name: site["value"] for name, site in sites.items()}
        total, _ = log_density(joint, (), {}, values)
        return values["centre"], values["split"][None], total

    centre, split, total = on_shards(draw, P(), (P(), P(DATA), P()))(KEY)
    assert len(set(np.asarray(split).tolist())) == 8
    expected = dist.Normal().log_prob(centre) + dist.Normal(centre, 2).log_prob(split).sum()
    assert float(total) == pytest.approx(float(expected), rel=1e-6)


def test_gradients_of_shared_and_sharded_variables_are_right():
    """By hand, and where JAX would get them wrong without an error."""
    split = np.random.default_rng(0).normal(size=8)
    centre = 0.3
    expected_split = -(split - centre) / 4
    expected_centre = -expected_split.sum() - centre

    def grads(centre, split):
        def of(values):
            values = {"centre": values["centre"], "split": values["split"][0]}
            return log_density(joint, (), {}, values)[0]

        grads = jax.grad(of)({"centre": centre, "split": split})
        return grads["centre"], grads["split"]

    specs = (P(), P(DATA))
    args = (jnp.float32(centre), split.astype("f4"))
    by_centre, by_split = on_shards(grads, specs, specs)(*args)
    assert float(by_centre) == pytest.approx(expected_centre, rel=1e-5)
    np.testing.assert_allclose(by_split, expected_split, rtol=1e-5)

    def naive(split):
        return jax.grad(lambda x: jax.lax.psum(dist.Normal(centre, 2).log_prob(x).sum(), DATA))(
            split
        )

    for wrong in (
        on_shards(naive, P(DATA), P(DATA), check_vma=False)(args[1]),
        jax.pmap(naive, axis_name=DATA)(args[1][:, None])[:, 0],
    ):
        np.testing.assert_allclose(wrong, 8 * expected_split, rtol=1e-5)  # Not a warning.
    with pytest.raises(InputError, match=r"jax\.shard_map.*check_vma=True"):
        on_shards(grads, specs, specs, check_vma=False)(*args)
    with pytest.raises(InputError, match=r"jax\.shard_map.*check_vma=True"):
        jax.pmap(grads, axis_name=DATA, in_axes=(None, 0))(args[0], args[1][:, None])


def levels(y):
    centre = numpyro.sample("centre", dist.Normal(0, 1))
    with sharded_plate("group", len(y), DATA):
        level = numpyro.sample("level", dist.Normal(centre, 1))
        numpyro.sample("y", dist.Normal(level, 0.5), obs=y)


LEVELS = np.random.default_rng(3).normal(size=13).astype("f4")


@pytest.mark.check
def test_hmc_gathers_no_sharded_latent():
    model = make_model(levels, mesh_of(2, 2), LEVELS)

    def chain(rng_key, params, data):
        metric = leafwise_metric(model.layout.mask(params))
        kernel = blackjax.hmc(model.bind(data), 0.15, metric, 4)

        def step(state, t):
            state, _ = kernel.step(jax.random.fold_in(rng_key, t), state)
            return state, state.position

        return jax.lax.scan(step, kernel.init(params), jnp.arange(5))[1]

    keys = jax.random.split(jax.random.key(11), 4)
    starts = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(model.init, keys))
    chains = jax.jit(over_chains(chain, in_axes=(0, 0, None)))
    compiled = chains.lower(keys, starts, model.data).compile().as_text()
    assert "all-reduce" in compiled
    assert "all-gather" not in compiled
    assert "all-to-all" not in compiled
    assert "f32[2,7]" in compiled  # 2 of the chains, 7 of the 13 groups.
    assert not re.search(r"f32\[(\d+,)*1[34][,\]]", compiled)


def of_rows(x, plate=sharded_plate):
    """Statistics of rows, their number, and rows that depend on each other."""
    slope = numpyro.sample("slope", dist.Normal())
    with plate("row", len(x)):
        level = numpyro.sample("level", dist.Normal(jnp.sort(x), 1.0))
        before = jnp.concatenate([level[-1:], level[:-1]])
        numpyro.sample("x", dist.Normal(slope * (x - x.mean()) + before, 1 + 10 / len(x)), obs=x)
    numpyro.factor("total", -(level.sum() ** 2))
    with numpyro.plate("again", len(x)):
        numpyro.sample("y", dist.Normal(slope, 1.0), obs=x)


@pytest.mark.check
def test_rows_may_depend_on_each_other():
    plain = Model(functools.partial(of_rows, plate=numpyro.plate), (LEVELS,))
    params = plain.start(KEY, False, plain.arrays)
    value, grads = jax.jit(jax.value_and_grad(plain.log_density))(params, plain.arrays)
    split = make_model(of_rows, mesh_of(1, 4), LEVELS)
    found, found_grads = jax.jit(lambda one, data: jax.value_and_grad(split.bind(data))(one))(
        params, split.data
    )
    np.testing.assert_allclose(found, value, rtol=1e-5)
    for name, leaf in grads.items():
        np.testing.assert_allclose(found_grads[name], leaf, rtol=1e-4, atol=1e-4)


def test_discrete_latents_cannot_be_split():
    def model():
        with sharded_plate("rows", 5, DATA):
            numpyro.sample("x", dist.Poisson(3))

    with pytest.raises(InputError, match="'x' is discrete"):
        make_model(model, mesh_of(1, 8))
