"""What is fitted on the calibration split of a finished run: a temperature, and a threshold."""

import logging
from collections.abc import Mapping
from typing import Any

from ensemble import metrics
from ensemble.errors import UserError
from ensemble.likelihood import Likelihood
from ensemble.metrics.abstention import MAX_ERROR
from ensemble.scoring.folds import change_on_folds
from ensemble.storage.predictions import read_predictions
from ensemble.storage.workdir import Workdir

logger = logging.getLogger("ensemble")


class Calibration:
    """The stored predictions of a run's calibration split, and what is fitted to them.

    Args:
        work: of the run.
        config: of the run.
        likelihood: of the run.
        description: of its data, by `Task.describe`.

    Raises:
        UserError: the run has not finished, or has no such split.
    """

    def __init__(
        self,
        work: Workdir,
        config: dict[str, Any],
        likelihood: Likelihood,
        description: Mapping[str, Any],
    ):
        self._path = work.predictions / "calibration.npz"
        if not work.read_report():
            raise UserError(f"{work.path} has not finished: it can be calibrated when it has")
        if not self._path.exists():
            raise UserError(f"{work.path} has no calibration split to fit on")
        stored = read_predictions(
            self._path,
            config,
            likelihood,
            identity=work.identity(),
            fingerprint=description["fingerprint"],
        )
        if stored is None:
            raise UserError(
                f"{self._path} keeps sums over draws, as earlier versions did, to which nothing "
                "can be fitted; train again with the same --workdir"
            )
        self._view = stored.view(likelihood)
        kind, _, self._column = config.get("split", "").partition(":")
        self._has_groups = kind == "group"

    def temperature(self) -> float:
        """Fits the temperature; it is 1, with a warning, where the predictions determine none.

        Raises:
            UserError: the likelihood has no temperature.
        """
        try:
            factor = self._view.fit_factor()
        except UserError as error:  # Before ValueError, which it is one of.
            raise UserError(f"{self._path} gives no temperature: {error}") from None
        except ValueError as error:
            logger.warning("%s gives no temperature: %s. It stays 1.", self._path, error)
            return 1.0
        self._warn_of(factor)
        return factor

    def _warn_of(self, factor: float) -> None:
        """Says where these examples do not show that the factor helps, as an evaluation does."""
        change = change_on_folds(self._view)
        if change is not None and change[1] < 0:
            return
        why = "are too few to show that it helps"
        if change is not None:
            why = f"do not show that it helps (NLL {change[0]:+.3g} to {change[1]:+.3g} nats)"
        name, number = self._view.factor_name, self._view.num_rows
        line = "A %s of %.3g is applied, though the %d examples that it was fitted on %s."
        logger.warning(line, name, factor, number, why)

    def abstention(self, rule: metrics.Rule) -> metrics.Abstention:
        """Fits the threshold of a rule; warns of an error rate that is not guaranteed.

        Raises:
            UserError: these predictions cannot prove what the rule asks for.
        """
        if self._has_groups and rule.name == MAX_ERROR:
            logger.warning(
                "%s guarantees no error rate: rows come in groups (%s), and count as independent.",
                rule, self._column,
            )  # fmt: skip
        try:
            return metrics.fit_abstention(rule, self._view.doubt, self._view.errs(rule.tolerance))
        except ValueError as error:
            raise UserError(f"{self._path} cannot abstain by {rule}: {error}") from None
