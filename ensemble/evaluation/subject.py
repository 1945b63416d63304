"""What is evaluated: predictions, network and data of a workdir, each when it is needed."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ensemble import likelihoods, registry
from ensemble.batched_prediction import Keep, in_memory
from ensemble.errors import UserError
from ensemble.likelihood import Likelihood
from ensemble.predictor import check_is_workdir, restore
from ensemble.scoring.score import asked_for
from ensemble.scoring.view import View
from ensemble.sharding import startup
from ensemble.source import AnyInputs, Request, Source, SplitInputs
from ensemble.sources.catalogue import check_is_here, load
from ensemble.sources.image_form import parse_size
from ensemble.sources.tfds_records import data_dir_of_run
from ensemble.storage import old
from ensemble.storage.predictions import (
    MemberPredictions,
    StoredPredictions,
    read_predictions,
)
from ensemble.storage.workdir import Workdir
from ensemble.tasks.learning_data import table_keys

if TYPE_CHECKING:
    from ensemble.evaluation.evaluator import Evaluator
    from ensemble.sources.data_forms import Given

logger = logging.getLogger("ensemble")


class Subject:
    """A workdir, finished or still in training; it is only read.

    A finished run's stored predictions are taken as they are, and the network is not even loaded
    until something else has to be predicted. A run in training is predicted from its newest
    checkpoint.

    Args:
        workdir: of the run.
        data_dir: where TFDS sets lie here; None: where the run had them, if they are still there,
            else as `ensemble.sources.catalogue.load_dataset` has it. No set is prepared.
        data: the arrays that the run was given, if it was given arrays.
        num_devices: to predict on; None for all.
        scores: that are asked for beside the usual ones, as of `asked_for`.

    Raises:
        UserError: it is no workdir, or has nothing to evaluate.

    Attributes:
        work: the workdir.
        is_finished: whether the run has reached its goal.
        likelihood: of the run.
        evaluator: that its likelihood says.
        config: of the run, a nested dict.
        description: of the data set, as `ensemble.task.Task.describe` makes it.
        why_no_data: why `dataset` is None, where it is.
    """

    def __init__(
        self,
        workdir: str,
        data_dir: str | None = None,
        data: Any = None,
        num_devices: int | None = None,
        scores: Sequence[str] = (),
    ):
        self.work = Workdir(workdir)
        self._scores = scores
        self._data_dir = data_dir
        self._data = data
        self._num_devices = num_devices
        self.why_no_data = ""
        startup.configure(num_devices)

        check_is_workdir(self.work)
        self.report = self.work.read_report()
        self.is_finished = bool(self.report)
        if self.is_finished:
            self.config, self.description = self.report["config"], self.report["dataset"]
        else:
            self.config = self._restored.config
            self.description = self._restored.description
        task = registry.task_of(self.config)
        if why := registry.TASKS[task].why_not_evaluated:
            raise UserError(f"{self.work.path} {why}")
        named = self.config["likelihood"]
        self.likelihood: Likelihood = likelihoods.described(named, self.description)
        if why := self.likelihood.why_not_evaluated:
            raise UserError(f"{self.work.path} {why}")
        self.evaluator: Evaluator = registry.load(self.likelihood.evaluator)()

    def check_has_test(self) -> None:
        """Refuses a run that has no examples to score.

        Raises:
            UserError: as said.
        """
        if "test" not in self.description["num_examples"]:
            raise UserError(
                f"{self.work.path} has no test split to score: its run learned from all data; "
                "train with config.hold_out=True, or give test data"
            )

    @property
    def name(self) -> str:
        """What a table calls it: the last part of the path."""
        return self.work.path.name

    @property
    def step(self) -> int | None:
        """Steps taken by members still in training; None where all have taken theirs."""
        return None if self.is_finished else self._restored.step

    @functools.cached_property
    def test(self) -> StoredPredictions:
        """The live members' predictions of the test split."""
        return self._predictions("test")

    @functools.cached_property
    def view(self) -> View:
        """What the live members say of the test split, with the scores that are asked for.

        Raises:
            UserError: there is no such score.
        """
        view = self.test.view(self.likelihood)
        asked = asked_for(self._scores, view, self.description.get("class_names", ()))
        return dataclasses.replace(view, asked=asked)

    @functools.cached_property
    def calibration_view(self) -> View | None:
        """The same of the calibration split; None where the run has none."""
        return self.view_of("calibration")

    def view_of(self, split: str) -> View | None:
        """What the live members say of a split; None where the run has none."""
        if split not in self.description["num_examples"]:
            return None
        return self._predictions(split).view(self.likelihood)

    @functools.cached_property
    def failed_members(self) -> dict[str, str]:
        """Numbers of the members that are left out of everything, and why."""
        if self.is_finished:
            return dict(self.report["failed_members"])
        silent = set(self.predictor.members) - set(self.test.members.tolist())
        failed = {**self._restored.failed_members, **dict.fromkeys(silent, "predicts NaN")}
        return {str(k): failed[k] for k in sorted(failed)}

    @functools.cached_property
    def fingerprint(self) -> str:
        """Tells these members from all others, by what they say of the test split."""
        digest = hashlib.blake2b(digest_size=16)
        for name in sorted(self.test.arrays):
            digest.update(np.ascontiguousarray(self.test.arrays[name]).data)
        if self.test.weights is not None:
            digest.update(np.ascontiguousarray(self.test.weights).data)
        return digest.hexdigest()

    @functools.cached_property
    def predictor(self) -> Any:
        """The live members, from the newest checkpoint."""
        return self._restored.predictor(self._num_devices)

    def data_dir(self, name: str) -> str | None:
        """The place where a TFDS set is read, or prepared: `data_dir` of `load_dataset`.

        Raises:
            UserError: the set is there in part.
        """
        return self._data_dir or data_dir_of_run(name, self.config["data_dir"])

    @functools.cached_property
    def dataset(self) -> Source | None:
        """The data; None, with a warning, where they cannot be had here.

        Raises:
            UserError: they have changed since the run.
        """
        name, expected = self.description["name"], self.description["fingerprint"]
        try:
            dataset = old.as_it_was_split(self._load_dataset, expected, self.work.path)
        except UserError as error:
            if self._data is not None:
                raise
            self.why_no_data = str(error)
            logger.warning(
                "The data of %s cannot be had, so neither images nor shifts are shown: %s",
                self.work.path,
                error,
            )
            return None
        if dataset.fingerprint != expected:
            if self._data is not None:
                raise UserError(
                    f"{self.work.path} holds a run on other data than the arrays that were given; "
                    "give the same ones in the same order"
                )
            raise UserError(
                f"{self.work.path} holds a run on other data than {name} has now; restore the "
                "data, or say by --data_dir where TFDS sets lie"
            )
        return dataset

    def _load_dataset(self, **how: Any) -> Source:
        """The data that the configuration names, or that were given.

        Args:
            **how: fields of the request that the configuration does not say.
        """
        config, name = self.config, self.description["name"]
        request = Request(
            seed=config["seed"],
            hold_out=config["hold_out"],
            size=parse_size(config.get("resize")),
            table=table_keys(config),
            **how,
        )
        if self._data is not None:
            return self._given.source(request)
        data_dir = self.data_dir(name)
        check_is_here(name, data_dir)
        return load(name, request._replace(data_dir=data_dir))

    @functools.cached_property
    def _given(self) -> Given:
        """The data that a program has handed over; tables only if the run has learned them so."""
        from ensemble.sources.data_forms import recognise  # Most runs learn a set by its name.

        table = table_keys(self.config)
        given = recognise(self._data, table.kind, table.target)
        return dataclasses.replace(given, is_table=given.is_table and "table" in self.description)

    @functools.cached_property
    def _restored(self) -> Any:

        return restore(self.work)

    def _predictions(self, split: str) -> StoredPredictions:
        stored = self._stored(split) if self.is_finished else None
        return self._predicted(split) if stored is None else stored

    def _stored(self, split: str) -> StoredPredictions | None:
        """What the finished run has said; None where that cannot be scored today."""
        stored = read_predictions(
            self.work.predictions / f"{split}.npz",
            self.config,
            self.likelihood,
            identity=self.work.identity(),
            fingerprint=self.description["fingerprint"],
        )
        if stored is None:
            return None
        if stored.members.tolist() != self.report["live_members"]:
            raise UserError(
                f"{self.work.predictions / split}.npz has the members "
                f"{stored.members.tolist()}, report.json {self.report['live_members']}; train "
                "again with the same --workdir"
            )
        expected = self.description["num_examples"].get(split)
        if len(stored.targets) != expected:
            raise UserError(
                f"{self.work.predictions / split}.npz has predictions of "
                f"{len(stored.targets)} examples, report.json says {expected}; train "
                "again with the same --workdir"
            )
        return stored

    def _predicted(self, split: str) -> StoredPredictions:
        """What the members of the newest checkpoint say."""
        if self.dataset is None:
            why = "is still in training" if not self.is_finished else "keeps sums over draws"
            raise UserError(
                f"{self.work.path} {why}, and needs its data to predict: {self.why_no_data}"
            )
        predictions = self.predictor.predict_members(SplitInputs(self.dataset, split))
        live = ~predictions.have_nan()
        if not live.any():
            raise UserError(f"{self.work.path} has no member whose predictions are finite")
        kept = predictions.of_members(np.flatnonzero(live))
        members = np.array(self.predictor.members)[live]
        targets = self.dataset.targets(split)
        return StoredPredictions(kept.arrays, targets, members, kept.member_of, kept.weights)

    def predict(self, inputs: AnyInputs, keep: Keep = in_memory) -> MemberPredictions:
        """Predicts with the members that `test` has.

        Args:
            inputs: [N, ...].
            keep: where predictions are to be.

        Raises:
            UserError: as a call of the predictor.
        """
        predictions = self.predictor.predict_members(inputs, keep)
        rows = [self.predictor.members.index(k) for k in self.test.members.tolist()]
        return predictions.of_members(rows)
