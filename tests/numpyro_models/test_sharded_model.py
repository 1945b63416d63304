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
import scipy.special
import scipy.stats
from jax.sharding import PartitionSpec as P
from numpyro import handlers
from numpyro.infer.util import log_density
from run_parts import mesh_of, over_chains

from ensemble import InputError
from ensemble.methods.leafwise_metric import leafwise_metric
from ensemble.numpyro_models.sharded_distributions import Sharded, sharded_plate
from ensemble.numpyro_models.sharded_model import make_model

NUM_USERS, NUM_MOVIES, DIM = 203, 7, 3
NUM_GROUPS = 13
HMC_ALONE, HMC_SPREAD, NUTS_SPREAD = ("hmc", 1, 1), ("hmc", 2, 2), ("nuts", 2, 1)
KEY = jax.random.key(0)
DATA = "data"
"""The axis of a mesh over which rows are spread."""


def stacked_starts(model, rng_keys):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(model.init, rng_keys))


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


def watching(watch=None, num_users=NUM_USERS):
    """Users and their biases are split, the rest is shared; two sites are positive."""
    movies = numpyro.sample("movies", dist.Normal(0, 1).expand([NUM_MOVIES, DIM]).to_event(2))
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    with sharded_plate("user", num_users, DATA):
        users = numpyro.sample("users", dist.Normal(0, scale).expand([DIM]).to_event(1))
        bias = numpyro.sample("bias", dist.Exponential(1))
        logits = users @ movies.T + bias[:, None]
        numpyro.sample("watch", dist.Bernoulli(logits=logits).to_event(1), obs=watch)


@functools.cache
def watched(num_users):
    return np.random.default_rng(1).integers(0, 2, (num_users, NUM_MOVIES)).astype("f4")


@functools.cache
def make_watching(num_shards, num_users=NUM_USERS):
    model = functools.partial(watching, num_users=num_users)
    return make_model(model, mesh_of(1, num_shards), watched(num_users))


def oracle(params, num_users):
    """Value and gradient by hand, in float64, without padding."""
    z = {name: np.asarray(leaf, np.float64) for name, leaf in params.items()}
    users, bias = z["users"][:num_users], np.exp(z["bias"][:num_users])
    movies, scale = z["movies"], np.exp(z["scale"])
    watch = watched(num_users)
    logits = users @ movies.T + bias[:, None]
    residual = watch - scipy.special.expit(logits)
    value = (watch * logits - np.logaddexp(0, logits)).sum()
    value += (np.log(bias) - bias).sum()  # Exponential(1), and the Jacobian of exp.
    value += scipy.stats.norm.logpdf(users, scale=scale).sum()
    value += scipy.stats.norm.logpdf(movies).sum()
    value += scipy.stats.halfnorm.logpdf(scale) + z["scale"]
    return value, {
        "users": residual @ movies - users / scale**2,
        "movies": residual.T @ users - movies,
        "bias": bias * residual.sum(axis=1) + 1 - bias,
        "scale": (users**2).sum() / scale**2 - users.size - scale**2 + 1,
    }


@pytest.mark.check
@pytest.mark.parametrize(
    ("num_shards", "num_users"), [(8, 8), *((n, NUM_USERS) for n in (1, 2, 4, 8))]
)
def test_value_and_gradient_match_float64(num_shards, num_users):
    """Whatever is in the rows that pad."""
    model = make_watching(num_shards, num_users)
    rng = np.random.default_rng(2)
    num_rows = num_users + -num_users % num_shards
    shapes = {
        "movies": (NUM_MOVIES, DIM),
        "scale": (),
        "users": (num_rows, DIM),
        "bias": (num_rows,),
    }
    params = {name: np.asarray(rng.normal(size=shapes[name]), "f4") for name in shapes}
    run = jax.jit(lambda params, data: jax.value_and_grad(model.bind(data))(params))
    value, grads = run(params, model.data)
    expected, expected_grads = oracle(params, num_users)
    assert float(value) == pytest.approx(expected, rel=1e-6)
    for name, expected_grad in expected_grads.items():
        grad = np.asarray(grads[name])
        if name in ("users", "bias"):
            assert (grad[num_users:] == 0).all()
            grad = grad[:num_users]
        atol = 1e-5 * np.abs(expected_grad).max()
        np.testing.assert_allclose(grad, expected_grad, atol=atol, rtol=1e-5)


@pytest.mark.check
def test_draws_do_not_depend_on_the_shards_and_are_numpyros():
    one, eight = make_watching(1), make_watching(8)

    @jax.jit
    def draw(rng_key, watch):
        sites = handlers.trace(handlers.seed(watching, rng_key)).get_trace(watch)
        return {name: sites[name]["value"] for name in ("users", "bias", "movies", "scale")}

    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    prior, params = draw(KEY, watched(NUM_USERS)), eight.init(KEY)
    jax.tree.map(close, one.constrain(one.init(KEY)), prior)
    assert params["users"].shape == (208, DIM)
    assert {shard.data.shape for shard in params["users"].addressable_shards} == {(26, DIM)}
    jax.tree.map(close, eight.constrain(params), prior)
    # Outside shard_map the plate is NumPyro's; there are Jacobians of two positive sites.
    total = jax.jit(lambda values, watch: log_density(watching, (watch,), {}, values)[0])
    expected = float(total(prior, watched(NUM_USERS)))
    expected += float(np.log(prior["scale"]) + np.log(prior["bias"]).sum())
    assert float(eight.log_density(params)) == pytest.approx(expected, rel=1e-6)


def levels(y=None):
    centre = numpyro.sample("centre", dist.Normal(0, 1))
    with sharded_plate("group", NUM_GROUPS if y is None else len(y), DATA):
        level = numpyro.sample("level", dist.Normal(centre, 1))
        numpyro.sample("y", dist.Normal(level, 0.5), obs=y)


LEVELS = np.random.default_rng(3).normal(size=NUM_GROUPS).astype("f4")


def sample_levels(method, num_shards, num_chain_groups):
    """Positions [C, T, ...] of four chains and their starts, and the compiled program."""
    model = make_model(levels, mesh_of(num_chain_groups, num_shards), LEVELS)

    def chain(rng_key, params, data):
        density, metric = model.bind(data), leafwise_metric(model.layout.mask(model.model.shapes))
        if method == "hmc":
            kernel, num_draws = blackjax.hmc(density, 0.15, metric, 4), 500
        else:
            kernel, num_draws = blackjax.nuts(density, 0.4, metric), 120

        def step(state, t):
            state, _ = kernel.step(jax.random.fold_in(rng_key, t), state)
            return state, state.position

        return jax.lax.scan(step, kernel.init(params), jnp.arange(num_draws))[1]

    keys = jax.random.split(jax.random.key(11), 4)
    starts = stacked_starts(model, keys)
    chains = jax.jit(over_chains(chain, in_axes=(0, 0, None)))
    compiled = chains.lower(keys, starts, model.data).compile()
    positions = jax.tree.map(np.asarray, compiled(keys, starts, model.data))
    return starts, positions, compiled.as_text()


@pytest.fixture(scope="module")
def runs():
    return {run: sample_levels(*run) for run in (HMC_ALONE, HMC_SPREAD, NUTS_SPREAD)}


@pytest.mark.check
def test_hmc_gathers_no_sharded_latent(runs):
    _, _, compiled = runs[HMC_SPREAD]
    assert "all-reduce" in compiled
    assert "all-gather" not in compiled
    assert "all-to-all" not in compiled
    assert "f32[2,7]" in compiled  # 2 of the chains, 7 of the 13 groups.
    assert not re.search(r"f32\[(\d+,)*1[34][,\]]", compiled)


@pytest.mark.parametrize(
    ("axis_name", "size", "line"),
    [("rows", 16, "axis_name='rows'.*'data'"), (DATA, 5, "discrete.*Poisson")],
)
def test_models_that_cannot_be_split_are_refused(axis_name, size, line):
    def model():
        with sharded_plate("rows", size, axis_name):
            numpyro.sample("x", dist.Normal() if size > 5 else dist.Poisson(3))

    with pytest.raises(InputError, match=line):
        make_model(model, mesh_of(1, 8))
