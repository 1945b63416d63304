"""SWAG: the normal distribution of the last iterates, and draws with statistics of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_config
from flax import linen as nn
from run_parts import task_of, validated

import ensemble
from ensemble import UserError, registry
from ensemble.methods.members import swag
from ensemble.methods.members.swag import (
    _collect,
    _draw,
    _no_moments,
    falling_then_constant,
    first_collected,
)

OWN = {"swag.num_iterates": 4, "swag.num_draws": 3}
CONFIG = small_config(method="swag", ensemble_size=3, num_epochs=4) | OWN
QUIET = {"show_progress": False}


def moments_of(iterates):
    """Moments of iterates, trees of [M, ...]."""
    iterates = jax.tree.map(jnp.asarray, iterates)
    moments = _no_moments(iterates[0], len(iterates))
    for number, one in enumerate(iterates):
        moments = _collect(moments, one, number)
    return moments


def iterates_of(seed, num_iterates=6, num_members=2):
    rng = np.random.default_rng(seed)
    shapes = {"kernel": (num_members, 3, 2), "bias": (num_members, 2)}
    return [
        {
            name: (2 + 0.3 * rng.normal(size=shape)).astype(np.float32)
            for name, shape in shapes.items()
        }
        for _ in range(num_iterates)
    ]


def rows_of(tree):
    """Every member's parameters as rows [M, P]."""
    return np.concatenate([np.reshape(leaf, (len(leaf), -1)) for leaf in jax.tree.leaves(tree)], 1)


@pytest.mark.check
def test_mean_and_covariance_are_those_of_the_paper():
    """By NumPy, of iterates in float64; draws of a seed, within five standard errors."""
    iterates = iterates_of(0)
    moments = moments_of(iterates)
    rows = np.stack([rows_of(one) for one in iterates]).astype(np.float64)  # [T, M, P]
    np.testing.assert_allclose(rows_of(moments["mean"]), rows.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(rows_of(moments["squares"]) / len(rows), rows.var(axis=0), rtol=1e-4)
    running = np.cumsum(rows, axis=0) / np.arange(1, len(rows) + 1)[:, None, None]
    off = rows - running
    keys = jax.random.split(jax.random.key(1), 2)
    drawn = jax.jit(jax.vmap(lambda k: _draw(moments, keys, k)))(np.arange(20_000))
    draws = [np.reshape(leaf, (*leaf.shape[:2], -1)) for leaf in jax.tree.leaves(drawn)]
    draws = np.concatenate(draws, axis=2).astype(np.float64)
    for member in range(2):
        deviations = off[:, member]
        expected = np.diag(rows[:, member].var(axis=0)) / 2
        expected += deviations.T @ deviations / (2 * (len(rows) - 1))
        found = np.cov(draws[:, member], rowvar=False)
        variances = np.diag(expected)
        error = np.sqrt((np.outer(variances, variances) + expected**2) / len(draws))
        assert np.abs((found - expected) / error).max() < 5
        bias = draws[:, member].mean(axis=0) - rows[:, member].mean(axis=0)
        assert np.abs(bias / np.sqrt(variances / len(draws))).max() < 5


@pytest.mark.check
def test_deviations_in_half_the_bytes_keep_four_digits(blobs, tmp_path, monkeypatch):
    def nll(name):
        result = ensemble.train(CONFIG, blobs, str(tmp_path / name), **QUIET)
        return result.report["test"]["scores"]["nll"]["value"]

    half = nll("half")
    monkeypatch.setattr(swag, "_DEVIATIONS", jnp.float32)
    jax.clear_caches()
    whole = nll("whole")
    assert half != whole
    assert half == pytest.approx(whole, rel=5e-5)


def stepped(config, data):
    """A run without the loop: its method, its last state, and the iterates that it collected."""
    config = validated(config)
    method = registry.load(registry.METHODS["swag"].factory)(config, task_of(config, data))
    state, iterates = method.init(jax.random.key(5)), []
    while not method.finished(state):
        state, _ = method.advance(state)
        if state.step in method.stops:
            gather = method.engine.programs.placement.gather_members
            iterates.append(gather(state.members.members.params))
    return method, state, iterates


@pytest.mark.check
def test_the_iterates_are_evenly_spaced_at_the_end_and_draws_are_of_them(blobs):
    method, state, iterates = stepped(CONFIG, blobs)
    start, end = first_collected(method.num_steps, 0.25), method.num_steps
    assert method.stops[-1] == end
    assert start < method.stops[0]
    assert np.ptp(np.diff([start, *method.stops])) <= 1
    assert state.moments == {}
    assert list(state.taken) == ["draw_0000", "draw_0001", "draw_0002"]
    key_data = np.asarray(jax.random.key_data(state.members.members.rng_key))
    rng_keys = jax.random.wrap_key_data(key_data)
    padded = [
        jax.tree.map(lambda leaf: np.resize(leaf, (len(rng_keys), *leaf.shape[1:])), one)
        for one in iterates
    ]
    expected = _draw(moments_of(padded), rng_keys, 1)
    found = method.engine.programs.placement.gather_members(state.taken["draw_0001"]["params"])
    np.testing.assert_allclose(rows_of(found), rows_of(expected)[:3], atol=1e-5)


def test_the_rate_falls_and_stays():
    rates = np.array([falling_then_constant(0.2, 0.5, 10)(step) for step in range(20)])
    assert rates[0] == pytest.approx(0.2)
    assert (np.diff(rates[:11]) < 0).all()
    np.testing.assert_allclose(rates[10:], 0.1, rtol=1e-6)


class Normed(nn.Module):
    """Batch statistics of features."""

    num_outputs: int

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Dense(5, name="features")(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9, name="norm")(x)
        return nn.Dense(self.num_outputs)(nn.relu(x))


@pytest.mark.check
def test_every_draw_has_the_statistics_of_its_own_parameters(blobs):
    ensemble.networks.register("normed", Normed)
    config = {**CONFIG, "model": "normed", "num_epochs": 30}
    method, state, _ = stepped(config, blobs)
    source = method.task.dataset
    inputs = np.asarray(method.task.prepare(source.read("train", slice(None)).inputs))
    gather, means = method.engine.programs.placement.gather_members, []
    for variables in map(gather, state.taken.values()):
        layer = variables["params"]["features"]
        for member in range(3):
            features = inputs @ layer["kernel"][member] + layer["bias"][member]
            kept = variables["batch_stats"]["norm"]["mean"][member]
            np.testing.assert_allclose(kept, features.mean(axis=0), atol=0.1)
            means.append(kept)
    assert len(np.unique(np.round(means, 6), axis=0)) == 9


@pytest.mark.check
def test_one_draw_more_leaves_the_others(blobs, tmp_path):
    few, more = (
        ensemble.train(CONFIG | {"swag.num_draws": n}, blobs, str(tmp_path / str(n)), **QUIET)
        for n in (3, 4)
    )
    ours, theirs = few.predictor.fitted, more.predictor.fitted
    np.testing.assert_array_equal(ours.member_of, np.repeat(range(3), 3))
    assert few.predictor.description == "9 draws of 3 members"
    kernel = [np.asarray(one.sets["params"]["Dense_0"]["kernel"]) for one in (ours, theirs)]
    ours, theirs = (one.reshape(3, -1, *one.shape[1:]) for one in kernel)
    np.testing.assert_array_equal(ours, theirs[:, :3])


@pytest.mark.check
def test_other_members_join_with_as_many_draws(blobs, tmp_path):
    ensemble.train(CONFIG, blobs, str(tmp_path), **QUIET)
    before = ensemble.load(tmp_path).fitted
    ensemble.train({**CONFIG, "ensemble_size": 5}, blobs, str(tmp_path), **QUIET)
    after = ensemble.load(tmp_path).fitted
    assert (after.num_sets, after.num_members) == (15, 5)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[:9]), before.sets, after.sets)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"swag.num_iterates": 500}, "iterates need as many steps, and the last 25% of this run"),
        ({"swag.fraction": 1.0}, "swag.fraction=1.0 must be above 0 and below 1"),
        ({"swag.rate": 0.0}, "swag.rate=0.0 must be above 0"),
        ({"schedule": "cosine"}, "schedule"),
    ],
)
def test_what_it_does_not_take_is_refused(changes, part, blobs, tmp_path):
    with pytest.raises(UserError) as error:
        ensemble.train({**CONFIG, **changes}, blobs, str(tmp_path), **QUIET)
    assert part in str(error.value)
