"""What every schedule promises: finite learning rates over any horizon, up to the peak."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ensemble import registry
from ensemble.config_rules import validate
from ensemble.methods.members.optimizers import learning_rate_schedule
from ensemble.testing.promises import Promise, demand, keep_all, promise

_HORIZONS = (1, 2, 10, 200)


@dataclasses.dataclass(frozen=True)
class ScheduleCase:
    """A schedule of a configuration.

    Attributes:
        name: of the schedule.
        settings: keys of the configuration, by name.
    """

    name: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    kind: str = "schedule"

    def config(self, num_steps: int) -> Any:
        """The configuration of a run of so many steps that has it."""
        return validate(
            {"learning_rate": 0.3, **self.settings, "num_steps": num_steps, "schedule": self.name}
        )

    def rates(self, num_steps: int) -> Mapping[int, Any]:
        """Learning rates by step, up to a few steps beyond the horizon."""
        schedule = learning_rate_schedule(self.config(num_steps), num_steps)
        return {step: schedule(step) for step in range(num_steps + 3)}


def check_schedule(name: str, **settings: Any) -> None:
    """Checks what every schedule of the learning rate promises, over short and long horizons.

    Args:
        name: of a schedule that is built in, registered or installed.
        **settings: keys of the configuration, such as `learning_rate`, which is the peak.

    Raises:
        BrokenPromise: it breaks a rule, which the message names, with what to look at.
        UserError: there is no such schedule, or the settings cannot stand.
    """
    registry.find("schedule", name)
    case = ScheduleCase(name, settings)
    case.config(_HORIZONS[0])  # Refuses settings that cannot stand.
    keep_all(PROMISES, case)


_FOUND: list[Promise] = []


@promise(_FOUND, "divisions by a number of steps that can be 0")
def rates_are_finite_and_not_negative(case: ScheduleCase) -> None:
    """Each step of any horizon has one rate that is finite and not negative."""
    for num_steps in _HORIZONS:
        for step, rate in case.rates(num_steps).items():
            told = f"at step {step} of {num_steps} it is {rate}"
            demand(np.shape(rate) == (), told)
            demand(np.isfinite(rate) and rate >= 0, told)


@promise(_FOUND, "config.learning_rate, which is the peak")
def the_highest_rate_is_that_of_the_configuration(case: ScheduleCase) -> None:
    """The highest rate of a long horizon is config.learning_rate."""
    num_steps = _HORIZONS[-1]
    highest, wanted = max(case.rates(num_steps).values()), case.config(num_steps).learning_rate
    np.testing.assert_allclose(float(highest), wanted, rtol=0.05)


@promise(_FOUND, "conditions on the step: jnp.where takes a traced number")
def a_traced_step_has_the_same_rate(case: ScheduleCase) -> None:
    """A step that is traced has the rate that it has as a number."""
    for num_steps in _HORIZONS:
        schedule = jax.jit(learning_rate_schedule(case.config(num_steps), num_steps))
        for step, rate in case.rates(num_steps).items():
            told = f"step {step} of {num_steps}"
            np.testing.assert_allclose(schedule(step), rate, 1e-5, 1e-7, err_msg=told)


@promise(_FOUND, "numbers that come from elsewhere than the arguments: a clock, a count of calls")
def it_has_the_same_rates_again(case: ScheduleCase) -> None:
    """Made twice, it has the same rates to the bit."""
    first, again = (case.rates(_HORIZONS[-1]) for _ in range(2))
    for step, rate in first.items():
        np.testing.assert_array_equal(rate, again[step], err_msg=f"step {step}")


PROMISES: tuple[Promise, ...] = tuple(_FOUND)
"""All rules of schedules, in order."""
