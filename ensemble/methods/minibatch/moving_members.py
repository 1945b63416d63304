"""SGD whose members move by Langevin dynamics: what takes the steps of the chains."""

import ml_collections

from ensemble.config import flatten
from ensemble.config_rules import validate
from ensemble.methods.members import sgd_keys
from ensemble.methods.members.optimizers import Descent
from ensemble.methods.members.sgd import SGD
from ensemble.methods.minibatch.langevin import langevin
from ensemble.methods.minibatch.minibatch_keys import SGHMC
from ensemble.methods.minibatch.tempered import tempered
from ensemble.methods.minibatch.timetable import Timetable, schedule
from ensemble.task import Learned


def moving_members(
    config: ml_collections.FrozenConfigDict, task: Learned, times: Timetable, decay: float
) -> SGD:
    """Makes the members, one for each chain, with their batches, devices and checkpoints.

    Args:
        config: of the run.
        task: the network, its data and its prior.
        times: of the run.
        decay: share of the momentum that a step keeps.
    """
    steps = schedule(config)
    optimizer = langevin(
        steps.learning_rate,
        steps.is_noisy,
        task.num_train_examples,
        decay,
        num_adapting=times.num_burn_in if config.sgmcmc.preconditioner != "none" else 0,
    )
    foreign = SGHMC.keys.keys() - sgd_keys.BLOCK.keys.keys()
    shared = {key: value for key, value in flatten(config).items() if key not in foreign}
    of_sgd = {"method": "sgd", "ensemble_size": config.num_chains, "num_steps": times.num_steps}
    return SGD(
        validate({**shared, **of_sgd}),
        tempered(task, config.temperature),
        descent=Descent(steps.learning_rate, optimizer),
    )
