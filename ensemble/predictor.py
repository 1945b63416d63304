"""An ensemble as a function, for other programs."""

import contextlib
import dataclasses
import functools
import logging
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ensemble import likelihoods, metrics, registry
from ensemble.batched_prediction import Keep, in_memory, make_predict
from ensemble.draws.predictions import predict_in_passes
from ensemble.draws.store import Draws
from ensemble.errors import UserError, shown, visible
from ensemble.fitted import Fitted, OnDisk
from ensemble.likelihood import Likelihood
from ensemble.method import FAILURES, Status
from ensemble.pictures.plot_style import plural
from ensemble.sharding import startup
from ensemble.sharding.placement import Placement
from ensemble.source import AnyInputs, Inputs, MadeInputs, Source, SplitInputs
from ensemble.sources.image_form import in_form, warn_of_scale
from ensemble.storage import old
from ensemble.storage.identity import UNKNOWN
from ensemble.storage.predictions import MemberPredictions
from ensemble.storage.schema import checked_meta
from ensemble.storage.search import is_search
from ensemble.storage.selection import is_selection
from ensemble.storage.workdir import Workdir
from ensemble.task import PredictingTask

logger = logging.getLogger("ensemble")


class Predictor:
    """Predicts with all members, which then lie on devices; compiled once for each batch shape.

    Args:
        task: what the members have learned.
        fitted: the live members.
        members: [M], their numbers.
        num_devices: to use; None for all.
        temperature: that calibrates `ClassPrediction.probs`; None leaves them as they are.
        identity: of the run whose ensemble it is.
        abstention: what `ClassPrediction.accepted` goes by; None accepts everything.

    Attributes:
        task: as given.
        fitted: as given.
        members: as given.
        temperature: as given.
        identity: as given.
        abstention: as given.
    """

    def __init__(
        self,
        task: PredictingTask,
        fitted: Fitted,
        members: Sequence[int],
        num_devices: int | None = None,
        temperature: float | None = None,
        identity: str = UNKNOWN,
        abstention: metrics.Abstention | None = None,
    ):
        self.task = task
        self.identity = identity
        self.abstention = abstention
        self.fitted = fitted
        self.members = tuple(members)
        self.temperature = temperature
        # This process's: it may predict when others do not.
        devices = jax.local_devices()[:num_devices]
        # A member is split again, over as many as divide these.
        member_devices = math.gcd(fitted.member_devices, len(devices))
        placement = Placement.create(fitted.num_sets, devices, member_devices=member_devices)
        self._predict = make_predict(fitted.of_set(task), placement, fitted.num_passes)
        self._placed_sets = functools.cache(lambda: placement.place_members(fitted.sets))

    def __repr__(self) -> str:
        return f"<Predictor: {self.description}, trained on {shown(self.dataset.name)}>"

    @property
    def description(self) -> str:
        """What predicts, in words."""
        number, (member, one) = self.fitted.num_estimators, self.fitted.nouns
        members = plural(len(self.members), member)
        return members if number == len(self.members) else f"{number} {one}s of {members}"

    @property
    def num_bytes(self) -> int:
        """The bytes of all sets of variables."""
        return self.fitted.num_bytes

    @property
    def estimator_weights(self) -> Any:
        """[E] of the estimators, of sum 1; None: all the same."""
        return None

    @property
    def dataset(self) -> Source:
        """What the inputs are like."""
        return self.task.dataset.raw

    @property
    def likelihood(self) -> Likelihood:
        """What the predictions are of."""
        return self.task.likelihood

    @property
    def _threshold(self) -> float:
        return self.abstention.threshold if self.abstention else metrics.ACCEPT_ALL

    def function(self, inputs: jax.Array) -> dict[str, jax.Array]:
        """The same as a call, pure and without a look at the inputs [B, ...], for `jax.export`."""
        seen = self.task.dataset.of_raw_traced(inputs)
        predicted = self.fitted.all_estimators(self.task, seen)
        return self.task.likelihood.exported(predicted, self.temperature, self._threshold)

    def without_examples(self) -> dict[str, Any]:
        """The arguments that build it again, on any devices: none of them holds training data."""
        return {
            "task": self.task.without_examples(),
            "fitted": self.fitted,
            "members": self.members,
            "identity": self.identity,
        }

    def __call__(self, inputs: np.ndarray) -> Any:
        """Predicts inputs [N, ...] of any N > 0, as raw as the training data were.

        An ensemble of a table takes data frames, mappings of columns, and rows, lists of mappings:
        their columns are found by name. An array [N, C] has all columns in their order.

        Images [N, C, H, W] are turned, grey ones become RGB and RGB ones grey where the training
        data were so. A data frame's columns are taken by name if the training data were one.

        Returns:
            Of classes a `ensemble.likelihoods.classes.ClassPrediction`; else what the
            likelihood's `prediction` says.

        Raises:
            UserError: the inputs are no finite numbers of the training data's shape, or none, or a
                column is missing.
        """
        return self.of_inputs(self._encoded(inputs))

    def of_inputs(self, inputs: np.ndarray) -> Any:
        """Does what a call does, for inputs [N, ...] as the source reads them: of a table its
        features.

        Raises:
            UserError: as a call.
        """
        arrays = self.member_arrays(inputs)
        weights = self.estimator_weights
        return self.task.likelihood.prediction(arrays, self.temperature, self._threshold, weights)

    def member_arrays(self, inputs: AnyInputs, keep: Keep = in_memory) -> dict[str, np.ndarray]:
        """Returns what every estimator predicts: named arrays [E, N, ...].

        Arrays are as of `of_inputs`.

        Raises:
            UserError: as a call.
        """
        return self._predict(self._placed_sets(), self._seen(inputs), keep)

    def _seen(self, inputs: AnyInputs) -> Inputs:
        """Checked inputs as the network sees them, which are read in slices."""
        checked: Inputs
        if isinstance(inputs, SplitInputs):
            checked = _CheckedSplit(inputs.source, inputs.split, self._checked)
        elif isinstance(inputs, MadeInputs):
            checked = inputs.through(self._checked)
        else:
            raw = inputs if isinstance(inputs, np.ndarray) else self._encoded(inputs)
            checked = self._checked(raw)
        return self.task.dataset.of_raw(checked)

    def predict_members(self, inputs: AnyInputs, keep: Keep = in_memory) -> MemberPredictions:
        """Predicts with each member by all its estimators, such as the draws of a chain.

        Args:
            inputs: [N, ...].
            keep: where predictions [E, N, ...] are to be.

        Raises:
            UserError: as a call.
        """
        fitted, num_members = self.fitted, len(self.members)
        if fitted.num_estimators == num_members:
            return MemberPredictions(self.member_arrays(inputs, keep))
        return predict_in_passes(
            functools.partial(self._predict, self._placed_sets()),
            self._seen(inputs),
            (num_members, fitted.num_estimators // num_members),
            self.task.likelihood.pooled,
            keep,
        )

    def _encoded(self, inputs: Any) -> Any:
        """Inputs as the source reads them, of those that a user has."""
        return inputs if self.dataset.table is None else self.dataset.table.encode(inputs)

    def _checked(self, inputs: np.ndarray) -> np.ndarray:
        dataset = self.dataset
        try:
            inputs = np.asarray(inputs)
        except ValueError:
            raise UserError("inputs are ragged: every example must have the same shape") from None
        shape = dataset.input_shape
        inputs = in_form(inputs, shape)
        if inputs.shape[1:] != shape or not len(inputs):
            raise UserError(
                f"inputs of shape {inputs.shape}: the ensemble takes [N, "
                f"{', '.join(map(str, shape))}] with N > 0"
            )
        if inputs.dtype.kind not in "buif":
            raise UserError(f"inputs of dtype {inputs.dtype}: the ensemble takes numbers")
        self.task.check_inputs(inputs, self.fitted.sets["params"])
        # JAX takes the machine's byte order only, and would wrap whole numbers around at 2**31.
        if inputs.dtype.kind == "f" or dataset.input_dtype == np.float32:
            with np.errstate(over="ignore"):
                inputs = inputs.astype(np.float32, copy=False)
        inputs = inputs.astype(inputs.dtype.newbyteorder("="), copy=False)
        if inputs.dtype.kind == "f":
            if not np.isfinite(inputs).all():
                raise UserError("inputs hold NaN or infinities: the ensemble takes finite numbers")
            if dataset.input_dtype == np.uint8 and 0 < inputs.max() <= 1:
                warn_of_scale(1 / float(np.min(dataset.scale)))
        return inputs


@dataclasses.dataclass(frozen=True)
class _CheckedSplit(SplitInputs):
    """Inputs of a split, each slice of which is checked when it is read."""

    check: Callable[[np.ndarray], np.ndarray]

    def __getitem__(self, where: slice, /) -> np.ndarray:
        return self.check(super().__getitem__(where))


class Restored(NamedTuple):
    """What a workdir's newest checkpoint says.

    Attributes:
        config: of the run, a nested dict.
        likelihood: of the run.
        description: of the data that the run learned, by `Task.describe`.
        step: that the members in training had taken.
        fitted: the live members.
        members: [M], their numbers.
        failed_members: numbers of those that are not live, and why.
        identity: of the run.
        notes: of the report, where the run has finished.
    """

    config: dict[str, Any]
    likelihood: Likelihood
    description: dict[str, Any]
    step: int
    fitted: Fitted
    members: list[int]
    failed_members: dict[int, str]
    identity: str = UNKNOWN
    notes: Sequence[str] = ()

    def predictor(
        self,
        num_devices: int | None = None,
        temperature: float | None = None,
        abstention: metrics.Abstention | None = None,
    ) -> Predictor:
        """The live members as a function; the arguments are `Predictor`'s.

        Raises:
            UserError: the network's name is not registered here, or it has other parameters.
        """
        name = registry.task_of(self.config)
        params = self.fitted.sets["params"]
        make = registry.load_code(registry.TASKS, name, registry.TASKS[name].restore)
        task = make(self.config, self.description, params)
        return Predictor(
            task, self.fitted, self.members, num_devices, temperature, self.identity, abstention
        )


def load(
    workdir: str | os.PathLike[str],
    num_devices: int | None = None,
    calibrated: bool = False,
    abstain: str | None = None,
    draws: int | None = None,
) -> Predictor:
    """Loads the ensemble of a workdir's newest checkpoint; the workdir is not changed.

    Args:
        workdir: of a run, finished or not.
        num_devices: to predict on; None for all.
        calibrated: whether to fit a temperature on the finished run's calibration split. It stays
            1, with a warning, where that split determines none.
        abstain: fits there what `ClassPrediction.accepted` goes by: `max_error=0.02`, at most
            this error among accepted examples with 95% confidence, or `coverage=0.9`, the share to
            accept; None accepts everything.
        draws: of a posterior, how many of each chain predict at most, if these are fewer than
            its configuration says in `num_predictive_draws`; None: as many as it was scored with.

    Raises:
        UserError: it is no workdir, or has no checkpoint, or no live member, or cannot be
            calibrated, or its calibration split does not prove the target error rate, or `draws` is
            not a positive number, or of a run that has no draws.
    """
    startup.configure(num_devices)
    rule = None if abstain is None else metrics.Rule.parse(abstain)
    work = Workdir(workdir)
    restored = restore(work, draws)
    for line in restored.notes:
        logger.warning("%s: %s", work.path, visible(line))
    temperature = abstention = None
    if calibrated or rule:
        from ensemble.calibrated import Calibration  # Seldom asked for.

        fit = Calibration(work, restored.config, restored.likelihood, restored.description)
        temperature = fit.temperature() if calibrated else None
        abstention = fit.abstention(rule) if rule else None
    return restored.predictor(num_devices, temperature, abstention)


def restore(work: Workdir, draws: int | None = None) -> Restored:
    """Reads the newest checkpoint of a workdir, or those of a selection; changes nothing there.

    Args:
        work: of the run.
        draws: as of `load`.

    Raises:
        UserError: it is no workdir, or has no checkpoint, or no live member, or not such draws.
    """
    # Brings Orbax, which takes half a second: an ensemble in memory has no checkpoints.
    from ensemble.storage.checkpoint import Checkpointer

    check_is_workdir(work)
    work.check_packages()
    if is_selection(work):
        if draws is not None:
            raise UserError(f"draws={draws} is for posteriors, and {work.path} is a selection")
        found: Restored = registry.load(registry.RESTORE_SELECTION)(work)  # Of such as these.
        return found
    with contextlib.closing(Checkpointer(work.checkpoints)) as checkpointer:
        saved = checkpointer.restore_latest(read_only=True)
    if saved is None:
        raise UserError(f"{work.path} has no checkpoint yet; wait for the first")
    with work.checkpoint_errors():
        meta = checked_meta(saved[1])
        work.check_belongs(work.checkpoints, meta["identity"])
        return _restored(work, saved[0], meta, draws)


def _restored(
    work: Workdir, arrays: dict[str, Any], meta: dict[str, Any], num_draws: int | None
) -> Restored:
    """What a checkpoint says; raises anything where it was forged."""
    name = meta["config"]["method"]
    if not registry.predicts(meta["config"]):
        raise UserError(f"{work.path} has sampled a density, which predicts nothing")
    arrays, counters = old.checkpoint(arrays, meta["counters"], work.path)
    num_members = counters["num_members"]
    report = work.read_report()
    failed = report.get("failed_members", {})
    live = [
        k
        for k, status in enumerate(arrays["status"][:num_members])
        if status not in FAILURES and str(k) not in failed
    ]
    if not live:
        raise UserError(f"{work.path} has no live member; train again with another configuration")
    # A checkpoint's configuration may be older than the run's report.
    config = _with_draws(work.read_config() or meta["config"], num_draws, work.path)
    saved = OnDisk(config, arrays, counters, live, Draws(work.draws, work.identity()))
    read = registry.load_code(registry.METHODS, name, registry.METHODS[name].fitted)
    fitted: Fitted = read(saved)
    return Restored(
        config=meta["config"],
        likelihood=likelihoods.described(meta["config"]["likelihood"], meta["dataset"]),
        description=meta["dataset"],
        step=counters["step"],
        fitted=fitted,
        members=live,
        failed_members={
            k: FAILURES.get(Status(arrays["status"][k]), "non-finite")
            for k in range(num_members)
            if k not in live
        },
        identity=work.identity(),
        notes=report.get("notes", ()),
    )


def _with_draws(config: dict[str, Any], wanted: int | None, where: Any) -> dict[str, Any]:
    """A configuration, by which at most the wanted number of draws of each chain predict."""
    if wanted is None:
        return config
    if "num_predictive_draws" not in config:
        raise UserError(
            f"draws={wanted} is for posteriors, and {where} has members of "
            f"config.method={config['method']!r}, which keep no draws: leave it out"
        )
    if type(wanted) is not int or wanted < 1:
        raise UserError(f"draws={wanted!r} must be a whole number from 1")
    return {**config, "num_predictive_draws": min(wanted, config["num_predictive_draws"])}


def check_is_workdir(work: Workdir) -> None:
    """Refuses a directory that no run has written.

    Raises:
        UserError: it has no config.json, or one of another format.
    """
    if work.read_config() is None:
        if is_search(work):
            raise UserError(
                f"{work.path} holds a search that has chosen nothing yet; the same `ensemble fit` "
                "goes on with it, and with --budget=1s chooses from what was tried"
            )
        raise UserError(f"{work.path} is not a workdir: it has no config.json")
