"""BatchEnsemble (Wen et al. 2020): members share weights, and each has two vectors of its own.

The shared weights belong to what predicts; only the vectors are stacked over members.
"""

import dataclasses

import jax

from ensemble.network import Variables
from ensemble.task import PredictingTask
from sketches.wrapped import Wrapped


@dataclasses.dataclass(frozen=True, eq=False)
class BatchEnsemble(Wrapped):
    """A linear layer `((x * r_k) @ W) * s_k + b_k`; member k has r [F], s [K] and b [K]."""

    shared: jax.Array

    def predict(
        self, variables: Variables, inputs: jax.Array, rng_key: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        own = variables["params"]
        outputs = ((self.task.prepare(inputs) * own["r"]) @ self.shared) * own["s"] + own["b"]
        return self.likelihood.predict({}, outputs)


def predictive(ensemble: BatchEnsemble) -> PredictingTask:
    """For the type checker."""
    return ensemble
