"""When draws are taken, and how large steps are."""

import jax.numpy as jnp
import numpy as np
import pytest
from run_parts import validated

from ensemble.methods.sgmcmc import Timetable, timetable


@pytest.mark.parametrize("times", [Timetable(5, 3, 4, 3), Timetable(0, 4, 1, 1)])
def test_draws_are_taken_after_the_burn_in_up_to_the_end(times):
    steps = range(times.num_steps)
    taken = [k + 1 for k in steps if times.draws_before(k + 1) > times.draws_before(k)]
    assert len(taken) == times.num_cycles * times.num_samples
    assert taken[-1] == times.num_steps
    assert taken[0] == times.num_burn_in + times.steps_per_draw


def steps_of(num_steps, **overrides):
    """Learning rates, and whether steps are noisy."""
    own = {"num_burn_in": 60, "num_samples": 4, "steps_per_draw": 10, **overrides}
    config = validated(
        {"method": "sghmc", "learning_rate": 0.5, **{f"sgmcmc.{k}": v for k, v in own.items()}}
    )
    steps = jnp.arange(num_steps)
    times = timetable(config)
    return np.asarray(times.learning_rate(steps)), np.asarray(times.is_noisy(steps))


def test_cycles_fall_by_a_cosine_and_are_silent_while_they_explore():
    rates, noisy = steps_of(300, schedule="cyclical", num_cycles=3)
    np.testing.assert_allclose(rates[[0, 100, 200]], 0.5)
    np.testing.assert_allclose(rates[[50, 150]], 0.25, rtol=1e-6)
    assert (np.diff(rates[:100]) < 0).all()
    np.testing.assert_array_equal(noisy, np.arange(300) % 100 >= 60)


def test_a_constant_schedule_is_noisy_throughout():
    rates, is_noisy = steps_of(1000)
    assert is_noisy.all()
    np.testing.assert_array_equal(rates, np.float32(0.5))
