"""The contracts of optimizers and schedules, over all that the registry has."""

import jax
import numpy as np
import pytest

from ensemble import registry
from ensemble.testing import optimizers, schedules


@pytest.mark.parametrize("promise", optimizers.PROMISES, ids=str)
@pytest.mark.parametrize("name", registry.OPTIMIZERS.built_in)
def test_an_optimizer_keeps(name, promise):
    promise.keep(optimizers.OptimizerCase(name))


@pytest.mark.parametrize("name", registry.OPTIMIZERS.built_in)
def test_it_comes_close_to_the_lowest_point(name):
    """Ours do, of which the promise asks less."""
    found = optimizers.OptimizerCase(name).descend(optimizers._start())
    jax.tree.map(
        lambda one, lowest: np.testing.assert_allclose(one, lowest, atol=0.05),
        found,
        optimizers._TARGET,
    )


@pytest.mark.parametrize("promise", schedules.PROMISES, ids=str)
@pytest.mark.parametrize("name", registry.SCHEDULES.built_in)
def test_a_schedule_keeps(name, promise):
    promise.keep(schedules.ScheduleCase(name))
