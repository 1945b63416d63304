"""Deep ensembles (Lakshminarayanan et al. 2017): members that descend from random weights."""

from ensemble.config import Config
from ensemble.methods import training
from ensemble.methods.optimizers import create_descent
from ensemble.runtime.method import Method
from ensemble.tasks.supervised import Supervised


def create(config: Config, task: Supervised) -> Method:
    """Makes the method of a configuration."""
    return training.create(config, task, create_descent)
