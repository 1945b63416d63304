"""Members of several estimators: batch ensembles, which share weights, and packed ensembles.

Wen, Tran and Ba, "BatchEnsemble" (2020), arXiv:2002.06715: K estimators have one kernel in common,
each times an outer product of two vectors of its own. Gorishniy, Kotelnikov and Babenko, "TabM"
(2024), arXiv:2410.24210: on tables, estimators with factors of few layers and a last layer of their
own win. Laurent et al., "Packed-Ensembles" (2023), arXiv:2210.09184: K narrow networks divide the
units of one. A member is one tree; its estimators see the same batches, each learns by its own
loss, and their mixture predicts.
"""

from typing import Any

import ml_collections

from ensemble.fitted import Fitted, OnDisk
from ensemble.methods import training
from ensemble.methods.optimizers import create_descent
from ensemble.methods.shared_weights import ALL, SharedWeights, apart
from ensemble.runtime import loading
from ensemble.runtime.method import Method


def create(config: ml_collections.FrozenConfigDict, task: Any) -> Method:
    """Makes the method of a configuration; packed ensembles have no adapters, and share nothing."""
    learned = SharedWeights.of(task, config.num_estimators, config.get("adapters", ALL))
    return training.create(config, task, create_descent, learned=learned)


def fitted(saved: OnDisk) -> Fitted:
    """The networks of members that are on disk."""
    found = loading.fitted(saved)
    return apart(found) if saved.config["num_estimators"] > 1 else found
