"""The method `batch_ensemble`: members of several estimators, which share most of their weights.

Wen, Tran and Ba, "BatchEnsemble" (2020), arXiv:2002.06715: K estimators have one kernel in common,
each times an outer product of two vectors of its own. Gorishniy, Kotelnikov and Babenko, "TabM"
(2024), arXiv:2410.24210: on tables, estimators with factors of few layers and a last layer of their
own win. A member is one tree of shared weights; its estimators see the same batches, each learns by
its own loss, and their mixture predicts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ensemble.fitted import Fitted, OnDisk
from ensemble.methods.members import member
from ensemble.methods.members.engine import Engine, EngineState
from ensemble.methods.members.sgd import SGD
from ensemble.methods.members.shared_weights import SharedWeights, apart


class BatchEnsemble(SGD):
    """Members of `SGD` that consist of estimators; the arguments are those of `EngineMethod`.

    Raises:
        UserError: as of `SGD`, or the network lacks the layers that the adapters are of.
    """

    def make_engine(self, others: Mapping[str, int] | None) -> Engine:
        """The engine of `SGD`, whose members are trees of shared weights."""
        settings = self.config.batch_ensemble
        task: Any = self.task  # Supervised.
        shared = SharedWeights.of(task, settings.num_estimators, settings.adapters)
        return self.engine_of(shared, others)

    def fitted(self, state: EngineState, live: Sequence[int], draws: Any) -> Fitted:
        """The networks that the live members consist of."""
        return apart(super().fitted(state, live, draws))


def fitted(saved: OnDisk) -> Fitted:
    """The networks of members that are on disk: see `ensemble.entries.MethodEntry`."""
    return apart(member.fitted(saved))
