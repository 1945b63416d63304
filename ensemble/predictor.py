"""A trained ensemble as a function: `ensemble.load(workdir)(inputs)` returns its predictions."""

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from ensemble import likelihoods, pytrees
from ensemble.config import predicts, trait
from ensemble.config.pieces import resolve, trusting
from ensemble.data.image_form import in_form, warn_of_scale
from ensemble.data.source import AnyInputs, Inputs, MadeInputs, Source, SplitInputs
from ensemble.draws.predictions import predict_in_passes
from ensemble.draws.store import Draws
from ensemble.errors import InputError, plural, shown, visible
from ensemble.fitted import Fitted, OnDisk
from ensemble.likelihoods.likelihood import Likelihood
from ensemble.likelihoods.predictive import Arrays, Predictive, namespace
from ensemble.metrics.abstention import MAX_ERROR, Abstention, Rule, are_wrong, fit_abstention
from ensemble.metrics.calibration import fit_scale
from ensemble.runtime.devices import Devices
from ensemble.runtime.predict import Predictions
from ensemble.runtime.status import FAILURES, Status
from ensemble.sharding import startup
from ensemble.storage.predictions import read_predictions
from ensemble.storage.selection import is_selection, read_selection
from ensemble.storage.trials import purpose_of
from ensemble.storage.workdir import Workdir, with_config
from ensemble.task import PredictingTask

logger = logging.getLogger("ensemble")

Part = tuple[PredictingTask, Fitted]
"""What members of one run have learned, and their parameters."""


class Ensemble:
    """Predicts with all members, which lie on devices; compiled once for each batch shape.

    Args:
        parts: Members of one run, or of several runs on the same data.
        members: Member numbers, [M]; positions if there are several parts.
        num_devices: Number of devices; None for all.
        weights: Weights [M] of the members, positive; None: equal weights.
        scale: Temperature of probabilities, or factor of the width of distributions of numbers,
            from calibration; None leaves predictions as they are.
        abstention: Decides which predictions are accepted; None accepts all.
        identity: Identity of the run.

    Attributes:
        members: As given.
        weights: As given.
        scale: As given.
        abstention: As given.
        identity: As given.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        members: Sequence[int],
        num_devices: int | None = None,
        *,
        weights: np.ndarray | None = None,
        scale: float | None = None,
        abstention: Abstention | None = None,
        identity: str = "unknown",
    ):
        self.members = tuple(members)
        self.weights = weights
        self.identity = identity
        self.scale = scale
        self.abstention = abstention
        self._parts = [*parts]
        # This process's: it may predict when others do not.
        devices = jax.local_devices()[:num_devices]
        self._predict = [_program(task, fitted, devices) for task, fitted in parts]

    def __repr__(self) -> str:
        return f"<Ensemble: {self.description}, trained on {shown(self.dataset.name)}>"

    @property
    def description(self) -> str:
        """What predicts, in words."""
        if len(self._parts) > 1:
            members = plural(len(self.members), "weighted member")
            return f"{members} of {len(self._parts)} runs"
        number = self.fitted.num_estimators
        member, one = self.fitted.nouns
        members = plural(len(self.members), member)
        return members if number == len(self.members) else f"{number} {one}s of {members}"

    @property
    def num_bytes(self) -> int:
        """Bytes of all parameters."""
        return sum(fitted.num_bytes for _, fitted in self._parts)

    @property
    def task(self) -> PredictingTask:
        """What the members have learned; of several runs the first one's."""
        return self._parts[0][0]

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
        return _only_one([fitted for _, fitted in self._parts])

    def without_examples(self) -> dict[str, Any]:
        """The arguments that build it again, on any devices: none of them holds training data."""
        return {
            "parts": [(task.without_examples(), fitted) for task, fitted in self._parts],
            "members": self.members,
            "weights": self.weights,
            "identity": self.identity,
        }

    def __call__(self, inputs: Any) -> Predictive:
        """Predicts inputs [N, ...] of any N > 0, as raw as the training data.

        Args:
            inputs: An array [N, ...]. Of a table a data frame, a mapping of columns or a list of
                rows, whose columns are found by name, or an array [N, C] of all columns in order.
                Images may be [N, C, H, W], and grey or RGB whatever the training images were.

        Returns:
            The predictions: `Classes`, `Numbers`, `Counts`, `Quantiles` or `Several`.

        Raises:
            InputError: The inputs are not finite numbers of the training data's shape, or a column
                is missing.
        """
        table = self.dataset.table
        return self.of_inputs(inputs if table is None else table.encode(inputs))

    def of_inputs(self, inputs: np.ndarray) -> Predictive:
        """Predicts inputs [N, ...] as the source reads them: features, if the data are a table.

        Raises:
            InputError: As a call.
        """
        seen = self._seen(inputs)
        return self._predictive([predict(seen) for predict in self._predict])

    def function(self, inputs: jax.Array) -> Arrays:
        """The columns of a call as a pure function of inputs [B, ...], for `jax.export`."""
        each = [fitted.all_estimators(task, inputs) for task, fitted in self._parts]
        return self._predictive(each).columns()

    def _predictive(self, arrays: Sequence[Arrays]) -> Predictive:
        """Predictions by the arrays of each part."""
        each = [
            self.likelihood.predictive(found, np.repeat(fitted.member_of, fitted.num_passes))
            for found, (_, fitted) in zip(arrays, self._parts, strict=True)
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
        found = []
        for predict, (_, fitted) in zip(self._predict, self._parts, strict=True):
            shape = fitted.num_members, fitted.num_estimators // fitted.num_members
            found.append(predict_in_passes(predict, seen, shape, self.likelihood))
        return together(found, self.weights, self.likelihood)

    def _seen(self, inputs: AnyInputs) -> Inputs:
        """Checked inputs as the network sees them, which are read in slices."""
        startup.check_not_forked()
        if isinstance(inputs, SplitInputs | MadeInputs):
            return inputs.through(self._checked)
        return self._checked(inputs)

    def _checked(self, inputs: np.ndarray) -> np.ndarray:
        dataset = self.dataset
        try:
            inputs = np.asarray(inputs)
        except ValueError:
            raise InputError("inputs are ragged: every example must have the same shape") from None
        shape = dataset.input_shape
        inputs = in_form(inputs, shape)
        if inputs.shape[1:] != shape or not len(inputs):
            raise InputError(
                f"inputs of shape {inputs.shape}: the ensemble takes [N, "
                f"{', '.join(map(str, shape))}] with N > 0"
            )
        if inputs.dtype.kind not in "buif":
            raise InputError(f"inputs of dtype {inputs.dtype}: the ensemble takes numbers")
        for task, fitted in self._parts:
            task.check_inputs(inputs, fitted.sets["params"])
        # JAX takes the machine's byte order only, and would wrap whole numbers around at 2**31.
        if inputs.dtype.kind == "f" or dataset.input_dtype == np.float32:
            with np.errstate(over="ignore"):
                inputs = inputs.astype(np.float32, copy=False)
        inputs = inputs.astype(inputs.dtype.newbyteorder("="), copy=False)
        if inputs.dtype.kind == "f":
            if not np.isfinite(inputs).all():
                raise InputError("inputs hold NaN or infinities: the ensemble takes finite numbers")
            if dataset.input_dtype == np.uint8 and 0 < inputs.max() <= 1:
                warn_of_scale(1 / float(np.min(dataset.scale)))
        return inputs


def _program(task: PredictingTask, fitted: Fitted, devices: Sequence[Any]) -> Callable[..., Any]:
    """From inputs [N, ...] to arrays [S, N, ...] of all parameter samples of a part."""
    placed_on = Devices(fitted.num_sets, devices, splits_members=fitted.is_split)
    predict = Predictions(task, placed_on, fitted.predict, fitted.num_passes)
    sets = jax.tree.map(lambda leaf: leaf[:, None], fitted.sets)
    placed = functools.cache(lambda: placed_on.put_members(sets))
    return lambda inputs: predict(placed(), inputs)


def together(
    each: Sequence[Predictive], weights: np.ndarray | None, likelihood: Likelihood
) -> Predictive:
    """Predictions of the same inputs by the members of several runs.

    Args:
        each: Predictions of each run.
        weights: Weights [M] of all members; None: equal weights.
        likelihood: Likelihood of all runs.
    """
    arrays = [dict(one.arrays) for one in each]
    names = set[str]().union(*arrays)
    for one in arrays:
        if one.keys() != names:  # In other runs several samples of a member are pooled to one.
            single = pytrees.at(one, np.s_[:, None])
            pooled, _ = likelihood.pooled(single, np.ones(1, int))
            one.update({name: pooled[name][:, 0].astype(np.float32) for name in names})
    xp, _ = namespace(*arrays[0].values())
    if len(arrays) > 1:
        arrays = [{name: xp.concatenate([one[name] for one in arrays]) for name in names}]
    first = np.cumsum([0, *(one.num_members for one in each)])
    member_of = np.concatenate([one.members_of + k for one, k in zip(each, first, strict=False)])
    if weights is not None:
        weights = weights / weights.sum()
    has_several = len(member_of) > first[-1]
    return likelihood.predictive(arrays[0], member_of if has_several else None, weights)


class Restored(NamedTuple):
    """Contents of the newest checkpoint of a workdir; a selection has those of several runs.

    Attributes:
        runs: Configuration, description of the data and live members of each run.
        members: Numbers [M] of the live members; positions if there are several runs.
        path: The workdir.
        identity: Identity of the run.
        step: Steps taken by members still in training.
        failed_members: Numbers of the members that failed, and why.
        notes: Notes of the results, if the run has finished.
        weights: Weights [M] of the members; None: equal weights.
    """

    runs: Sequence[tuple[dict[str, Any], dict[str, Any], Fitted]]
    members: list[int]
    path: Any
    identity: str = "unknown"
    step: int = 0
    failed_members: Mapping[int, str] = MappingProxyType({})
    notes: Sequence[str] = ()
    weights: np.ndarray | None = None

    @property
    def config(self) -> dict[str, Any]:
        """Configuration of the run; of several runs the first one's."""
        return self.runs[0][0]

    @property
    def description(self) -> dict[str, Any]:
        """Description of its data, by `Task.describe`."""
        return self.runs[0][1]

    @property
    def likelihood(self) -> Likelihood:
        """Likelihood of the run."""
        return likelihoods.from_dict(self.config["likelihood"], self.description)

    @property
    def fitted(self) -> Fitted:
        """The live members' parameters.

        Raises:
            InputError: The members are of several runs.
        """
        return _only_one([fitted for *_, fitted in self.runs], f"{self.path}: ")

    def predictor(self, num_devices: int | None = None, **calibration: Any) -> Ensemble:
        """The live members as a function; arguments as of `Ensemble`.

        Raises:
            InputError: A network cannot be loaded, or has other parameters.
        """
        parts = []
        for config, description, fitted in self.runs:
            make = resolve(trait("task", config["task"], "restore"))
            parts.append((make(config, description, fitted.sets["params"]), fitted))
        calibration |= {"weights": self.weights, "identity": self.identity}
        return Ensemble(parts, self.members, num_devices, **calibration)


def _only_one(every: Sequence[Fitted], where: str = "") -> Fitted:
    if len(every) > 1:
        raise InputError(f"{where}members of several runs were selected; name one of these runs")
    return every[0]


def load(
    workdir: str | os.PathLike[str],
    num_devices: int | None = None,
    calibrated: bool = False,
    max_error: float | None = None,
    tolerance: float | None = None,
    coverage: float | None = None,
    draws: int | None = None,
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
        draws: Largest number of draws of each chain that predict; None: those of the configuration.
        trust: If True, code that the workdir names by a path is imported and run.
        model: Network of the run, if it is your own: a class or factory, as in training.

    Raises:
        InputError: There is no run, checkpoint or live member, or the calibration split is missing
            or does not prove the error rate, or `draws` is not positive, or the run has no draws.
    """
    startup.configure(num_devices)
    rule = Rule.of(max_error, coverage, tolerance)
    work = Workdir(workdir)
    with trusting(trust, model=model):
        restored = restore(work, draws)
        for line in restored.notes:
            logger.warning("%s: %s", work.path, visible(line))
        fields = _calibration(work, restored, calibrated, rule) if calibrated or rule else {}
        return restored.predictor(num_devices, **fields)


def _calibration(
    work: Workdir, restored: Restored, has_scale: bool, rule: Rule | None
) -> dict[str, Any]:
    """Fits `scale`, and `abstention` by a rule, on the calibration split of a finished run."""
    path = work.predictions / "calibration.npz"
    if not work.read_report():
        raise InputError(f"{work.path} has not finished: it can be calibrated when it has")
    if not path.exists():
        raise InputError(f"{work.path} has no calibration split to fit on")
    p, y, _ = read_predictions(work, "calibration", restored.likelihood)
    found: dict[str, Any] = {}
    if has_scale:
        if not p.can_scale:
            raise InputError(f"{path} gives no temperature: predictions of {p.kind} have no scale")
        found["scale"] = fit_scale(p, y)
        if found["scale"] is None:
            logger.warning(
                "%s determines no temperature or scale: predictions stay as they are.", path
            )
    if rule is not None:
        kind, _, column = restored.config.get("split_by", "").partition(":")
        if kind == "group" and rule.name == MAX_ERROR:
            logger.warning(
                "%s guarantees no error rate: rows come in groups (%s), and count as independent.",
                *(rule, column),
            )
        try:
            found["abstention"] = fit_abstention(rule, p.doubt(), are_wrong(p, y, rule.tolerance))
        except ValueError as error:
            raise InputError(f"{path} cannot abstain by {rule}: {error}") from None
    return found


def restore(work: Workdir, draws: int | None = None) -> Restored:
    """Reads the newest checkpoint of a workdir, or those of a selection; changes nothing there.

    Args:
        work: Directory of the run.
        draws: As of `load`.

    Raises:
        InputError: There is no run, checkpoint or live member, or not such draws.
    """
    # Brings Orbax, which takes half a second: an ensemble in memory has no checkpoints.
    from ensemble.storage.checkpoint import Checkpointer

    check_is_workdir(work)
    if is_selection(work):
        if draws is not None:
            raise InputError(f"draws={draws} is for posteriors, and {work.path} is a selection")
        return _restored_selection(work)
    with contextlib.closing(Checkpointer(work.checkpoints)) as checkpointer:
        saved = checkpointer.read_latest()
    if saved is None:
        raise InputError(f"{work.path} has no checkpoint yet; wait for the first")
    with work.checkpoint_errors():
        meta = with_config(saved[1])
        return _restored(work, saved[0], meta, draws)


def _restored(
    work: Workdir, arrays: dict[str, Any], meta: dict[str, Any], num_draws: int | None
) -> Restored:
    """Contents of a checkpoint; raises anything if it was forged."""
    if not predicts(meta["config"]):
        raise InputError(f"{work.path} has sampled a density, which predicts nothing")
    counters = meta["counters"]
    results = work.read_report()
    failed = results.get("failed_members", {})
    status = dict(enumerate(arrays["status"][: counters["num_members"]]))
    live = [k for k, one in status.items() if one not in FAILURES and str(k) not in failed]
    if not live:
        raise InputError(f"{work.path} has no live member; train again with another configuration")
    # A checkpoint's configuration may be older than the run's results.
    config = _with_draws(work.read_config() or meta["config"], num_draws, work.path)
    saved = OnDisk(config, arrays, counters, live, Draws(work.draws))
    fitted = resolve(trait("method", meta["config"]["method"], "result"))(saved)
    return Restored(
        runs=[(meta["config"], meta["dataset"], fitted)],
        members=live,
        path=work.path,
        identity=work.identity(),
        step=counters["step"],
        failed_members={
            k: FAILURES.get(Status(one), "non-finite") for k, one in status.items() if k not in live
        },
        notes=results.get("notes", ()),
    )


def _restored_selection(work: Workdir) -> Restored:
    """The chosen members of each run that a selection refers to."""
    runs = []
    weights = list[float]()
    for chosen in read_selection(work):
        found = restore(chosen.work)
        if lost := sorted({*chosen.members} - {*found.members}):
            raise InputError(
                f"{chosen.work.path} has no live member {lost[0]} any more; select again"
            )
        places = [found.members.index(k) for k in chosen.members]
        runs.append((found.config, found.description, found.fitted.of_members(places)))
        weights += chosen.weights
    return Restored(
        runs=runs,
        members=list(range(len(weights))),
        path=work.path,
        identity=work.identity(),
        notes=work.read_report().get("notes", ()),
        weights=np.array(weights, np.float64),
    )


def _with_draws(config: dict[str, Any], wanted: int | None, where: Any) -> dict[str, Any]:
    """A configuration, by which at most the wanted number of draws of each chain predict."""
    if wanted is None:
        return config
    if "max_draws_per_chain" not in config:
        raise InputError(
            f"draws={wanted} is for posteriors, and {where} has members of "
            f"config.method={config['method']!r}, which keep no draws: leave it out"
        )
    if type(wanted) is not int or wanted < 1:
        raise InputError(f"draws={wanted!r} must be a whole number from 1")
    return {**config, "max_draws_per_chain": min(wanted, config["max_draws_per_chain"])}


def check_is_workdir(work: Workdir) -> None:
    """Refuses a directory that no run has written.

    Raises:
        InputError: it has no config.json, or one of another format.
    """
    if work.read_config() is None:
        if purpose := purpose_of(work):
            raise InputError(
                f"{work.path} holds a {purpose}, with nothing chosen yet. Name one of its runs in "
                f"{work.path}/runs, or resume it"
            )
        raise InputError(f"{work.path} is not a workdir: it has no config.json")
