"""Ensembles as scikit-learn estimators: fit, predict, and all that scikit-learn builds on them.

https://scikit-learn.org/stable/developers/develop.html has the rules that this file keeps. What
brings JAX is imported where there is something to learn or to predict: a program may import the
estimators, and never use them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, check_consistent_length, check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from ensemble import rounding
from ensemble.config import build, by_path, fields_for
from ensemble.config.builtin import METHODS
from ensemble.errors import InputError, in_one_line

if TYPE_CHECKING:
    from ensemble.likelihoods.predictive import Predictive
    from ensemble.predictor import Ensemble

__all__ = ["EnsembleClassifier", "EnsembleRegressor"]

_Data = dict[str, Any]
"""What is learned, or keys of a configuration."""
_INPUTS: _Data = {"dtype": [np.float64, np.float32, np.uint8], "allow_nd": True}
"""How scikit-learn checks X: images may be whole numbers, all else are floats."""
_PERIODS = ("log_every_steps", "eval_every_epochs", "checkpoint_every_epochs")
_DEFAULTS: _Data = {
    "train_on_all": True,  # Who scores has held examples back.
    # The run's directory is gone when `fit` returns, so nothing is written before the end.
    **dict.fromkeys(_PERIODS, 10**9),
}
_FEWEST_TO_STOP_BY = 50
_PATIENCE = 40
"""Examples, of fewer of which a tenth cannot say when members stop; and epochs after which they do,
without a better score of it. Members that hold each other's rows out need no such tenth."""
_MOST_TIMES = 10
"""Rows after repetition for each row before, beyond which weights multiply losses instead: each
repetition takes memory and steps."""
_PARAMETERS: Mapping[str, str] = {
    "mlp.widths": "hidden",
    "mlp.activation": "activation",
    "class_weights": "class_weight",
    **{
        name: name
        for name in (
            "ensemble_size",
            "model",
            "num_epochs",
            "batch_size",
            "optimizer",
            "learning_rate",
            "lr_schedule",
            "weight_decay",
            "num_devices",
            "method",
            "likelihood",
        )
    },
}
"""Parameters by the key of the configuration that they set."""
_SETTLED: Mapping[str, str] = {
    **dict.fromkeys(("dataset", "data_dir", "target"), "is settled by X and y: leave it out"),
    "seed": "is settled by random_state: leave it out",
    "split_by": "is for data that are split, and an estimator learns all rows of X: give the data "
    "frame to ensemble.train, with 'target' in its configuration",
}
"""Keys of the configuration that cannot be set, with the reason."""


@dataclass(eq=False, repr=False)
class Estimator(BaseEstimator):
    """What classifier and regressor share: parameters, training, and the ensemble that is kept."""

    ensemble_size: int = 8
    model: str = "mlp"
    num_epochs: int | None = 200
    batch_size: int = 32
    optimizer: str = "adam"
    learning_rate: float = 5e-3
    lr_schedule: str = "cosine"
    weight_decay: float = 1e-3
    num_devices: int | None = None
    random_state: int | np.random.RandomState | None = None
    config: _Data | None = None
    method: str = "kfold_bagging"
    hidden: Sequence[int] | None = (128, 128)
    activation: str | None = None
    verbose: bool = False
    n_jobs: int | None = None
    time_limit: float | str | None = None

    def _train(self, data: _Data, sample_weight: ArrayLike | None) -> None:
        import ensemble  # As the module says of JAX.

        if sample_weight is not None:
            data = weighted(data, sample_weight)
        data = in_order(data)
        defaults, given = self._settings(_num_examples(data))
        config = build(defaults, given).config
        shows = bool(self.verbose)
        self._limit_threads()
        if self.time_limit is None:
            result = ensemble.train(config, data, show_progress=shows)
        else:
            fixed = {**_DEFAULTS, "likelihood": config.likelihood, **given}
            result = ensemble.search(data, self.time_limit, None, fixed, show_progress=shows)
        self.report_ = result.report
        self.predictor_: Ensemble = result.predictor.without_examples()

    def _checked(self, X, y: ArrayLike, **of_y) -> tuple[Any, NDArray]:
        """Inputs, of a data frame its columns, and targets [N], as scikit-learn checks them."""
        # As the module says of JAX.
        from ensemble.data.tables import is_table

        y = _finite(y, is_number=of_y.get("y_numeric", False))
        if not is_table(X):
            _check_finite(X)
            inputs, targets = validate_data(self, X, y, ensure_min_samples=2, **of_y, **_INPUTS)
            self._offset = rounding.offset(inputs)
            return _as_learned(inputs, self._offset), targets
        from ensemble.data.tables.columns import of_frame  # Of data frames alone.

        columns = of_frame(X, "X")
        targets = validate_data(self, "no_validation", y, **of_y)
        validate_data(self, X, targets, skip_check_array=True)  # Names.
        check_consistent_length(X, targets)
        return columns, targets

    def predict_uncertainty(self, X: Any) -> Predictive:
        """Returns predictions with their uncertainty, as `ensemble.load(workdir)(X)` does.

        Args:
            X: [N, ...], like what was learned.

        Returns:
            Predictions of classes: `probs` [N, C] and `labels` [N], positions in `classes_`, and in
            nats [N] `total_uncertainty`, `aleatoric_uncertainty` and `epistemic_uncertainty`. Of
            numbers, in the unit of y: `mean`, `median`, `std`, `aleatoric_std` and `epistemic_std`
            [N], and `quantiles(levels)` [N, Q].

        Raises:
            NotFittedError: before `fit`.
            ValueError: X is not like what was learned.
        """
        # As the module says of JAX.
        from ensemble.data.tables import is_table
        from ensemble.runtime.predict import MAX_BATCH_SIZE
        from ensemble.sharding import startup
        from ensemble.sharding.transfer import pad

        check_is_fitted(self)
        self._limit_threads()
        startup.configure(self.num_devices)  # As unpickled, it may be the first to start JAX.
        table = self.predictor_.dataset.table
        if table is None:
            _check_finite(X)
            inputs = _as_learned(validate_data(self, X, reset=False, **_INPUTS), self._offset)
        else:
            validate_data(self, X, reset=False, skip_check_array=True)  # Names.
            named = X if is_table(X) else dict(zip(self.feature_names_in_, X.T, strict=True))
            inputs = table.encode(named)
        # All forward passes have one shape: one program is compiled, and what a member predicts for
        # an example is the same, to the last bit, whatever else is in X.
        padded = pad(inputs, len(inputs) + -len(inputs) % MAX_BATCH_SIZE)
        return self.predictor_.of_inputs(padded).rows(slice(len(inputs)))

    def _limit_threads(self) -> None:
        """Heeds `n_jobs`: a negative number counts back from all cores, which are -1.

        Raises:
            InputError: It is no number of threads, or devices need more.
        """
        from ensemble.sharding.startup import limit_threads, num_cores  # It imports JAX.

        found: Any = self.n_jobs
        if found is None:
            return
        is_whole = isinstance(found, Integral) and found != 0
        if is_whole and found < 0:
            found = max(1, num_cores() + 1 + found)
        if not is_whole or (self.num_devices or 1) > found:
            raise InputError(
                f"num_devices={self.num_devices}, n_jobs={self.n_jobs!r} must be a whole number, "
                "not below the number of devices; -1 for all cores, or None"
            )
        limit_threads(int(found))

    def _settings(self, num_examples: int) -> tuple[_Data, _Data]:
        """Keys of the configuration with the values of defaults, and those that were set.

        Raises:
            InputError: `config` holds a key that has its place elsewhere.
        """
        params = self.get_params(deep=False)
        usual = {one.name: one.default for one in fields(self)}
        given = by_path(params["config"] or {})
        defaults: _Data = {"dataset": "arrays", **_DEFAULTS}
        for key, value in given.items():
            why = _SETTLED.get(key)
            if _PARAMETERS.get(key) in params:
                why = f"is a parameter: {_PARAMETERS[key]}={value!r}"
            if why:
                raise InputError(f"config has {key!r}: {key}={value!r} {why}")
        for key, name in _PARAMETERS.items():
            value = params.get(name)
            default: Any = usual.get(name)
            if value is None:
                continue
            if default is not None:
                defaults[key] = default
            if not np.array_equal(value, default):  # It may be an array.
                given[key] = self._of_classes(value) if isinstance(value, Mapping) else value
        method = self.method
        own = fields_for({"method": method}) if method in METHODS.names else {}
        if "num_chains" in own:  # A member of a posterior is a chain.
            given.setdefault("num_chains", given.pop("ensemble_size", self.ensemble_size))
        if method == usual["method"]:
            defaults["scaler"] = "robust"
        elif "early_stopping_epochs" in own and num_examples >= _FEWEST_TO_STOP_BY:
            defaults["early_stopping_epochs"] = _PATIENCE
        return defaults, {**given, "seed": _seed(params["random_state"])}

    def _of_classes(self, weights: Mapping[Any, float]) -> list[float]:
        """Weights of labels, in the order of the classes."""
        try:
            return compute_class_weight(weights, classes=self.classes_, y=self.classes_).tolist()
        except ValueError as error:
            raise InputError(f"class_weight={weights}: {in_one_line(error)}") from None


def _as_learned(inputs: NDArray, offset) -> NDArray:
    """Inputs as uint8 or float32, less an offset."""
    if np.any(offset):
        inputs = inputs - offset
    with np.errstate(over="ignore"):  # It is refused as infinite.
        return inputs if inputs.dtype == np.uint8 else inputs.astype(np.float32, copy=False)


def _finite(y: ArrayLike, is_number: bool) -> ArrayLike:
    """Targets in which none is missing, infinite or, where they are numbers, a text.

    Raises:
        InputError: as said.
    """
    # As the module says of JAX.
    from ensemble.data.labels import as_plain

    values = as_plain(y, "y")
    if not values.ndim:
        return y  # None, or a number: scikit-learn's own checks refuse it.
    if is_number and values.dtype.kind in "OUS":
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"y holds no numbers ({in_one_line(error)}); EnsembleClassifier is for classes"
            ) from None
    is_bad = values.dtype.kind == "f" and ~np.isfinite(values)
    if np.any(is_bad):
        first = tuple(np.argwhere(is_bad)[0])
        raise InputError(
            f"y is {values[first]} for example {first[0]}, and {np.sum(is_bad)} of {values.size} "
            "targets are missing or infinite: leave such examples out"
        )
    return values if values.dtype.kind in "buif" else y


def _check_finite(X) -> None:
    """Checks arrays of numbers; scikit-learn checks all else of them.

    Raises:
        InputError: a number is missing or infinite.
    """
    if isinstance(X, np.ndarray) and X.dtype.kind == "f" and not np.isfinite(X).all():
        first = np.argwhere(~np.isfinite(X))[0]
        raise InputError(
            f"X holds NaN or inf, first in example {first[0]}; arrays must be finite: fill such "
            "values, or give a data frame, whose missing values are learned"
        )


def _seed(random_state: int | np.random.RandomState | None) -> int:
    """A whole number as it is, else one drawn as scikit-learn draws."""
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**32, dtype=np.uint32))


@dataclass(eq=False, repr=False)
class EnsembleClassifier(ClassifierMixin, Estimator):
    """A deep ensemble, trained by `ensemble.train` on all the examples that `fit` is given.

    The parameters are keys of the configuration; all other keys are in `config`. The defaults are
    those of `configs/tabular.py`: every example is learned by most members and held out by some,
    which say when to stop, whether to start from a linear model, and how wide predictions are.
    `report_["kfold_bagging"]["summary"]` says what was chosen; with a `time_limit`
    `report_["search"]` and `report_["selection"]` do. Features are scaled by the ensemble itself.
    Images go in as they are, [N, H, W] or [N, H, W, C], where `model` is a network for images.

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
        random_state: a whole number is `config.seed`, so that equal numbers give equal bits; a
            `RandomState` is drawn from, and None draws from NumPy's own, as in scikit-learn.
        config: a mapping of other keys of the configuration, such as
            `{'label_smoothing': 0.1}`.
        method: 'kfold_bagging'; 'deep_ensemble', whose members learn all examples but a tenth that
            stops them; or 'hmc', 'nuts', 'mclmc' or 'adjusted_mclmc' for draws of the posterior by
            `ensemble_size` chains; and all others that learn from data.
        hidden: units of each hidden layer of the model 'mlp'; None: two of 256.
        activation: of 'mlp': 'relu', 'tanh', 'silu' or 'gelu'; None: 'relu'.
        verbose: whether to show progress.
        n_jobs: threads that JAX computes with on CPUs; None: all cores, -1 too. JAX settles them
            when it starts in a process, and keeps them. Programs are compiled by further threads.
        time_limit: time that the fit may take, in seconds or such as '10m': families of networks
            are tried and the best are mixed, see `ensemble.search`. Parameters that are not as by
            default stay as they are in all of them. None: one family, trained once.
        class_weight: how much each class counts: 'balanced', or a mapping from labels, of which
            those left out count 1; None: all the same. `predict` then decides by probability times
            weight; the probabilities themselves are corrected for the weights.

    Attributes:
        classes_: [C], the labels, sorted.
        n_features_in_: F, the second axis of what was learned.
        feature_names_in_: [F], where X was a data frame with such names.
        predictor_: an `Ensemble`; its labels are positions in `classes_`.
        report_: what the run reports: configuration, members alive and failed, timing.
    """

    class_weight: Mapping[Any, float] | str | None = None

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> EnsembleClassifier:
        """Trains a new ensemble on all of the examples.

        Args:
            X: [N, F] finite numbers, or images [N, H, W] or [N, H, W, C]; or a data frame of
                numbers, truth values, categories and dates, with missing values.
            y: [N] labels of two or more classes, numbers or strings.
            sample_weight: [N], how much each example counts; None: all the same. Whole numbers
                repeat examples, unless they add up to more than 10 times as many.

        Returns:
            The classifier itself.

        Raises:
            ValueError: X or y cannot be learned.
            InputError: nor can this configuration; it is a ValueError, too.
            TrainingError: every member became non-finite.
            Interrupted: SIGTERM or Ctrl-C.
        """
        inputs, targets = self._checked(X, y)
        check_classification_targets(targets)
        self.classes_, labels = np.unique(targets, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(
                f"y holds the one class {self.classes_[0]}; classification needs two or more"
            )
        names = np.array([str(name) for name in self.classes_])
        data = {"train_inputs": inputs, "train_labels": labels, "class_names": names}
        self._train(data, sample_weight)
        # Probabilities are corrected for them.
        self._decide_by = self.report_["dataset"].get("class_weights")
        return self

    def predict(self, X: ArrayLike) -> NDArray:
        """Returns the most probable label of each example [N]; with `class_weight`, the largest
        product of probability and weight.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X is not like what was learned.
        """
        p: Any = self.predict_uncertainty(X)
        weights = self._decide_by
        labels = p.labels if weights is None else (p.probs * weights).argmax(axis=1)
        return self.classes_[labels]

    def predict_proba(self, X: ArrayLike) -> NDArray:
        """Returns the mean of the members' probabilities [N, C], float64, ordered as `classes_`.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X is not like what was learned.
        """
        p: Any = self.predict_uncertainty(X)
        return p.probs / p.probs.sum(axis=1, keepdims=True)


@dataclass(eq=False, repr=False)
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

    def predict(self, X: ArrayLike, return_std: bool = False) -> NDArray | tuple[NDArray, NDArray]:
        """Returns the mean of the mixture of members for each example, [N] or [N, D] float64.

        With `likelihood='quantiles'`, which have no mean, it is the median.

        Args:
            X: [N, ...], like what was learned.
            return_std: whether the mixture's standard deviations [N] or [N, D] are returned too.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X is not like what was learned.
            AttributeError: quantiles were learned, which have no deviation.
        """
        found: Any = self.predict_uncertainty(X)
        return (found.point, found.std) if return_std else found.point

    def predict_quantiles(self, X: ArrayLike, levels: Sequence[float]) -> NDArray:
        """Returns quantiles of the mixture of members, [N, Q] or [N, D, Q], in the units of y.

        Args:
            X: [N, ...], like what was learned.
            levels: [Q], each above 0 and below 1; with `likelihood='quantiles'` of those learned.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X is not like what was learned, or a level is none.
        """
        wanted = np.atleast_1d(levels)
        is_number = wanted.dtype.kind == "f" and wanted.ndim == 1 and len(wanted)
        if not is_number or not ((wanted > 0) & (wanted < 1)).all():
            raise InputError(f"levels={levels!r} must be numbers above 0 and below 1")
        p: Any = self.predict_uncertainty(X)
        return p.quantiles(wanted.astype(np.float64))

    def predict_interval(self, X: ArrayLike, coverage: float = 0.9) -> NDArray:
        """Returns the central interval of the mixture, [N, 2] or [N, D, 2], in the units of y.

        Args:
            X: [N, ...], like what was learned.
            coverage: the share of targets that it is to cover, as likely missed on either side.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X is not like what was learned, or the coverage is none.
        """
        if not isinstance(coverage, Real) or not 0 < coverage < 1:
            raise InputError(f"coverage={coverage!r} must be above 0 and below 1")
        return self.predict_quantiles(X, [(1 - coverage) / 2, (1 + coverage) / 2])

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


# Whole sample weights repeat rows, and rows that repeat are learned in an order of their own
# (decision 0071).


def _num_examples(data: _Data) -> int:
    return len(data["train_labels" if "train_labels" in data else "train_targets"])


def _of_rows(data: _Data) -> list[str]:
    """The entries that have a row for each example."""
    return [key for key in data if key.startswith("train_") or key == "sample_weight"]


def _taken(data: _Data, rows: NDArray) -> _Data:
    """What is learned, of some rows; inputs are an array or columns."""
    found = {}
    for key in _of_rows(data):
        one = data[key]
        if isinstance(one, Mapping):
            found[key] = {name: column.rows(rows) for name, column in one.items()}
        else:
            found[key] = one[rows]
    return {**data, **found}


def weighted(data: _Data, sample_weight: ArrayLike) -> _Data:
    """Repeats each row as often as its weight says, or keeps the weights if they are not whole.

    Rows of weight 0 do not count, and are left out.

    Args:
        data: what is learned.
        sample_weight: [N], not negative.
    """
    like = np.empty(_num_examples(data))
    weights = _check_sample_weight(sample_weight, like, ensure_non_negative=True)
    rows = np.flatnonzero(weights > 0)
    weights = weights[rows]
    is_whole = (weights == np.floor(weights)).all()
    if is_whole and weights.sum() <= _MOST_TIMES * len(rows):
        return _taken(data, np.repeat(rows, weights.astype(np.int64)))
    return {**_taken(data, rows), "sample_weight": weights}


def in_order(data: _Data) -> _Data:
    """Brings rows into an order that their content alone decides, if some of them are equal.

    Rows that all differ stay as they are, so that their fits are those of `ensemble.train`.

    Args:
        data: what is learned.
    """
    # As the module says of JAX.
    from ensemble.data.splitting import digest_examples
    from ensemble.data.tables.columns import digest_rows

    each = [
        digest_rows(one) if isinstance(one, Mapping) else digest_examples(one.reshape(len(one), -1))
        for one in (data[key] for key in _of_rows(data))
    ]
    rows = digest_examples(np.stack(each, axis=1))
    if len(np.unique(rows)) == len(rows):
        return data
    return _taken(data, np.argsort(rows, kind="stable"))
