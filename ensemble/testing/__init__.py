"""Checks of tenants: what a contract promises, tried on one of yours.

Each `check_KIND(name)` tries a tenant that is registered or installed. It returns nothing, or
raises `BrokenPromise`, an AssertionError which names the rule, what to look at, and what was found.
A test calls it, or a plain script. `tests/contracts` does so over every built-in tenant.
"""

from ensemble.testing.augmentations import check_augmentation
from ensemble.testing.likelihoods import check_likelihood
from ensemble.testing.methods import check_method
from ensemble.testing.networks import check_network
from ensemble.testing.optimizers import check_optimizer
from ensemble.testing.priors import check_prior
from ensemble.testing.promises import BrokenPromise
from ensemble.testing.schedules import check_schedule
from ensemble.testing.scores import check_score
from ensemble.testing.sources import check_source
from ensemble.testing.tasks import check_task
from ensemble.testing.writers import check_writer

__all__ = [
    "BrokenPromise",
    "check_augmentation",
    "check_likelihood",
    "check_method",
    "check_network",
    "check_optimizer",
    "check_prior",
    "check_schedule",
    "check_score",
    "check_source",
    "check_task",
    "check_writer",
]
