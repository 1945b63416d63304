"""Snapshot ensembles (Huang et al. 2017, arXiv:1704.00109): a set of variables for each cycle.

The learning rate falls from its peak to 0 along half a cosine, and jumps back. All sets of a member
together are its prediction, so that one training gives the predictions of several networks.
"""

import numpy as np
import optax

from ensemble.config import Config
from ensemble.methods import training
from ensemble.methods.optimizers import descent_by
from ensemble.runtime.algorithm import Keep
from ensemble.runtime.method import KeptReport, Method
from ensemble.tasks.supervised import Supervised


class SnapshotReport(KeptReport, training.DescentReport):
    """Report of members that predict with all their snapshots."""

    @property
    def most(self) -> int:
        """All of them."""
        return self.config.snapshot_ensemble.num_cycles

    def recorded(self, run, period) -> dict[str, np.ndarray]:
        """Nothing: the log has the losses."""
        return {}


def create(config: Config, task: Supervised) -> Method:
    """Makes the method of a configuration.

    Raises:
        InputError: There are fewer steps than cycles.
    """
    number = config.snapshot_ensemble.num_cycles
    steps = training.num_steps(config, task.num_train_examples)
    ends = training.divided(steps, "snapshot_ensemble.num_cycles", number)
    lengths, after = np.diff([0, *ends]), np.array(ends)
    cycles = [optax.cosine_decay_schedule(config.learning_rate, int(one)) for one in lengths]
    schedule = optax.join_schedules(cycles, ends[:-1])
    keep = Keep(lambda step: (step >= after).sum(), steps // number, only_rows=True)
    return training.create(
        config,
        task,
        lambda own, _: descent_by(own, schedule),
        wrap=lambda algorithm, devices, numbers: algorithm._replace(keep=keep),
        report=SnapshotReport,
        facts={"the number of steps": (steps, "config.num_epochs or config.num_steps")},
    )
