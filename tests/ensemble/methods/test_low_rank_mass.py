"""Masses of low rank, on densities whose covariance is known, and in runs that are broken off."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from density_task import DensityTask
from run_parts import loop_of, stored

from ensemble.methods import low_rank_mass
from ensemble.methods.kernels import Settings
from ensemble.methods.warmup import build_schedule, window_ends

NUM_WIDE = 3
WIDE = 30.0
NUM_PARAMS = 12


def identity(num_params):
    mass = low_rank_mass.start(num_params, 1).inverse_mass_matrix
    return jax.tree.map(np.asarray, mass)


def matrix(mass):
    scale, directions, variances = (np.float64(one) for one in mass)
    inner = np.eye(len(scale)) + directions @ np.diag(variances - 1) @ directions.T
    return scale[:, None] * inner * scale


def normal(num_params, num_draws, rng):
    """Covariance, draws and gradients of a normal density with a few wide directions."""
    wide = np.linalg.qr(rng.normal(size=(num_params, NUM_WIDE)))[0]
    scales = np.exp(rng.uniform(-3, 3, num_params))
    inner = np.eye(num_params) + wide @ wide.T * (WIDE**2 - 1)
    covariance = scales[:, None] * inner * scales
    draws = rng.normal(size=(num_draws, num_params)) @ np.linalg.cholesky(covariance).T
    grads = -np.linalg.solve(covariance, draws.T).T
    return covariance, np.float32(draws + 5 * scales), np.float32(grads)


def condition(mass, covariance):
    """The widest direction's variance over the narrowest one's, in units of the mass."""
    root = np.linalg.cholesky(np.linalg.inv(covariance))
    values = np.linalg.eigvalsh(root.T @ mass @ root)
    return values.max() / values.min()


@pytest.mark.parametrize(("num_params", "num_draws"), [(7, 25), (60, 100), (60, 50)])
def test_a_few_draws_tell_wide_directions(num_params, num_draws):
    covariance, draws, grads = normal(num_params, num_draws, np.random.default_rng(0))
    found = low_rank_mass.fit(draws, grads, identity(num_params))
    ours = matrix(found)
    diagonal = np.diag(np.diag(covariance))
    assert condition(diagonal, covariance) > 100
    assert condition(ours, covariance) < 8
    if num_params <= low_rank_mass.MAX_RANK:
        assert condition(ours, covariance) <= 2 + 1e-3  # Up to the cutoff.
        assert np.trace(ours) == pytest.approx(np.trace(covariance), rel=0.3)


def test_what_has_not_moved_keeps_its_scale_and_what_is_no_number_the_mass():
    rng = np.random.default_rng(0)
    _, draws, grads = normal(7, 25, rng)
    before = identity(7)._replace(sigma=np.full(7, 3, "f4"))
    still = draws.copy()
    still[:, 2] = 4
    found = low_rank_mass.fit(still, grads, before)
    assert all(np.isfinite(leaf).all() for leaf in found)
    assert found.lam.min() > 0
    assert low_rank_mass.fit(still[:1], grads[:1], before).sigma.tolist() == [3] * 7
    flat = low_rank_mass.fit(draws, np.zeros_like(grads), before)
    assert all(np.isfinite(leaf).all() for leaf in flat)
    grads[3, 1] = np.inf
    assert low_rank_mass.fit(draws, grads, before) is before


def test_windows_end_where_the_schedule_says():
    assert window_ends(Settings(mass="dense", num_warmup=200)) == {}
    stages = np.asarray(build_schedule(200))
    ends = window_ends(Settings(mass="low_rank", num_warmup=200))
    assert list(ends) == (np.flatnonzero(stages[:, 1]) + 1).tolist()
    assert sum(ends.values()) == stages[:, 0].sum()


WIDE_ONES = np.linalg.qr(np.random.default_rng(0).normal(size=(NUM_PARAMS, NUM_WIDE)))[0]


def logdensity_fn(x):
    along = jnp.asarray(WIDE_ONES, jnp.float32).T @ x
    across = x - jnp.asarray(WIDE_ONES, jnp.float32) @ along
    return -0.5 * (jnp.sum(across**2) + jnp.sum((along / WIDE) ** 2))


def chains(num_devices):
    config = {
        "method": "nuts",
        "num_chains": 4,
        "num_devices": num_devices,
        "log_every_steps": 60,
        "sampler.mass_matrix": "low_rank",
        "sampler.num_warmup": 40,
        "sampler.num_samples": 20,
    }
    return loop_of(config, task=DensityTask(logdensity_fn, NUM_PARAMS))


def resumed(num_devices, step, arrays):
    loop = chains(num_devices)
    loop.restore(step, step, {"members": arrays})
    return loop


@pytest.mark.check
def test_a_break_within_a_window_changes_no_bit_and_other_devices_go_on():
    """The mass comes from draws before and after the break."""
    [(end, length)] = window_ends(Settings(mass="low_rank", num_warmup=40)).items()
    assert end - length < 28 < end
    straight = chains(1)
    broken = chains(1)
    for loop, step in ((straight, 60), (broken, 28)):
        loop.start()
        loop.go(step)
    saved = stored(broken)
    draws = saved["state/adaptation/mass/draws"]
    assert draws[:, 27 % length].any()
    again = resumed(1, 28, saved)
    again.go(60)
    found, expected = (stored(one) for one in (again, straight))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    wide = WIDE_ONES @ WIDE_ONES.T
    covariance = np.eye(NUM_PARAMS) + wide * (WIDE**2 - 1)
    other = resumed(4, 28, saved)
    jax.tree.map(np.testing.assert_array_equal, stored(other), saved)
    other.go(end)
    masses = jax.device_get(other.members.state.adaptation.mass.inverse_mass_matrix)
    for mass in zip(*masses, strict=True):
        assert condition(matrix(mass), covariance) < 50
