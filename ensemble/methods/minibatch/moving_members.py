"""What SGD is to do, so that its members move by Langevin dynamics, as chains do."""

import ml_collections

from ensemble.config import flatten
from ensemble.config_rules import validate
from ensemble.methods.members import sgd_keys
from ensemble.methods.members.optimizers import Descent
from ensemble.methods.minibatch.langevin import langevin
from ensemble.methods.minibatch.minibatch_keys import SGHMC
from ensemble.methods.minibatch.timetable import Timetable, schedule


def descent_of_chains(
    config: ml_collections.FrozenConfigDict, times: Timetable, num_examples: int, decay: float
) -> Descent:
    """How members move that are chains.

    Args:
        config: of the run.
        times: of the run.
        num_examples: N of the data.
        decay: share of the momentum that a step keeps.
    """
    steps = schedule(config)
    optimizer = langevin(
        steps.learning_rate,
        steps.is_noisy,
        num_examples,
        decay,
        num_adapting=times.num_burn_in if config.sgmcmc.preconditioner != "none" else 0,
    )
    return Descent(steps.learning_rate, optimizer)


def config_of_members(
    config: ml_collections.FrozenConfigDict, times: Timetable
) -> ml_collections.FrozenConfigDict:
    """The same run as SGD has it, one member for each chain; its own descent is not used."""
    foreign = SGHMC.keys.keys() - sgd_keys.BLOCK.keys.keys()
    shared = {key: value for key, value in flatten(config).items() if key not in foreign}
    of_sgd = {"method": "sgd", "ensemble_size": config.num_chains, "num_steps": times.num_steps}
    return validate({**shared, **of_sgd})
