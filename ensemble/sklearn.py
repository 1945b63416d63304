"""Ensembles as scikit-learn estimators: fit, predict, and all that scikit-learn builds on them.

https://scikit-learn.org/stable/developers/develop.html has the rules that this file keeps.
"""

import functools
import inspect
import numbers
from collections.abc import Mapping
from typing import Any

import ml_collections
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from ensemble.batched_prediction import MAX_BATCH_SIZE
from ensemble.config import flatten
from ensemble.config_rules import validate
from ensemble.errors import UserError
from ensemble.likelihoods.classes import Prediction
from ensemble.likelihoods.number_prediction import NumberPrediction
from ensemble.predictor import Predictor
from ensemble.run.loop import train
from ensemble.sharding import startup
from ensemble.sharding.transfer import pad

_INPUTS: Mapping[str, Any] = {"dtype": [np.float32, np.uint8], "allow_nd": True}
"""How scikit-learn checks X: images may be whole numbers, all else becomes float32."""
_AT_THE_END = 10**9
_DEFAULTS: Mapping[str, Any] = {
    "hold_out": False,  # Every example is for learning: who scores has held some back.
    # The run's directory is gone when `fit` returns, so nothing is written before the end.
    "log_every_steps": _AT_THE_END,
    "eval_every_epochs": _AT_THE_END,
    "plot_every_epochs": _AT_THE_END,
    "checkpoint_every_epochs": _AT_THE_END,
}
_FROM_FIT = ("dataset", "data_dir", "seed")
"""Keys of the configuration that `X`, `y` and `random_state` settle."""


class _Estimator(BaseEstimator):
    """What classifier and regressor share: parameters, training, and the ensemble that is kept."""

    def __init__(
        self,
        ensemble_size: int = 8,
        model: str = "mlp",
        num_epochs: int | None = 100,
        batch_size: int = 32,
        optimizer: str = "adam",
        learning_rate: float = 1e-3,
        schedule: str = "cosine",
        weight_decay: float = 3e-3,
        num_devices: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        config: Mapping[str, Any] | None = None,
    ):
        self.ensemble_size = ensemble_size
        self.model = model
        self.num_epochs = num_epochs
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.weight_decay = weight_decay
        self.num_devices = num_devices
        self.random_state = random_state
        self.config = config

    def _train(self, data: Mapping[str, Any]) -> None:
        result = train(self._run_config(), data, show_progress=False)
        self.report_ = result.report
        self._ensemble: dict[str, Any] = result.predictor.without_examples()
        self.__dict__.pop("predictor_", None)  # Of an earlier fit.
        self.predictor_  # noqa: B018 -- Built here, as predicting may change no attribute.

    def _predict(self, X: ArrayLike) -> tuple[Any, int]:
        """What the ensemble says of X and of padding behind it, and how many examples X has."""
        check_is_fitted(self)
        inputs = validate_data(self, X, reset=False, **_INPUTS)
        # All forward passes have one shape: one program is compiled, and what is said of an example
        # is the same, to the last bit, whatever else is in X.
        return self.predictor_(pad(inputs, len(inputs) + -len(inputs) % MAX_BATCH_SIZE)), len(
            inputs
        )

    @functools.cached_property
    def predictor_(self) -> Predictor:
        """The ensemble as a function."""
        check_is_fitted(self)
        startup.configure(self.num_devices)  # As unpickled, it may be the first to start JAX.
        return Predictor(**self._ensemble, num_devices=self.num_devices)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("predictor_", None)  # Compiled programs belong to their process.
        return state

    def _run_config(self) -> ml_collections.FrozenConfigDict:
        """Joins parameters, `config` and defaults.

        Raises:
            UserError: `config` holds a key that has its place elsewhere, or is not valid.
        """
        params = self.get_params(deep=False)
        random_state, config = params.pop("random_state"), dict(params.pop("config") or {})
        for key in config:
            if key in params:
                raise UserError(f"config has {key!r}, which is a parameter: {key}={config[key]!r}")
            if key in _FROM_FIT:
                raise UserError(
                    f"config has {key!r}, which comes from X, y and random_state: leave it out"
                )
        defaults = inspect.signature(type(self)).parameters
        chosen = [key for key, value in params.items() if value != defaults[key].default]
        whole = {**_DEFAULTS, **config, **params, "seed": _seed(random_state)}
        return validate(
            whole, by_hand=[*flatten(config), *chosen]
        )  # Other methods have no `batch_size`.


class EnsembleClassifier(ClassifierMixin, _Estimator):
    """A deep ensemble, trained by `ensemble.train` on all the examples that `fit` is given.

    The parameters are keys of the configuration, with defaults for small tables; all other keys
    are in `config`. Features are standardised by the ensemble itself. Images go in as they are,
    [N, H, W] or [N, H, W, C], where `model` is a network for images.

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
        random_state: a whole number is `config.seed`, so that equal numbers give equal bits; a
            `RandomState` is drawn from, and None draws from NumPy's own, as in scikit-learn.
        config: a mapping of other keys of the configuration, such as
            `{'class_weights': 'balanced'}`.

    Attributes:
        classes_: [C], the labels, sorted.
        n_features_in_: F, the second axis of what was learned.
        feature_names_in_: [F], where X was a data frame with such names.
        predictor_: a `Predictor`; its labels are positions in `classes_`.
        report_: what the run reports: configuration, members alive and failed, timing.
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> "EnsembleClassifier":
        """Trains a new ensemble on all of the examples.

        Args:
            X: [N, F] finite numbers, or images [N, H, W] or [N, H, W, C].
            y: [N] labels of two or more classes, numbers or strings.

        Returns:
            The classifier itself.

        Raises:
            ValueError: X or y cannot be learned.
            UserError: nor can this configuration; it is a ValueError, too.
            RunFailed: every member became non-finite.
            Interrupted: SIGTERM or Ctrl-C.
        """
        inputs, targets = validate_data(self, X, y, **_INPUTS)
        check_classification_targets(targets)
        self.classes_, labels = np.unique(targets, return_inverse=True)
        if len(self.classes_) < 2:
            raise UserError(
                f"y holds the one class {self.classes_[0]!r}; classification needs two or more"
            )
        names = np.array([str(name) for name in self.classes_])
        self._train({"train_inputs": inputs, "train_labels": labels, "class_names": names})
        return self

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Returns the most probable label of each example [N].

        Raises:
            NotFittedError: before `fit`.
            ValueError: X is not like what was learned.
        """
        return self.predict_uncertainty(X).label

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Returns the mean of the members' probabilities [N, C], float64, ordered as `classes_`.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X is not like what was learned.
        """
        probs = self.predict_uncertainty(X).probs.astype(np.float64)
        return probs / probs.sum(axis=1, keepdims=True)

    def predict_uncertainty(self, X: ArrayLike) -> Prediction:
        """Returns all that the ensemble says of each example: how sure it is, and why not.

        Args:
            X: [N, ...], like what was learned.

        Returns:
            A `Prediction`: `probs` [N, C], `label` [N] among `classes_`, and in nats [N] `total`,
            `aleatoric` and `epistemic` uncertainty; the last is what the members disagree on.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X is not like what was learned.
        """
        whole, num_examples = self._predict(X)
        return Prediction(
            probs=whole.probs[:num_examples],
            label=self.classes_[whole.label[:num_examples]],
            total=whole.total[:num_examples],
            aleatoric=whole.aleatoric[:num_examples],
            epistemic=whole.epistemic[:num_examples],
            member_log_probs=whole.member_log_probs[:, :num_examples],
        )


class EnsembleRegressor(RegressorMixin, _Estimator):
    """A deep ensemble that predicts a number and how uncertain it is.

    The parameters are those of `EnsembleClassifier`, and `likelihood`; features and targets are
    standardised by the ensemble itself.

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
        likelihood: 'gaussian', 'gaussian_shared' or 'student_t'.

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
        num_epochs: int | None = 100,
        batch_size: int = 32,
        optimizer: str = "adam",
        learning_rate: float = 1e-3,
        schedule: str = "cosine",
        weight_decay: float = 3e-3,
        num_devices: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        config: Mapping[str, Any] | None = None,
        likelihood: str = "gaussian",
    ):
        super().__init__(
            ensemble_size=ensemble_size,
            model=model,
            num_epochs=num_epochs,
            batch_size=batch_size,
            optimizer=optimizer,
            learning_rate=learning_rate,
            schedule=schedule,
            weight_decay=weight_decay,
            num_devices=num_devices,
            random_state=random_state,
            config=config,
        )
        self.likelihood = likelihood

    def fit(self, X: ArrayLike, y: ArrayLike) -> "EnsembleRegressor":
        """Trains a new ensemble on all of the examples.

        Args:
            X: [N, F] finite numbers, or images [N, H, W] or [N, H, W, C].
            y: [N] finite numbers that are not all alike.

        Returns:
            The regressor itself.

        Raises:
            ValueError: X or y cannot be learned.
            UserError: nor can this configuration; it is a ValueError, too.
            RunFailed: every member became non-finite.
            Interrupted: SIGTERM or Ctrl-C.
        """
        inputs, targets = validate_data(self, X, y, y_numeric=True, **_INPUTS)
        self._train({"train_inputs": inputs, "train_targets": targets})
        return self

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Returns the mean of the mixture of members for each example, [N] float64.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X is not like what was learned.
        """
        return self.predict_uncertainty(X).mean

    def predict_uncertainty(self, X: ArrayLike) -> NumberPrediction:
        """Returns all that the ensemble says of each example: moments, quantiles, and their parts.

        Args:
            X: [N, ...], like what was learned.

        Returns:
            A `NumberPrediction`, in the units of y.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X is not like what was learned.
        """
        whole, num_examples = self._predict(X)
        return NumberPrediction(
            mean=whole.mean[:num_examples],
            standard_deviation=whole.standard_deviation[:num_examples],
            quantiles=whole.quantiles[:num_examples],
            aleatoric=whole.aleatoric[:num_examples],
            epistemic=whole.epistemic[:num_examples],
            levels=whole.levels,
            members={name: one[:, :num_examples] for name, one in whole.members.items()},
        )


def _seed(random_state: int | np.random.RandomState | None) -> int:
    """A whole number as it is, else one drawn as scikit-learn draws."""
    if isinstance(random_state, numbers.Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**32, dtype=np.uint32))
