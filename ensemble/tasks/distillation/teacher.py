"""The ensemble that is learned from: read from its workdir, and as a function of inputs."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import jax
import ml_collections
import numpy as np
from absl import logging

from ensemble import registry
from ensemble.errors import UserError
from ensemble.fitted import Fitted
from ensemble.likelihood import Likelihood
from ensemble.scoring.view import View
from ensemble.source import Source, SplitInputs
from ensemble.storage.workdir import Workdir
from ensemble.task import PredictingTask

MAX_NETWORKS = 64
"""The most networks of a teacher, which all predict every batch: of more, such as a posterior's
draws, so many at even distances stand for all."""
_MAX_BYTES = 2_000_000_000  # Constants of the training step, a program of protobuf: below 2**31.


class Predictions(Protocol):
    """What members say of N inputs."""

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """[E, N, ...] of the estimators, by name."""

    def view(self, likelihood: Likelihood, targets: np.ndarray) -> View:
        """What is scored."""


class Ensemble(Protocol):
    """An ensemble as a function, as far as learning from it, and being compared with it, goes."""

    task: PredictingTask
    fitted: Fitted
    members: Sequence[int]

    @property
    def likelihood(self) -> Likelihood:
        """What the predictions are of."""

    def member_arrays(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        """What every network predicts: named arrays [M, N, ...]."""

    def predict_members(self, inputs: SplitInputs) -> Predictions:
        """The same of every member, or chain."""


class Teacher(NamedTuple):
    """An ensemble, and where it was read.

    Attributes:
        ensemble: as a function.
        identity: of the run.
    """

    ensemble: Ensemble
    identity: str

    @property
    def digest(self) -> str:
        """16 hex digits that depend on all variables, and on the passes."""
        found = hashlib.blake2b(digest_size=8)
        for leaf in jax.tree.leaves(self.ensemble.fitted.sets):
            found.update(f"{leaf.dtype} {leaf.shape};".encode())
            found.update(np.ascontiguousarray(leaf).data)
        if self.ensemble.fitted.num_passes > 1:
            found.update(f"{self.ensemble.fitted.num_passes} passes".encode())
        return found.hexdigest()

    def function(self) -> Callable[[jax.Array], dict[str, jax.Array]]:
        """From raw inputs [B, ...] to what the ensemble says: `Likelihood.exported`."""
        fitted, task = self.ensemble.fitted, self.ensemble.task
        number = fitted.num_estimators
        if number > MAX_NETWORKS:
            size = min(fitted.num_sets, MAX_NETWORKS)
            chosen = np.linspace(0, fitted.num_sets - 1, size).round().astype(int)
            fitted = dataclasses.replace(
                fitted,
                sets=jax.tree.map(lambda leaf: leaf[chosen], fitted.sets),
                member_of=fitted.member_of[chosen],
                num_passes=MAX_NETWORKS // size,
            )
            logging.info(
                "The teacher's %d %ss are represented by %d.",
                number,
                fitted.nouns[1],
                fitted.num_estimators,
            )

        def predict(inputs: jax.Array) -> dict[str, jax.Array]:
            return task.likelihood.exported(fitted.all_estimators(task, inputs), None)

        return predict


def load_teacher(config: ml_collections.FrozenConfigDict, source: Source) -> Teacher:
    """Reads the ensemble of `config.teacher`, which is not changed.

    Args:
        config: of the run that learns from it.
        source: what it learns from.

    Raises:
        UserError: it is no workdir with an ensemble, or it has learned other data, or is too large.
    """
    where = f"config.teacher={config.teacher!r}"
    try:
        restored = registry.load(registry.RESTORE)(Workdir(config.teacher))
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if restored.description["fingerprint"] != source.fingerprint:
        raise UserError(
            f"{where} has learned other data, {restored.description['name']}, than {source.name} "
            "as it is split here; give the data, config.seed and config.hold_out of its run"
        )
    if not restored.likelihood.has_density:
        raise UserError(
            f"{where} has learned {restored.likelihood.name}, which are no distribution that could "
            "be learned from; give an ensemble with a likelihood such as 'gaussian'"
        )
    ensemble = restored.predictor(config.num_devices)
    num_bytes, networks = ensemble.fitted.num_bytes, ensemble.fitted.num_sets
    if num_bytes // networks * min(networks, MAX_NETWORKS) > _MAX_BYTES:
        raise UserError(
            f"{where} has {networks} networks of {num_bytes / networks / 1e9:.2g} GB each; a step "
            f"of training holds {_MAX_BYTES / 1e9:.2g} GB of a teacher: give one of fewer or "
            "smaller networks"
        )
    return Teacher(ensemble, restored.identity)


def num_parameters(ensemble: Ensemble) -> int:
    """Numbers that all networks have together."""
    return sum(leaf.size for leaf in jax.tree.leaves(ensemble.fitted.sets["params"]))
