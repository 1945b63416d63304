"""A workdir to evaluate: predictions, network and data, each read when needed."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from typing import Any

import numpy as np

from ensemble import likelihoods
from ensemble.config import trait
from ensemble.data.catalogue import load
from ensemble.data.image_form import parse_size
from ensemble.data.source import AnyInputs, Request, Source, SplitInputs, check_same_data
from ensemble.errors import InputError
from ensemble.likelihoods.predictive import Predictive
from ensemble.predictor import check_is_workdir, ensemble_of, restore
from ensemble.sharding import startup
from ensemble.storage.predictions import StoredPredictions, read_predictions
from ensemble.storage.workdir import Workdir
from ensemble.tasks.supervised import table_keys

AnyPath = str | os.PathLike[str]
logger = logging.getLogger("ensemble")


class EvaluatedRun:
    """A run, finished or in training; its workdir is only read.

    Stored predictions of a finished run are used as they are; the network is loaded when something
    else has to be predicted. A run in training is predicted from its newest checkpoint.

    Args:
        workdir: Directory of the run.
        data_dir: Directory of TFDS data sets; None: that of the run, if it still exists.
        data: Arrays that the run has learned, if it was given arrays.
        num_devices: Devices to predict on; None: all.

    Raises:
        InputError: The directory has no run, or one without predictions.

    Attributes:
        work: the workdir.
        results: content of results.json; empty while the run is in training.
        config: of the run, a nested dict.
        description: of the data set, as of `Task.describe`.
        likelihood: of the run.
        why_no_data: reason why `dataset` is None.
    """

    def __init__(
        self,
        workdir: AnyPath,
        data_dir: str | None = None,
        data: Any = None,
        num_devices: int | None = None,
    ):
        self.work = Workdir(workdir)
        self.why_no_data = ""
        self._data = data
        self._num_devices = num_devices
        startup.configure(num_devices)
        check_is_workdir(self.work)
        self.results = self.work.read_report()
        if self.is_finished:
            self.config = self.results["config"]
            self.description = self.results["dataset"]
        else:
            self.config = self._restored.config
            self.description = self._restored.description
        if why := trait("task", self.config["task"], "why_not_evaluated"):
            raise InputError(f"{self.work.path} {why}")
        self.data_dir = data_dir or self.config["data_dir"]
        self.likelihood = likelihoods.from_dict(self.config["likelihood"], self.description)

    @property
    def is_finished(self) -> bool:
        """Whether the run has reached its goal."""
        return bool(self.results)

    @property
    def step(self) -> int | None:
        """Steps of a run in training; None if it has finished."""
        return None if self.is_finished else self._restored.step

    @property
    def noun(self) -> str:
        """What a member is called."""
        return "chain" if "num_chains" in self.config else "member"

    @functools.cached_property
    def failed_members(self) -> dict[str, str]:
        """Numbers of members that are left out, with the reason."""
        if self.is_finished:
            return dict(self.results["failed_members"])
        silent = set(self.predictor.members) - set(self.test.members.tolist())
        failed = {**self._restored.failed_members, **dict.fromkeys(silent, "predicts NaN")}
        return {str(k): failed[k] for k in sorted(failed)}

    @functools.cached_property
    def test(self) -> StoredPredictions:
        """Predictions of the test split.

        Raises:
            InputError: There is none.
        """
        if found := self.predicted("test"):
            return found
        raise InputError(
            f"{self.work.path} has no test split to score: its run learned from all data. "
            "Train with config.train_on_all=False, or give test data."
        )

    def predicted(self, split: str) -> StoredPredictions | None:
        """Predictions of a split; None if the run has no such split."""
        if split not in self.description["num_examples"]:
            return None
        if self.is_finished:
            return read_predictions(self.work, split, self.likelihood)
        if self.dataset is None:
            raise InputError(
                f"{self.work.path} is still in training, and needs its data to predict: "
                f"{self.why_no_data}"
            )
        p = self.predictor.predict_members(SplitInputs(self.dataset, split))
        alive = np.flatnonzero(~p.have_nan())
        if not len(alive):
            raise InputError(f"{self.work.path} has no member whose predictions are finite")
        return StoredPredictions(
            p.of(alive), self.dataset.targets(split), np.array(self.predictor.members)[alive]
        )

    @functools.cached_property
    def predictor(self) -> Any:
        """The members that are alive, from the newest checkpoint."""
        return ensemble_of(self.work, self._num_devices)

    def predict(self, inputs: AnyInputs) -> Predictive:
        """Predicts inputs [N, ...] with the members that `test` has.

        Raises:
            InputError: The inputs do not suit the network.
        """
        chosen = [self.predictor.members.index(k) for k in self.test.members.tolist()]
        return self.predictor.predict_members(inputs).of(chosen)

    @functools.cached_property
    def dataset(self) -> Source | None:
        """The data; None, with a warning, if they are not available.

        Raises:
            InputError: They have changed since the run.
        """
        config = self.config
        table = table_keys(self.config)
        request = Request(
            data_dir=self.data_dir,
            seed=config["seed"],
            hold_out=not config["train_on_all"],
            size=parse_size(config.get("resize")),
            table=table,
        )
        if self._data is not None:
            from ensemble.data.data_forms import recognise  # Most runs learn a set by its name.

            given = recognise(self._data, table.kind, table.target)
            is_table = given.is_table and "table" in self.description
            found = dataclasses.replace(given, is_table=is_table).source(request)
        else:
            try:
                found = load(self.description["name"], request)
            except InputError as error:
                self.why_no_data = str(error)
                logger.warning(
                    "The data of %s are not available, so the report has neither images nor "
                    "shifts: %s",
                    self.work.path,
                    error,
                )
                return None
        check_same_data(
            str(self.work.path),
            self.description["fingerprint"],
            found.fingerprint,
            "restore the data, give the same arrays in the same order, or set --data_dir",
        )
        return found

    @property
    def notes(self) -> list[str]:
        """Notes of the run, and one if its groups of rows are not known here."""
        notes = list(self.results.get("notes", ()))
        if self.dataset is None and "groups" in self.results.get("intervals_over", ""):
            notes.append("Without the data, intervals take rows of one group as independent.")
        return notes

    def groups(self) -> np.ndarray | None:
        """Groups of the test rows [N], if the data were split by groups."""
        strata = self.dataset and self.dataset.strata("test")
        return strata.groups if strata else None

    @functools.cached_property
    def _restored(self) -> Any:
        return restore(self.work)
