"""What fits the contracts, for the type checker."""

from ensemble.random_walk.task import DensityTask
from ensemble.task import Task


def tasks(target: DensityTask) -> list[Task]:
    """What a method can be given."""
    return [target]
