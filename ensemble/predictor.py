"""A trained ensemble as a function: `ensemble.load(workdir)(inputs)` returns its predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
from etils.epath import PathLike
from numpy.typing import NDArray

from ensemble import pytrees
from ensemble.config.pieces import trusting
from ensemble.data.image_form import in_form, warn_of_scale
from ensemble.data.source import AnyInputs, Inputs, MadeInputs, Sliced, Source, Stored
from ensemble.errors import InputError, logger, plural, shown, visible
from ensemble.fitted import Fitted
from ensemble.likelihoods.likelihood import Likelihood
from ensemble.likelihoods.predictive import Arrays, Predictive, namespace
from ensemble.metrics.abstention import Abstention, Rule, are_wrong, fit_abstention
from ensemble.metrics.calibration import fit_scale
from ensemble.pytrees import ByName
from ensemble.runtime.devices import Devices
from ensemble.runtime.loading import restore
from ensemble.runtime.predict import Predictions
from ensemble.sharding import startup
from ensemble.storage.predictions import read_predictions
from ensemble.storage.workdir import Workdir

Part = tuple[Any, Fitted]
"""What members of one run have learned, and their parameters."""


@dataclass(eq=False, repr=False)
class Ensemble:
    """Predicts with all members, which lie on devices; compiled once for each batch shape.

    It can be pickled if its networks can.

    Attributes:
        parts: Members of one run, or of several runs on the same data.
        members: Member numbers, [M]; positions if there are several parts.
        num_devices: Number of devices; None for all.
        weights: Weights [M] of the members, positive, of sum 1; None: equal weights.
        scale: Temperature of probabilities, or factor of the width of distributions of numbers,
            from calibration; None leaves predictions as they are.
        abstention: Decides which predictions are accepted; None accepts all.
        identity: Identity of the run.
    """

    parts: Sequence[Part]
    members: Sequence[int]
    num_devices: int | None = None
    weights: NDArray | None = None
    scale: float | None = None
    abstention: Abstention | None = None
    identity: str = "unknown"

    def __repr__(self) -> str:
        return f"<Ensemble: {self.description}, trained on {shown(self.dataset.name)}>"

    def __getstate__(self) -> ByName:
        return pytrees.without(vars(self), "_programs")  # They belong to their process.

    @cached_property
    def _programs(self) -> list[tuple[Predictions, Any]]:
        """Program of each part, and its sets on the devices."""
        # This process's devices: it may predict when others do not.
        devices = jax.local_devices()[: self.num_devices]
        found = []
        for task, fitted in self.parts:
            placed = Devices(fitted.num_sets, devices, splits_members=fitted.is_split)
            sets = placed.put_members(pytrees.at(fitted.sets, np.s_[:, None]))
            found.append((Predictions(task, placed, fitted.predict, fitted.num_passes), sets))
        return found

    @property
    def description(self) -> str:
        """What predicts, in words."""
        return plural(len(self.members), "member")

    @property
    def task(self) -> Any:
        """What the members have learned; of several runs the first one's."""
        return self.parts[0][0]

    @property
    def dataset(self) -> Source:
        """Description of the inputs."""
        return self.task.dataset

    @property
    def likelihood(self) -> Likelihood:
        """Distribution of the targets."""
        return self.task.likelihood

    @property
    def fitted(self) -> Fitted:
        """The members' parameters.

        Raises:
            InputError: The members are of several runs, and so no one set of arrays.
        """
        if len(self.parts) > 1:
            raise InputError("members of several runs were selected; name one of these runs")
        return self.parts[0][1]

    def without_examples(self) -> Ensemble:
        """The same ensemble without training data."""
        parts = [(task.without_examples(), fitted) for task, fitted in self.parts]
        return replace(self, parts=parts)

    def __call__(self, inputs: Any) -> Predictive:
        """Predicts inputs [N, ...] of any N > 0, as raw as the training data.

        Args:
            inputs: An array [N, ...]. Of a table a data frame, a mapping of columns or a list of
                rows, whose columns are found by name.
                Images may be [N, C, H, W], and grey or RGB whatever the training images were.

        Returns:
            The predictions: `Classes`, `Numbers`, `Counts`, `Quantiles` or `Several`.

        Raises:
            InputError: The inputs are not finite numbers of the training data's shape, or a column
                is missing.
        """
        table = self.dataset.table
        return self.of_inputs(inputs if table is None else table.encode(inputs))

    def of_inputs(self, inputs: NDArray) -> Predictive:
        """Predicts inputs [N, ...] as the source reads them: features, if the data are a table.

        Raises:
            InputError: As a call.
        """
        seen = self._seen(inputs)
        return self._predictive([predict(sets, seen) for predict, sets in self._programs])

    def function(self, inputs: jax.Array) -> Arrays:
        """The columns of a call as a pure function of inputs [B, ...], for `jax.export`."""
        each = [fitted.all_estimators(task, inputs) for task, fitted in self.parts]
        return self._predictive(each).columns()

    def _predictive(self, arrays: Sequence[Arrays]) -> Predictive:
        """Predictions by the arrays of each part."""
        each = [
            self.likelihood.predictive(found, fitted.estimators_of)
            for found, (_, fitted) in zip(arrays, self.parts, strict=True)
        ]
        found = together(each, self.weights, self.likelihood)
        if self.abstention is not None:
            found = found.abstaining(self.abstention.threshold)
        return found if self.scale is None else found.scaled(self.scale)

    def predict_members(self, inputs: AnyInputs) -> Predictive:
        """Predicts inputs [N, ...] without calibration; a member of classes has one sample.

        Raises:
            InputError: As a call.
        """
        seen = self._seen(inputs)
        each = [
            predict.pooled(sets, seen, fitted.num_members)
            for (predict, sets), (_, fitted) in zip(self._programs, self.parts, strict=True)
        ]
        return together(each, self.weights, self.likelihood)

    def _seen(self, inputs: AnyInputs) -> Inputs:
        """Checked inputs as the network sees them, which are read in slices."""
        startup.check_not_forked()
        if isinstance(inputs, Stored | MadeInputs):
            return Sliced(len(inputs), lambda where: self._checked(inputs[where]))
        return self._checked(inputs)

    def _checked(self, given: NDArray) -> NDArray:
        dataset = self.dataset
        shape = dataset.input_shape
        try:
            inputs = np.asarray(given)
        except ValueError:
            raise InputError("inputs are ragged: every example must have the same shape") from None
        inputs = in_form(inputs, shape)
        if inputs.shape[1:] != shape or not len(inputs) or inputs.dtype.kind not in "buif":
            raise InputError(
                f"inputs of shape {inputs.shape} and of dtype {inputs.dtype}: the ensemble takes "
                f"numbers [N, {', '.join(map(str, shape))}] with N > 0"
            )
        for task, fitted in self.parts:
            task.check_inputs(inputs, fitted.sets["params"])
        if inputs.dtype.kind != "f" and dataset.input_dtype != np.float32:
            # JAX takes the machine's byte order only.
            return inputs.astype(inputs.dtype.newbyteorder("="), copy=False)
        with np.errstate(over="ignore"):
            # JAX would wrap whole numbers around at 2**31.
            inputs = inputs.astype(np.float32, copy=False)
        if not np.isfinite(inputs).all():
            raise InputError("inputs hold NaN or infinities: the ensemble takes finite numbers")
        if dataset.input_dtype == np.uint8 and 0 < inputs.max() <= 1:
            warn_of_scale(1 / float(np.min(dataset.scale)))
        return inputs


def together(
    each: Sequence[Predictive], weights: NDArray | None, likelihood: Likelihood
) -> Predictive:
    """Predictions of the same inputs by the members of several runs.

    Args:
        each: Predictions of each run.
        weights: Weights [M] of all members, of sum 1; None: equal weights.
        likelihood: Likelihood of all runs.
    """
    if len(each) == 1:
        return replace(each[0], weights=weights)
    names = set[str]().union(*(one.arrays for one in each))
    parts: list[Arrays] = []
    member_of: list[NDArray] = []
    for one in each:
        own = one.arrays
        if own.keys() != names:  # In other runs several samples of a member are pooled to one.
            pooled, _ = likelihood.pooled(pytrees.at(own, np.s_[:, None]), np.ones(1, int))
            own = own | {name: pooled[name][:, 0].astype(np.float32) for name in names}
        first = member_of[-1][-1] + 1 if parts else 0
        parts.append(own)
        member_of.append(one.members_of + first)
    xp, _ = namespace(*parts[0].values())
    joined = {name: xp.concatenate([own[name] for own in parts]) for name in names}
    return likelihood.predictive(joined, np.concatenate(member_of), weights)


def load(
    workdir: PathLike,
    num_devices: int | None = None,
    calibrated: bool = False,
    max_error: float | None = None,
    tolerance: float | None = None,
    coverage: float | None = None,
    trust: bool = False,
    model: Any = None,
) -> Ensemble:
    """Loads the ensemble of a workdir's newest checkpoint; the workdir is not changed.

    Args:
        workdir: Directory of a run, finished or not.
        num_devices: Number of devices to predict on; None for all.
        calibrated: Whether to fit a temperature, or of numbers a factor of the width, on the
            calibration split of a finished run. Without effect, with a warning, if that split
            determines none.
        max_error: Abstain so that at most this share of the accepted predictions is wrong, with 95%
            confidence, in 0..1. It is fitted on the calibration split.
        tolerance: Largest error of a number that is not wrong, in the target's units; None: half a
            standard deviation of the targets.
        coverage: Abstain on all but this share of predictions, in 0..1.
        trust: If True, code that the workdir names by a path is imported and run.
        model: Network of the run, if it is your own: a class or factory, as in training.

    Raises:
        InputError: There is no run, checkpoint or live member, or the calibration split is missing
            or does not prove the error rate.
    """
    startup.configure(num_devices)
    shares = {"max_error": max_error, "coverage": coverage}
    text = " and ".join(f"{name}={one}" for name, one in shares.items() if one is not None)
    text += "" if tolerance is None else f"@{tolerance}"
    rule = Rule.parse(text) if text else None
    work = Workdir(workdir)
    with trusting(trust, model=model):
        found = ensemble_of(work, num_devices)
        results = work.read_report()
        for line in results.get("notes", ()):
            logger.warning("%s: %s", work.path, visible(line))
    if calibrated or rule:
        path = work.predictions / "calibration.npz"
        if not results or not path.exists():
            raise InputError(
                f"{work.path} has no calibration split to fit on: its run has none, or has not "
                "finished"
            )
        p, y, _ = read_predictions(work, "calibration", found.likelihood)
        if calibrated:
            found.scale = fit_scale(p, y) if p.can_scale else None
            if found.scale is None:
                logger.warning(
                    "%s determines no temperature or scale: predictions stay as they are.", path
                )
        if rule is not None:
            try:
                found.abstention = fit_abstention(rule, p.doubt(), are_wrong(p, y, rule.tolerance))
            except ValueError as error:
                raise InputError(f"{path} cannot abstain by {rule}: {error}") from None
    return found


def ensemble_of(work: Workdir, num_devices: int | None = None) -> Ensemble:
    """The live members of a run, or those that a selection refers to.

    Args:
        work: Directory of the run or selection.
        num_devices: As of `load`.

    Raises:
        InputError: As of `load`.
    """
    parts = []
    weights: list[float] = []
    for there, members, own in work.selected():
        saved = restore(there)
        fitted = saved.fitted.of_members([saved.live.index(k) for k in members])
        parts.append((saved.task, fitted))
        weights += own
    if parts:
        numbers: Sequence[int] = range(len(weights))
    else:
        saved = restore(work)
        numbers = tuple(saved.live)
        parts = [(saved.task, saved.fitted)]
    shares = np.array(weights) if weights else None
    return Ensemble(parts, numbers, num_devices, shares, identity=work.identity())
