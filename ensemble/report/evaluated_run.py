"""A workdir to evaluate: predictions, network and data, each read when needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from etils.epath import PathLike

from ensemble import likelihoods
from ensemble.config import trait
from ensemble.data.catalogue import load
from ensemble.data.source import AnyInputs, Source, check_same_data
from ensemble.errors import InputError, logger
from ensemble.likelihoods.predictive import Predictive
from ensemble.predictor import ensemble_of
from ensemble.runtime.loading import config_of, restore
from ensemble.sharding import startup
from ensemble.storage.predictions import StoredPredictions, read_predictions
from ensemble.storage.workdir import Workdir
from ensemble.tasks.supervised import request_of


@dataclass(eq=False)
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
        step: steps of a run in training; None if it has finished.
        results: content of results.json; of a run in training `config`, `dataset` and
            `failed_members`.
        config: of the run, a nested dict.
        description: of the data set, as of `Task.describe`.
        noun: what a member is called.
        likelihood: of the run.
        why_no_data: reason why `dataset` is None, as a sentence.
    """

    workdir: PathLike
    data_dir: str | None = None
    data: Any = None
    num_devices: int | None = None

    def __post_init__(self) -> None:
        self.work = Workdir(self.workdir)
        self.why_no_data = ""
        self.step = None
        startup.configure(self.num_devices)
        config_of(self.work)
        self.results = self.work.read_report()
        if not self.results:
            saved = restore(self.work)
            self.step = saved.counters["step"]
            self.results = {
                "config": dict(saved.config),
                "dataset": dict(saved.description),
                "failed_members": {str(k): why for k, why in saved.failed_members.items()},
            }
        self.config = self.results["config"]
        self.description = self.results["dataset"]
        self.noun = "chain" if "num_chains" in self.config else "member"
        if why := trait("task", self.config["task"], "why_not_evaluated"):
            raise InputError(f"{self.work.path} {why}")
        self.data_dir = self.data_dir or self.config["data_dir"]
        self.likelihood = likelihoods.from_dict(self.config["likelihood"], self.description)

    @property
    def is_finished(self) -> bool:
        """Whether the run has reached its goal."""
        return self.step is None

    @cached_property
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
            raise InputError(self.why_no_data)
        p = self.predictor.predict_members(self.dataset.splits[split].inputs)
        live = np.flatnonzero(~p.have_nan())  # The run may not have evaluated them.
        if not len(live):
            raise InputError(f"{self.work.path} has no member whose predictions are finite")
        members = np.array(self.predictor.members)[live]
        return StoredPredictions(p.of(live), self.dataset.targets(split), members)

    @cached_property
    def predictor(self) -> Any:
        """The members that are alive, from the newest checkpoint."""
        return ensemble_of(self.work, self.num_devices)

    def predict(self, inputs: AnyInputs) -> Predictive:
        """Predicts inputs [N, ...] with the members that `test` has.

        Raises:
            InputError: The inputs do not suit the network.
        """
        chosen = [self.predictor.members.index(k) for k in self.test.members.tolist()]
        return self.predictor.predict_members(inputs).of(chosen)

    @cached_property
    def dataset(self) -> Source | None:
        """The data; None, with a warning, if they are not available.

        Raises:
            InputError: They have changed since the run.
        """
        request = request_of(self.config, self.data_dir)
        path = str(self.work.path)
        if self.data is not None:
            from ensemble.data.data_forms import recognise  # Most runs learn a set by its name.

            found = recognise(self.data, request.kind, request.target).source(request)
        else:
            try:
                found = load(self.description["name"], request)
            except InputError as error:
                self.why_no_data = f"The data of {path} are not available: {error}"
                logger.warning("%s. So there are neither images nor shifts.", self.why_no_data)
                return None
        remedy = "restore the data, give the same arrays in the same order, or set --data_dir"
        check_same_data(path, self.description["fingerprint"], found.fingerprint, remedy)
        return found
