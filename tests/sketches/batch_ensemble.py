"""BatchEnsemble (Wen et al. 2020): members share weights, and each has two vectors of its own.

The shared weights belong to what predicts; only the vectors are stacked over members.
"""

import dataclasses
from typing import Any

import jax

from ensemble.likelihood import Likelihood
from ensemble.network import Variables
from ensemble.source import Source
from ensemble.task import Defaults, PredictingTask
from ensemble.tasks.supervised import Supervised


@dataclasses.dataclass(frozen=True, eq=False)
class BatchEnsemble(Defaults):
    """A linear layer `((x * r_k) @ W) * s_k + b_k`; member k has r [F], s [K] and b [K]."""

    task: Supervised
    shared: jax.Array

    @property
    def dataset(self) -> Source:
        return self.task.dataset

    @property
    def likelihood(self) -> Likelihood:
        return self.task.likelihood

    def describe(self) -> dict[str, Any]:
        return self.task.describe()

    def without_examples(self) -> PredictingTask:
        return dataclasses.replace(self, task=self.task.without_examples())

    def predict(self, variables: Variables, inputs: jax.Array) -> dict[str, jax.Array]:
        own = variables["params"]
        outputs = ((self.task.prepare(inputs) * own["r"]) @ self.shared) * own["s"] + own["b"]
        return self.likelihood.predict({}, outputs)


def predictive(ensemble: BatchEnsemble) -> PredictingTask:
    """For the type checker."""
    return ensemble
