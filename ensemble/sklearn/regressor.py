"""The regressor."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils import Tags

from ensemble.errors import InputError
from ensemble.sklearn.estimator import Estimator


@dataclasses.dataclass(eq=False, repr=False)
class EnsembleRegressor(RegressorMixin, Estimator):
    """A deep ensemble that predicts a number and how uncertain it is.

    The parameters are those of `EnsembleClassifier`, and `likelihood`; features and targets are
    scaled by the ensemble itself. The defaults are those of `configs/tabular.py`: see
    `EnsembleClassifier`.

    Args:
        ensemble_size: M, members in all.
        model: name or path of a network.
        num_epochs: passes over the examples; None where `config` has `num_steps`.
        batch_size: B, examples that one member sees in a step.
        optimizer: 'sgd', 'adam' or 'adamw'.
        learning_rate: the peak of the schedule.
        lr_schedule: 'constant', 'cosine' or 'warmup_cosine'.
        weight_decay: on every parameter: L2, but decoupled for adamw.
        num_devices: to train and predict on; None for all.
        random_state: as of `EnsembleClassifier`.
        config: a mapping of other keys of the configuration.
        method: as of `EnsembleClassifier`.
        hidden: units of each hidden layer of the model 'mlp'; None: two of 256.
        activation: of 'mlp': 'relu', 'tanh', 'silu' or 'gelu'; None: 'relu'.
        verbose: whether to show progress.
        n_jobs: as of `EnsembleClassifier`.
        time_limit: as of `EnsembleClassifier`.
        likelihood: 'gaussian', 'gaussian_homoscedastic', 'student_t', 'laplace', 'log_normal',
            'mixture_of_gaussians', 'poisson', 'negative_binomial' or 'quantiles'.

    Attributes:
        n_features_in_: F, the second axis of what was learned.
        feature_names_in_: [F], where X was a data frame with such names.
        predictor_: an `Ensemble`.
        report_: what the run reports: configuration, members alive and failed, timing.
    """

    likelihood: str = "gaussian"

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
    ) -> EnsembleRegressor:
        """Trains a new ensemble on the examples.

        Args:
            X: [N, F] finite numbers, or images [N, H, W] or [N, H, W, C]; or a data frame of
                numbers, truth values, categories and dates, with missing values.
            y: [N] finite numbers that are not all alike, or several of each example [N, D].
            sample_weight: [N], how much each example counts; None: all the same. Whole numbers
                repeat examples, unless they add up to more than 10 times as many.

        Returns:
            The regressor itself.

        Raises:
            ValueError: X or y cannot be learned.
            InputError: nor can this configuration; it is a ValueError, too.
            TrainingError: every member became non-finite.
            Interrupted: SIGTERM or Ctrl-C.
        """
        inputs, targets = self._checked(X, y, y_numeric=True, multi_output=True)
        self._train({"train_inputs": inputs, "train_targets": targets}, sample_weight)
        return self

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Returns the mean of the mixture of members for each example, [N] or [N, D] float64.

        With `likelihood='quantiles'`, which have no mean, it is the median.

        Args:
            X: [N, ...], like what was learned.
            return_std: whether the mixture's standard deviations [N] or [N, D] are returned too.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X is not like what was learned, or quantiles were, which have no deviation.
        """
        found: Any = self.predict_uncertainty(X)
        if not return_std:
            return found.point
        if not hasattr(found.of_target(0), "std"):
            raise InputError(
                "return_std=True is for distributions, and likelihood='quantiles' has none: use "
                "predict_interval"
            )
        return found.point, found.std

    def predict_quantiles(self, X: ArrayLike, levels: Sequence[float]) -> np.ndarray:
        """Returns quantiles of the mixture of members, [N, Q] or [N, D, Q], in the units of y.

        Args:
            X: [N, ...], like what was learned.
            levels: [Q], each above 0 and below 1; with `likelihood='quantiles'` of those learned.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X is not like what was learned, or a level is none.
        """
        try:
            wanted = np.atleast_1d(np.asarray(levels, np.float64))
        except (TypeError, ValueError):
            wanted = np.empty(0)
        if wanted.ndim != 1 or not len(wanted) or not ((wanted > 0) & (wanted < 1)).all():
            raise InputError(f"levels={levels!r} must be numbers above 0 and below 1")
        p: Any = self.predict_uncertainty(X)
        found: np.ndarray = p.quantiles(wanted)
        return found

    def predict_interval(self, X: ArrayLike, coverage: float = 0.9) -> np.ndarray:
        """Returns the central interval of the mixture, [N, 2] or [N, D, 2], in the units of y.

        Args:
            X: [N, ...], like what was learned.
            coverage: the share of targets that it is to cover, as likely missed on either side.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X is not like what was learned, or the coverage is none.
        """
        if not isinstance(coverage, numbers.Real) or not 0 < coverage < 1:
            raise InputError(f"coverage={coverage!r} must be above 0 and below 1")
        return self.predict_quantiles(X, [(1 - coverage) / 2, (1 + coverage) / 2])

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
