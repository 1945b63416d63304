"""What classifier and regressor share: parameters, training, and the ensemble that is kept.

What brings JAX is imported where there is something to learn or to predict: a program may import
the estimators, and never use them.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.validation import check_is_fitted, validate_data

from ensemble import rounding
from ensemble.config import build, by_path, fields_for
from ensemble.config.builtin import METHODS
from ensemble.errors import InputError, in_one_line

if TYPE_CHECKING:
    from ensemble.likelihoods.predictive import Predictive
    from ensemble.predictor import Ensemble

_INPUTS: Mapping[str, Any] = {"dtype": [np.float64, np.float32, np.uint8], "allow_nd": True}
"""How scikit-learn checks X: images may be whole numbers, all else are floats."""
_AT_THE_END = 10**9
_DEFAULTS: Mapping[str, Any] = {
    "train_on_all": True,  # Who scores has held examples back.
    # The run's directory is gone when `fit` returns, so nothing is written before the end.
    "log_every_steps": _AT_THE_END,
    "eval_every_epochs": _AT_THE_END,
    "checkpoint_every_epochs": _AT_THE_END,
}
_FEWEST_TO_STOP_BY = 50
_PATIENCE = 40
"""Examples, of fewer of which a tenth cannot say when members stop; and epochs after which they do,
without a better score of it. Members that hold each other's rows out need no such tenth."""
_PARAMETERS: Mapping[str, str] = {
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
    "hidden": "mlp.widths",
    "activation": "mlp.activation",
    "class_weight": "class_weights",
}
"""Keys of the configuration by the parameter that sets them."""
_SETTLED: Mapping[str, str] = {
    **dict.fromkeys(("dataset", "data_dir", "target"), "is settled by X and y: leave it out"),
    "seed": "is settled by random_state: leave it out",
    "split_by": "is for data that are split, and an estimator learns all rows of X: give the data "
    "frame to ensemble.train, with 'target' in its configuration",
}
"""Keys of the configuration that cannot be set, with the reason."""


@dataclasses.dataclass(eq=False, repr=False)
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
    config: Mapping[str, Any] | None = None
    method: str = "kfold_bagging"
    hidden: Sequence[int] | None = (128, 128)
    activation: str | None = None
    verbose: bool = False
    n_jobs: int | None = None
    time_limit: float | str | None = None

    def _train(self, data: Mapping[str, Any], sample_weight: ArrayLike | None) -> None:
        # As the module says of JAX.
        import ensemble
        from ensemble.sharding.startup import limit_threads
        from ensemble.sklearn import repetition

        if sample_weight is not None:
            data = repetition.weighted(data, sample_weight)
        data = repetition.in_order(data)
        defaults, given = self._settings(repetition.num_examples(data))
        config = build(defaults, given).config
        shows = bool(self.verbose)
        limit_threads(self._num_threads())
        if self.time_limit is None:
            result = ensemble.train(config, data, show_progress=shows)
        else:
            fixed = {**_DEFAULTS, "likelihood": config.likelihood, **given}
            result = ensemble.search(data, self.time_limit, None, fixed, show_progress=shows)
        self.report_ = result.report
        self.predictor_: Ensemble = result.predictor.without_examples()

    def _checked(self, X: Any, y: ArrayLike, **of_y: Any) -> tuple[Any, np.ndarray]:
        """Inputs, of a data frame its columns, and targets [N], as scikit-learn checks them."""
        # As the module says of JAX.
        from ensemble.data.tables import is_table

        y = _finite(y, is_number=of_y.get("y_numeric", False))
        if not is_table(X):
            _check_finite(X)
            inputs, targets = validate_data(self, X, y, ensure_min_samples=2, **of_y, **_INPUTS)
            self._offset = rounding.offset(inputs)
            return _as_learned(inputs, self._offset), targets
        from ensemble.data.tables.raw_columns import of_frame  # Of data frames alone.

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
        startup.limit_threads(self._num_threads())
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

    def _num_threads(self) -> int | None:
        """What `n_jobs` says: a negative number counts back from all cores, which are -1.

        Raises:
            InputError: It is no number of threads, or devices need more.
        """
        from ensemble.sharding.startup import num_cores  # It imports JAX.

        if self.n_jobs is None:
            return None
        if not isinstance(self.n_jobs, numbers.Integral) or not self.n_jobs:
            raise InputError(
                f"n_jobs={self.n_jobs!r} must be a whole number, -1 for all cores, or None"
            )
        found = int(self.n_jobs)
        if found < 0:
            found = max(1, num_cores() + 1 + found)
        if self.num_devices and self.num_devices > found:
            raise InputError(
                f"num_devices={self.num_devices} takes as many threads, more than "
                f"n_jobs={self.n_jobs}: lower it, or leave one of the two out"
            )
        return found

    def _settings(self, num_examples: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Keys of the configuration with the values of defaults, and those that were set.

        Raises:
            InputError: `config` holds a key that has its place elsewhere.
        """
        params = self.get_params(deep=False)
        usual = {one.name: one.default for one in dataclasses.fields(self)}
        keys = {name: key for name, key in _PARAMETERS.items() if name in params}
        given = by_path(params["config"] or {})
        refused = {key: f"is a parameter: {name}={given.get(key)!r}" for name, key in keys.items()}
        for key, why in {**refused, **_SETTLED}.items():
            if key in given:
                raise InputError(f"config has {key!r}: {key}={given[key]!r} {why}")
        defaults: dict[str, Any] = {"dataset": "arrays", **_DEFAULTS}
        for name in [one for one in keys if params[one] is not None]:
            value = params[name]
            default: Any = usual[name]
            if default is not None:
                defaults[keys[name]] = default
            if not np.array_equal(value, default):  # It may be an array.
                is_list = name in ("hidden", "class_weight")
                given[keys[name]] = self._listed(value) if is_list else value
        method = self.method
        own = fields_for({"method": method}) if method in METHODS.names else {}
        if "num_chains" in own:  # A member of a posterior is a chain.
            given.setdefault("num_chains", given.pop("ensemble_size", self.ensemble_size))
        if method == usual["method"]:
            defaults["scaler"] = "robust"
        elif "early_stopping_epochs" in own and num_examples >= _FEWEST_TO_STOP_BY:
            defaults["early_stopping_epochs"] = _PATIENCE
        return defaults, {**given, "seed": _seed(params["random_state"])}

    def _listed(self, value: Any) -> Any:
        """Numbers as the configuration has them, in a list; those of classes by their order."""
        if isinstance(value, str):
            return value
        if isinstance(value, Mapping):
            try:
                value = compute_class_weight(value, classes=self.classes_, y=self.classes_)
            except ValueError as error:
                raise InputError(f"class_weight={value}: {in_one_line(error)}") from None
        return np.atleast_1d(value).tolist()


def _as_learned(inputs: np.ndarray, offset: Any) -> np.ndarray:
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
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        is_bad = ~np.isfinite(values)
        first = tuple(np.argwhere(is_bad)[0])
        raise InputError(
            f"y is {values[first]} for example {first[0]}, and {np.sum(is_bad)} of {values.size} "
            "targets are missing or infinite: leave such examples out"
        )
    return values if values.dtype.kind in "buif" else y


def _check_finite(X: Any) -> None:
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
    if isinstance(random_state, numbers.Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**32, dtype=np.uint32))
