"""The likelihood of watches against float64: any shards, padding, held-out entries, rounding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from jax.sharding import NamedSharding, PartitionSpec
from run_parts import mesh_of, over_chains

from ensemble.recommendation import likelihood

NUM_USERS = 83
NUM_MOVIES = 41
DIM = 3


def make_params(seed=0, num_users=NUM_USERS, num_movies=NUM_MOVIES, scale=1.0):
    rng = np.random.default_rng(seed)
    shapes = {
        "user_embeddings": (num_users, DIM),
        "user_bias": (num_users,),
        "movie_embeddings": (num_movies, DIM),
        "movie_bias": (num_movies,),
    }
    return {k: (scale * rng.normal(size=shape)).astype(np.float32) for k, shape in shapes.items()}


def logits_of(params):
    params = {name: np.float64(leaf) for name, leaf in params.items()}
    products = params["user_embeddings"] @ params["movie_embeddings"].T
    return products + params["user_bias"][:, None] + params["movie_bias"]


def make_signs(params):
    """Watched as the parameters have it, some entries held out."""
    rng = np.random.default_rng(7)
    logits = logits_of(params)
    signs = np.where(rng.random(logits.shape) < scipy.special.expit(logits), 1, -1)
    signs[rng.random(logits.shape) < 0.1] = 0
    return signs.astype(np.int8)


def oracle(params, signs):
    """The log likelihood less that of popularity, and its gradient, by hand, in float64."""
    logits = logits_of(params)
    known = signs != 0
    watched = signs > 0
    popularity = (watched.sum(axis=0) + 1) / (known.sum(axis=0) + 2)
    value = np.sum(watched * logits - known * np.logaddexp(0, logits))
    value -= np.sum(watched * np.log(popularity) + (known & ~watched) * np.log(1 - popularity))
    residuals = known * (watched - scipy.special.expit(logits))
    return value, {
        "user_embeddings": residuals @ np.float64(params["movie_embeddings"]),
        "user_bias": residuals.sum(axis=1),
        "movie_embeddings": residuals.T @ np.float64(params["user_embeddings"]),
        "movie_bias": residuals.sum(axis=0),
    }


def padded(params, mesh):
    """Users' leaves padded to whole blocks, with what would be seen if it counted."""
    shape = len(params["user_bias"]), len(params["movie_bias"])
    padding = likelihood.layout_of(shape, mesh)[0].num_places - shape[0]
    return {
        name: np.pad(leaf, ((0, padding), *((0, 0),) * (leaf.ndim - 1)), constant_values=2.0)
        if name.startswith("user")
        else leaf
        for name, leaf in params.items()
    }


def stack(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def place(signs, mesh):
    return likelihood.place((signs,), likelihood.of_popularity(signs), mesh)


def make(signs, mesh):
    """The function of chains, jitted, and its data."""
    value_and_grad = likelihood.make_value_and_grad(likelihood.of_watches, mesh)
    return jax.jit(over_chains(value_and_grad, in_axes=(0, None))), place(signs, mesh)


def assert_exact(value, grads, params, signs):
    num_users = len(signs)
    expected, expected_grads = oracle(params, signs)
    assert float(value) == pytest.approx(expected, rel=1e-6)
    for name, exact in expected_grads.items():
        ours = np.asarray(grads[name])
        if name.startswith("user"):
            np.testing.assert_array_equal(ours[num_users:], 0)
            ours = ours[:num_users]
        np.testing.assert_allclose(ours, exact, atol=1e-5 * np.abs(exact).max())


@pytest.fixture(autouse=True)
def several_blocks_and_groups(monkeypatch):
    monkeypatch.setitem(likelihood._ENTRIES_PER_BLOCK, "cpu", 10 * NUM_MOVIES)
    monkeypatch.setattr(likelihood, "_MIN_ROWS", 8)
    monkeypatch.setattr(likelihood, "_MAX_FACTORS", 4)


@functools.cache
def some_signs():
    return make_signs(make_params())


@pytest.mark.check
@pytest.mark.parametrize(("groups", "shards"), [(1, 1), (1, 2), (1, 8), (2, 2), (2, 4)])
def test_value_and_gradient_match_float64(groups, shards):
    signs = some_signs()
    mesh = mesh_of(groups, shards)
    value_and_grad, watches = make(signs, mesh)
    chains = [make_params(seed) for seed in (1, 2)]
    values, grads = value_and_grad(stack([padded(params, mesh) for params in chains]), watches)
    for k, params in enumerate(chains):
        assert_exact(values[k], {name: g[k] for name, g in grads.items()}, params, signs)


@pytest.mark.check
def test_chains_that_the_groups_do_not_divide_one_alone_and_leaves_that_chains_share():
    signs = some_signs()
    mesh = mesh_of(2, 2)
    watches = place(signs, mesh)
    value_and_grad = likelihood.make_value_and_grad(likelihood.of_watches, mesh)
    chains = [make_params(seed) for seed in range(3)]
    bias = chains[0]["movie_bias"]

    @jax.jit
    def of_chains(params, bias):
        compute = lambda params: value_and_grad(params | {"movie_bias": bias}, watches)  # noqa: E731
        return over_chains(compute)(params)

    values, grads = of_chains(stack([padded(params, mesh) for params in chains]), bias)
    for k, params in enumerate(chains):
        of_chain = {name: g[k] for name, g in grads.items()}
        assert_exact(values[k], of_chain, params | {"movie_bias": bias}, signs)
    value, grads = jax.jit(value_and_grad)(padded(chains[1], mesh), watches)
    assert_exact(value, grads, chains[1], signs)


@pytest.mark.check
def test_differences_of_millions_of_nats_lose_nothing():
    """A log likelihood near -2e6, of which the energy error of HMC is some hundredths."""
    near = make_params(1, num_users=600, num_movies=400, scale=4.0)
    signs = make_signs(make_params(2, 600, 400))
    rng = np.random.default_rng(3)
    chains = [near] + [
        {k: v + np.float32(1e-4) * rng.normal(size=v.shape) for k, v in near.items()}
        for _ in range(4)
    ]
    chains = [{k: np.float32(v) for k, v in params.items()} for params in chains]
    exact = np.array([oracle(params, signs)[0] for params in chains])
    mesh = mesh_of(1, 2)
    value_and_grad, watches = make(signs, mesh)
    chains = [padded(params, mesh) for params in chains]
    # Near to the posterior what is left is small.
    watches = watches._replace(reference=watches.reference + np.float32(exact[0] / 2))
    values = np.float64(value_and_grad(stack(chains), watches)[0])
    np.testing.assert_allclose(np.diff(values), np.diff(exact), atol=0.01)
    plain = np.float64(np.float32(exact))  # Right to the last bit that a float32 has.
    assert np.abs(np.diff(plain) - np.diff(exact)).max() > 0.02


def test_confident_and_wrong_is_finite_and_exact_and_a_nan_shows():
    signs = some_signs()
    params = make_params(1, scale=30.0)
    mesh = mesh_of(1, 1)
    value_and_grad, watches = make(signs, mesh)
    broken = params | {"movie_bias": np.where(np.arange(NUM_MOVIES) == 5, np.nan, 0)}
    broken = {k: np.float32(v) for k, v in broken.items()}
    assert np.abs(logits_of(params)).max() > 1000
    values, grads = value_and_grad(stack([padded(one, mesh) for one in (params, broken)]), watches)
    assert_exact(values[0], {name: g[0] for name, g in grads.items()}, params, signs)
    assert np.isnan(values[1])


def test_users_stay_on_their_shards_and_no_matrix_is_whole():
    signs = some_signs()
    shards = 4
    mesh = mesh_of(2, shards)
    value_and_grad, watches = make(signs, mesh)
    chains = stack([padded(make_params(seed), mesh) for seed in (1, 2)])
    specs = {
        name: PartitionSpec("ensemble", "data" if name.startswith("user") else None)
        for name in chains
    }
    chains = {k: jax.device_put(v, NamedSharding(mesh, specs[k])) for k, v in chains.items()}
    compiled = value_and_grad.lower(chains, watches).compile()
    text = compiled.as_text()
    assert "all-reduce" in text
    assert "all-gather" not in text
    assert "f32[8,41]" in text  # A block's logits: 21 users of a shard in 3 blocks of 2 groups.
    assert "f32[21,41]" not in text
    assert "f32[24,41]" not in text
    _, grads = compiled(chains, watches)
    for name, grad in grads.items():
        assert grad.sharding.is_equivalent_to(NamedSharding(mesh, specs[name]), grad.ndim)
    assert watches.cells[0].dtype == jnp.int8
    assert (
        watches.cells[0].addressable_shards[0].data.shape[0] == watches.cells[0].shape[0] // shards
    )
