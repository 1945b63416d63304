"""When draws are taken, and how large steps are."""

import jax.numpy as jnp
import numpy as np
import pytest
from run_parts import validated

from ensemble.methods.timetable import Timetable, schedule


@pytest.mark.parametrize("times", [Timetable(5, 3, 4, 3), Timetable(0, 4, 1, 1)])
def test_draws_are_taken_after_the_burn_in_up_to_the_end(times):
    steps = range(times.num_steps)
    taken = [k + 1 for k in steps if times.draws_before(k + 1) > times.draws_before(k)]
    assert len(taken) == times.num_cycles * times.num_samples
    assert taken[-1] == times.num_steps
    assert taken[0] == times.num_burn_in + times.steps_per_draw


def make_schedule(**overrides):
    own = {"num_burn_in": 60, "num_samples": 4, "steps_per_draw": 10, **overrides}
    return schedule(
        validated(
            {"method": "sghmc", "learning_rate": 0.5, **{f"sgmcmc.{k}": v for k, v in own.items()}}
        )
    )


def test_cycles_fall_by_a_cosine_and_are_silent_while_they_explore():
    found = make_schedule(schedule="cyclical", num_cycles=3)
    steps = jnp.arange(300)
    rates, noisy = np.asarray(found.learning_rate(steps)), np.asarray(found.is_noisy(steps))
    np.testing.assert_allclose(rates[[0, 100, 200]], 0.5)
    np.testing.assert_allclose(rates[[50, 150]], 0.25, rtol=1e-6)
    assert (np.diff(rates[:100]) < 0).all()
    np.testing.assert_array_equal(noisy, np.arange(300) % 100 >= 60)


def test_the_other_schedules_are_noisy_throughout_and_one_of_them_falls():
    steps = jnp.arange(1000)
    constant, polynomial = make_schedule(), make_schedule(schedule="polynomial")
    assert constant.is_noisy(steps).all()
    assert polynomial.is_noisy(steps).all()
    np.testing.assert_array_equal(constant.learning_rate(steps), np.float32(0.5))
    rates = np.asarray(polynomial.learning_rate(steps))
    np.testing.assert_allclose(rates[[0, 60, 420]], 0.5 * np.array([1, 2, 8.0]) ** (-1 / 3), 1e-5)
