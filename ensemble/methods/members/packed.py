"""The method `packed`: members of several estimators, which divide the units of a network.

`ensemble.networks.packed` says how, after Laurent et al., "Packed-Ensembles" (2023),
arXiv:2210.09184. A member is one tree; its estimators see the same batches, each learns by its own
loss, and their mixture predicts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ensemble.fitted import Fitted
from ensemble.methods.members.batch_ensemble import fitted as fitted
from ensemble.methods.members.engine import Engine, EngineState
from ensemble.methods.members.sgd import SGD
from ensemble.methods.members.shared_weights import ALL, SharedWeights, apart


class Packed(SGD):
    """Members of `SGD` that consist of narrow networks; the arguments are those of `EngineMethod`.

    The network of the task is that of one estimator.
    """

    def make_engine(self, others: Mapping[str, int] | None) -> Engine:
        """The engine of `SGD`, whose members are trees of all estimators."""
        task: Any = self.task  # Supervised.
        shared = SharedWeights.of(task, self.config.packed.num_estimators, ALL)
        return self.engine_of(shared, others)

    def fitted(self, state: EngineState, live: Sequence[int], draws: Any) -> Fitted:
        """The networks that the live members consist of."""
        return apart(super().fitted(state, live, draws))
