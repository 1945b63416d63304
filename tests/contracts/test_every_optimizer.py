"""The contracts of optimizers and schedules, over all that the registry has."""

import pytest

from ensemble import registry
from ensemble.testing import optimizers, schedules


@pytest.mark.parametrize("promise", optimizers.PROMISES, ids=str)
@pytest.mark.parametrize("name", registry.OPTIMIZERS.built_in)
def test_an_optimizer_keeps(name, promise):
    promise.keep(optimizers.OptimizerCase(name))


@pytest.mark.parametrize("promise", schedules.PROMISES, ids=str)
@pytest.mark.parametrize("name", registry.SCHEDULES.built_in)
def test_a_schedule_keeps(name, promise):
    promise.keep(schedules.ScheduleCase(name))
