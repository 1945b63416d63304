"""Deep ensembles (Lakshminarayanan et al. 2017): members that descend from random weights."""

import ml_collections

from ensemble.methods import training
from ensemble.methods.optimizers import create_descent
from ensemble.runtime.method import Method
from ensemble.tasks.supervised import Supervised


def create(config: ml_collections.FrozenConfigDict, task: Supervised) -> Method:
    """Makes the method of a configuration."""
    return training.create(config, task, create_descent)
