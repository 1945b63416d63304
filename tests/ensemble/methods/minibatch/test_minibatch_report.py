"""What the report says of chains by batches: remedies that the program does not refuse."""

import re

import pytest
from run_parts import validated

from ensemble.methods.minibatch import minibatch_keys
from ensemble.methods.minibatch.minibatch_report import longer, notes
from ensemble.methods.minibatch.timetable import Timetable


def keys(text):
    """The keys that a line names."""
    return re.findall(r"config\.([\w.]+)=", text)


@pytest.mark.parametrize("num_cycles", [1, 4])
@pytest.mark.parametrize("schedule", ["constant", "polynomial", "cyclical"])
def test_only_keys_that_a_finished_run_may_change_are_named_for_it(schedule, num_cycles):
    here, _, anew = longer(Timetable(10, 5, 3, num_cycles), schedule).partition("new workdir")
    more = "num_cycles" if schedule == "cyclical" else "num_samples"
    assert keys(here) == [f"sgmcmc.{more}"]
    blocks = minibatch_keys.SGHMC.keys
    assert all(blocks[key].may_change for key in keys(here))
    assert not any(blocks[key].may_change for key in keys(anew))
    assert len(keys(anew)) == 2


@pytest.mark.parametrize(
    ("heat", "says"),
    [
        (1.2, "new workdir lower config.learning_rate=0.04 to 0.01 .* for a temperature of 1.05"),
        (1.09, None),
        (0.8, "In a new workdir raise config.sgmcmc.steps_per_draw=100"),
    ],
)
def test_draws_at_another_temperature_get_a_remedy(heat, says):
    config = validated({"method": "sghmc", "learning_rate": 0.04, "batch_size": 10})
    found = notes({"draw_temperature": heat}, config, 1000)
    assert len(found) == bool(says)
    assert says is None or re.search(says, found[0])
