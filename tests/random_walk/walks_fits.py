"""What fits the contracts, for the type checker."""

from ensemble.task import Task
from ensemble.walks.densities import Density
from ensemble.walks.target import DensityTask, Target, TargetDensity


def tasks(target: Target) -> list[Task]:
    """What a method can be given."""
    return [target]


def sampled(target: Target) -> DensityTask:
    """What a random walk takes."""
    return target


def densities(target: Target, density: Density) -> list[TargetDensity]:
    """What the walker takes."""
    return [target, density]
