"""The regressor."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_consistent_length

from ensemble.errors import UserError
from ensemble.sklearn.estimator import Estimator

if TYPE_CHECKING:
    from ensemble.likelihoods.number_prediction import NumberPrediction
    from ensemble.likelihoods.quantiles import QuantilePrediction


class EnsembleRegressor(RegressorMixin, Estimator):
    """A deep ensemble that predicts a number and how uncertain it is.

    The parameters are those of `EnsembleClassifier`, and `likelihood`; features and targets are
    scaled by the ensemble itself. The defaults are those of `configs/tabular.py`: see
    `EnsembleClassifier`.

    Args:
        ensemble_size: M, members in all.
        model: a name in the registry of `models`.
        num_epochs: passes over the examples; None where `config` has `num_steps`.
        batch_size: B, examples that one member sees in a step.
        optimizer: 'sgd', 'adam' or 'adamw'.
        learning_rate: the peak of the schedule.
        schedule: 'constant', 'cosine' or 'warmup_cosine'.
        weight_decay: on every parameter: L2, but decoupled for adamw.
        num_devices: to train and predict on; None for all.
        random_state: as of `EnsembleClassifier`.
        config: a mapping of other keys of the configuration.
        method: as of `EnsembleClassifier`.
        hidden: units of each hidden layer of the model 'mlp'; None: two of 256.
        activation: of 'mlp': 'relu', 'tanh', 'silu' or 'gelu'; None: 'relu'.
        verbose: whether to show progress.
        likelihood: 'gaussian', 'gaussian_shared', 'student_t', 'laplace', 'log_normal',
            'mixture_of_gaussians', 'poisson', 'negative_binomial' or 'quantiles'.
        n_jobs: as of `EnsembleClassifier`.
        budget: as of `EnsembleClassifier`.

    Attributes:
        n_features_in_: F, the second axis of what was learned.
        feature_names_in_: [F], where X was a data frame with such names.
        predictor_: a `Predictor`.
        report_: what the run reports: configuration, members alive and failed, timing.
    """

    def __init__(
        self,
        ensemble_size: int = 8,
        model: str = "mlp",
        num_epochs: int | None = 200,
        batch_size: int = 32,
        optimizer: str = "adam",
        learning_rate: float = 5e-3,
        schedule: str = "cosine",
        weight_decay: float = 1e-3,
        num_devices: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        config: Mapping[str, Any] | None = None,
        method: str = "cross_fitted",
        hidden: Sequence[int] | None = (128, 128),
        activation: str | None = None,
        verbose: bool = False,
        likelihood: str = "gaussian",
        n_jobs: int | None = None,
        budget: float | str | None = None,
    ):
        self._keep(locals())

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        censored: ArrayLike | None = None,
        target_errors: ArrayLike | None = None,
    ) -> EnsembleRegressor:
        """Trains a new ensemble on the examples.

        Args:
            X: [N, F] finite numbers, or images [N, H, W] or [N, H, W, C]; or a data frame of
                numbers, truth values, categories and dates, with missing values.
            y: [N] finite numbers that are not all alike, or several of each example [N, D].
            sample_weight: [N], how much each example counts; None: all the same. Whole numbers
                repeat examples, unless they add up to more than 10 times as many.
            censored: [N] bool, whether the target is at least y, not y itself; None: nowhere.
            target_errors: [N], standard deviations with which y was measured; None: exactly.

        Returns:
            The regressor itself.

        Raises:
            ValueError: X or y cannot be learned.
            UserError: nor can this configuration; it is a ValueError, too.
            RunFailed: every member became non-finite.
            Interrupted: SIGTERM or Ctrl-C.
        """
        inputs, targets = self._checked(X, y, y_numeric=True, multi_output=True)
        annotations = {"train_censored": censored, "train_target_errors": target_errors}
        given = {name: np.asarray(one) for name, one in annotations.items() if one is not None}
        check_consistent_length(targets, *given.values())
        self._train({"train_inputs": inputs, "train_targets": targets, **given}, sample_weight)
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
        if not hasattr(found, "standard_deviation"):
            raise UserError(
                "return_std=True is for distributions, and likelihood='quantiles' has none: use "
                "predict_interval"
            )
        return found.point, found.standard_deviation

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
            raise UserError(f"levels={levels!r} must be numbers above 0 and below 1")
        said = self.predict_uncertainty(X)
        likelihood: Any = self.predictor_.likelihood
        weights = self.predictor_.estimator_weights
        found: np.ndarray = likelihood.quantiles_at(said.members, wanted, weights)
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
            raise UserError(f"coverage={coverage!r} must be above 0 and below 1")
        return self.predict_quantiles(X, [(1 - coverage) / 2, (1 + coverage) / 2])

    def predict_uncertainty(self, X: ArrayLike) -> NumberPrediction | QuantilePrediction:
        """Returns all that the ensemble says of each example: moments, quantiles, and their parts.

        Args:
            X: [N, ...], like what was learned.

        Returns:
            A `NumberPrediction`, or of quantiles a `QuantilePrediction`, in the units of y.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X is not like what was learned.
        """
        whole, num_examples = self._predict(X)
        return whole.first(num_examples)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
