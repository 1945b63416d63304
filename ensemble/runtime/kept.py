"""What runs say whose members predict with what they have kept on disk: draws, snapshots."""

import functools
from typing import Any

import numpy as np

from ensemble import pytrees
from ensemble.data.source import SplitInputs
from ensemble.draws.predictions import DrawPredictions
from ensemble.likelihoods.predictive import Predictive
from ensemble.runtime.method import Report


class KeptReport(Report):
    """What a run says of members that keep sets of parameters."""

    @property
    def most(self) -> int:
        """Sets of a member that predict, at most."""
        return int(self.config.max_draws_per_chain)

    @functools.cached_property
    def predicted(self) -> DrawPredictions:
        """Predictions of splits by the sets on disk."""
        return DrawPredictions(
            self.task.likelihood,
            self.task.dataset,
            self.most,
            lambda sets, split: self.said(pytrees.at(sets, np.s_[:, None]), split),
        )

    def said(self, sets: Any, split: str) -> dict[str, np.ndarray]:
        """What sets [M, 1, ...] on the host say of a split: [M, N, ...]."""
        inputs = SplitInputs(self.task.dataset, split)
        return self.run.predict(self.run.devices.put_members(sets, whole=True), inputs)

    def num_rows(self, run: Any) -> int:
        """Rows of scalars on disk, of a step or of what is kept: `Keep.only_rows`."""
        return int(run.first_row(run.loop.rows.first))

    def has_predictions(self, run: Any) -> bool:
        """Whether a set is on disk."""
        return bool(run.algorithm.keep.before(run.loop.rows.first) > 0)

    def predictions(self, run: Any, split: str) -> Predictive:
        """What the sets that are kept so far say of a split."""
        return self.predicted.of_split(split, run.draws)
