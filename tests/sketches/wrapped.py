"""What predicts by a trained network in a way of its own, and is its task otherwise."""

import dataclasses
from typing import Any

from ensemble.likelihood import Likelihood
from ensemble.sources import Source
from ensemble.task import Defaults
from ensemble.tasks.supervised import Supervised


@dataclasses.dataclass(frozen=True, eq=False)
class Wrapped(Defaults):
    """All that a task says of its data; `predict` is left to those that are made of it."""

    task: Supervised

    @property
    def dataset(self) -> Source:
        return self.task.dataset

    @property
    def likelihood(self) -> Likelihood:
        return self.task.likelihood

    def describe(self) -> dict[str, Any]:
        return self.task.describe()

    def without_examples(self) -> Any:
        return dataclasses.replace(self, task=self.task.without_examples())
