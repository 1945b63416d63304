"""Members of several runs, each with a weight, as one ensemble."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble import metrics
from ensemble.batched_prediction import Keep, in_memory
from ensemble.errors import UserError
from ensemble.fitted import Fitted
from ensemble.likelihood import Likelihood
from ensemble.pictures.plot_style import plural
from ensemble.predictor import Predictor, Restored, restore
from ensemble.source import AnyInputs
from ensemble.storage.predictions import MemberPredictions
from ensemble.storage.selection import Selected, is_selection, read_selection
from ensemble.storage.workdir import Workdir


class SelectedPredictor(Predictor):
    """Predicts with members of several runs, which may be unlike in network and method.

    Args:
        parts: the members of each run as a function.
        weights: [M] of all members, in the order of the parts.
        temperature: as of `Predictor`.
        identity: of the selection.
        abstention: as of `Predictor`.
    """

    def __init__(
        self,
        parts: Sequence[Predictor],
        weights: np.ndarray,
        temperature: float | None = None,
        identity: str = "",
        abstention: metrics.Abstention | None = None,
    ):
        self.parts, self.weights = parts, weights
        self.task = parts[0].task
        self.members = tuple(range(len(weights)))
        self.temperature, self.identity, self.abstention = temperature, identity, abstention

    @property
    def fitted(self) -> Fitted:  # type: ignore[override]
        """Nothing: members of several runs are no one set of arrays.

        Raises:
            UserError: always.
        """
        raise UserError("members of several runs were selected; name one of these runs")

    @property
    def description(self) -> str:
        """What predicts, in words."""
        members = plural(len(self.members), "weighted member")
        return f"{members} of {plural(len(self.parts), 'run')}"

    @property
    def num_bytes(self) -> int:
        """The bytes of all variables."""
        return sum(part.num_bytes for part in self.parts)

    @functools.cached_property
    def estimator_weights(self) -> np.ndarray:
        """[E], of sum 1."""
        found, first = [], 0
        for part in self.parts:
            fitted = part.fitted
            counts = np.bincount(fitted.member_of) * fitted.num_passes
            own = self.weights[first : first + len(counts)]
            found.append(np.repeat(own / counts, counts))
            first += len(counts)
        every = np.concatenate(found)
        return every / every.sum()

    def function(self, inputs: jax.Array) -> dict[str, jax.Array]:
        """The same as a call, pure and without a look at the inputs [B, ...], for `jax.export`."""
        predicted = [
            part.fitted.all_estimators(part.task, part.task.dataset.of_raw_traced(inputs))
            for part in self.parts
        ]
        weights = jnp.asarray(self.estimator_weights, jnp.float32)
        return self.likelihood.exported(
            _concatenated(predicted, jnp), self.temperature, self._threshold, weights
        )

    def without_examples(self) -> dict[str, Any]:
        """What `rebuilt` builds it from again, on any devices: it holds no training data."""
        return {
            "parts": [part.without_examples() for part in self.parts],
            "weights": self.weights,
            "identity": self.identity,
        }

    def member_arrays(self, inputs: AnyInputs, keep: Keep = in_memory) -> dict[str, np.ndarray]:
        """Returns what every estimator predicts: named arrays [E, N, ...], part by part.

        Raises:
            UserError: as a call.
        """
        return _concatenated([part.member_arrays(inputs) for part in self.parts], np)

    def predict_members(self, inputs: AnyInputs, keep: Keep = in_memory) -> MemberPredictions:
        """Predicts with each member by all its estimators, such as the draws of a chain.

        Args:
            inputs: [N, ...].
            keep: taken as `in_memory`.

        Raises:
            UserError: as a call.
        """
        said = [part.predict_members(inputs) for part in self.parts]
        return together(said, self.weights, self.likelihood)


def rebuilt(kept: Mapping[str, Any], num_devices: int | None = None) -> Predictor:
    """The predictor of which `without_examples` has kept this.

    Args:
        kept: of a `Predictor`, or of a `SelectedPredictor`.
        num_devices: to predict on; None for all.
    """
    if "parts" not in kept:
        return Predictor(**kept, num_devices=num_devices)
    parts = [Predictor(**one, num_devices=num_devices) for one in kept["parts"]]
    return SelectedPredictor(parts, kept["weights"], identity=kept["identity"])


@dataclasses.dataclass(frozen=True)
class RestoredSelection:
    """What a workdir of a selection says: the attributes are those of `Restored`.

    Attributes:
        parts: of the runs, each with its chosen members alone.
        weights: [M].
        identity: of the selection.
        where: the workdir.
    """

    parts: Sequence[Restored]
    weights: np.ndarray
    identity: str
    where: Any
    notes: Sequence[str] = ()
    step: int = 0

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of the first run."""
        return self.parts[0].config

    @property
    def description(self) -> dict[str, Any]:
        """The description of the data, the same of all runs."""
        return self.parts[0].description

    @property
    def likelihood(self) -> Likelihood:
        """The same of all runs."""
        return self.parts[0].likelihood

    @property
    def members(self) -> list[int]:
        """[M], their numbers here."""
        return list(range(len(self.weights)))

    @property
    def failed_members(self) -> dict[int, str]:
        """There are none."""
        return {}

    @property
    def fitted(self) -> Fitted:
        """Nothing: members of several runs are no one set of arrays.

        Raises:
            UserError: always.
        """
        raise UserError(f"{self.where} selects members of several runs; name one of these runs")

    def predictor(
        self,
        num_devices: int | None = None,
        temperature: float | None = None,
        abstention: metrics.Abstention | None = None,
    ) -> SelectedPredictor:
        """The members as a function; the arguments are `Predictor`'s.

        Raises:
            UserError: a network's name is not registered here, or it has other parameters.
        """
        parts = [one.predictor(num_devices) for one in self.parts]
        return SelectedPredictor(parts, self.weights, temperature, self.identity, abstention)


def restore_selection(work: Workdir) -> RestoredSelection:
    """Reads the runs that a selection refers to, and changes nothing there.

    Raises:
        UserError: one of them is not there any more, or has lost a member.
    """
    chosen = read_selection(work)
    parts = [_with_members(one) for one in chosen]
    weights = np.concatenate([np.asarray(one.weights, np.float64) for one in chosen])
    notes = work.read_report().get("notes", ())
    return RestoredSelection(parts, weights, work.identity(), work.path, notes)


def _with_members(chosen: Selected) -> Restored:
    """What is left of a run where only chosen members count."""
    if is_selection(chosen.work):
        raise UserError(f"{chosen.work.path} is a selection itself; name the runs that it selects")
    found = restore(chosen.work)
    if lost := sorted({*chosen.members} - {*found.members}):
        raise UserError(f"{chosen.work.path} has no live member {lost[0]} any more; select again")
    positions = [found.members.index(k) for k in chosen.members]
    fitted = found.fitted.of_members(positions)
    return found._replace(fitted=fitted, members=list(chosen.members))


def together(
    said: Sequence[MemberPredictions], weights: np.ndarray, likelihood: Likelihood
) -> MemberPredictions:
    """What members of several runs say of the same inputs.

    Args:
        said: by the members of each run.
        weights: [M] of all of them.
        likelihood: of all of them.
    """
    arrays = [one.arrays for one in said]
    names = set().union(*arrays)
    for i, one in enumerate(arrays):
        if one.keys() != names:  # Of others several estimators are pooled to one.
            single = {name: array[:, None] for name, array in one.items()}
            pooled, _ = likelihood.pooled(single, np.ones(1, int))
            arrays[i] = {name: array[:, 0].astype(np.float32) for name, array in pooled.items()}
    first = np.cumsum([0, *(one.num_members for one in said)])
    member_of = np.concatenate([one.members_of + k for one, k in zip(said, first, strict=False)])
    has_several = len(member_of) > first[-1]
    return MemberPredictions(_concatenated(arrays, np), member_of if has_several else None, weights)


def _concatenated(arrays: Sequence[Mapping[str, Any]], xp: Any) -> dict[str, Any]:
    """Arrays [E, N, ...] of several runs, those that all of them have."""
    names = [name for name in arrays[0] if all(name in one for one in arrays)]
    return {name: xp.concatenate([one[name] for one in arrays]) for name in names}
