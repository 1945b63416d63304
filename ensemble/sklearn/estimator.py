"""What classifier and regressor share: parameters, training, and the ensemble that is kept.

What brings JAX is imported where there is something to learn or to predict: a program may import
the estimators, and never use them.
"""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ml_collections
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ensemble import rounding
from ensemble.config import build, by_path, fields_for, flatten
from ensemble.config.pieces import METHODS
from ensemble.errors import InputError, shown

if TYPE_CHECKING:
    from ensemble.likelihoods.predictive import Predictive
    from ensemble.predictor import Ensemble

_INPUTS: Mapping[str, Any] = {"dtype": [np.float64, np.float32, np.uint8], "allow_nd": True}
"""How scikit-learn checks X: images may be whole numbers, all else are floats."""
_AT_THE_END = 10**9
_DEFAULTS: Mapping[str, Any] = {
    "train_on_all": True,  # Who scores has held examples back; `_with_validation` takes the others.
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
_LISTS = ("mlp.widths", "class_weights")
"""Keys whose values are numbers in one text."""
_FROM_FIT = ("dataset", "data_dir", "seed", "target")
"""Keys of the configuration that `X`, `y` and `random_state` settle."""


class Estimator(BaseEstimator):
    """What classifier and regressor share: parameters, training, and the ensemble that is kept."""

    num_devices: int | None
    n_jobs: int | None = None  # Estimators that were stored by earlier versions have none.
    time_limit: float | str | None = None  # Likewise.

    def _keep(self, given: Mapping[str, Any]) -> None:
        """Keeps a constructor's parameters, which scikit-learn wants listed in each class."""
        for name in self._get_param_names():
            setattr(self, name, given[name])

    def _train(self, data: Mapping[str, Any], sample_weight: ArrayLike | None) -> None:
        # As the module says of JAX.
        import ensemble
        from ensemble.sharding.startup import limited_threads
        from ensemble.sklearn import repetition

        if sample_weight is not None:
            data = repetition.weighted(data, sample_weight)
        data, equal = repetition.in_order(data)
        config = self._run_config(repetition.num_examples(data))
        if config.get("early_stopping_epochs") and "kfold_bagging" not in config:
            data = _with_validation(data, config.seed, equal)
        is_shown = bool(self.verbose)
        with limited_threads(self._num_threads()):
            if self.time_limit is None:
                result = ensemble.train(config, data, show_progress=is_shown)
            else:
                given = self._of_all_families(config)
                result = ensemble.search(data, self.time_limit, None, given, show_progress=is_shown)
        self.report_ = result.report
        self._ensemble: dict[str, Any] = result.predictor.without_examples()
        self.__dict__.pop("predictor_", None)  # Of an earlier fit.
        self.predictor_  # noqa: B018 -- Built here, as predicting may change no attribute.

    def _checked(self, X: Any, y: ArrayLike, **of_y: Any) -> tuple[Any, np.ndarray]:
        """Inputs, of a data frame its columns, and targets [N], as scikit-learn checks them."""
        # As the module says of JAX.
        from ensemble.data.tables import is_table

        y = _finite(y, is_number=of_y.get("y_numeric", False))
        if not is_table(X):
            _check_finite(X)
            inputs, targets = validate_data(self, X, y, ensure_min_samples=2, **of_y, **_INPUTS)
            self._offset = rounding.offset(inputs)
            return self._as_learned(inputs), targets
        from ensemble.data.tables.raw_columns import of_frame  # Of data frames alone.

        columns = of_frame(X, "X")
        targets = validate_data(self, "no_validation", y, **of_y)
        validate_data(self, X, targets, skip_check_array=True)  # Names.
        check_consistent_length(X, targets)
        return columns, targets

    def _as_learned(self, inputs: np.ndarray) -> np.ndarray:
        """Inputs as uint8 or float32, less a constant if float32 cannot tell them apart."""
        if self._offset is not None:
            inputs = inputs - self._offset
        with np.errstate(over="ignore"):  # It is refused as infinite.
            return inputs if inputs.dtype == np.uint8 else inputs.astype(np.float32, copy=False)

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
        from ensemble.runtime.predict import MAX_BATCH_SIZE
        from ensemble.sharding.transfer import pad

        check_is_fitted(self)
        table = self.predictor_.dataset.table
        if table is None:
            _check_finite(X)
            inputs = self._as_learned(validate_data(self, X, reset=False, **_INPUTS))
        else:
            validate_data(self, X, reset=False, skip_check_array=True)  # Names.
            inputs = table.encode(X)
        # All forward passes have one shape: one program is compiled, and what a member predicts for
        # an example is the same, to the last bit, whatever else is in X.
        padded = pad(inputs, len(inputs) + -len(inputs) % MAX_BATCH_SIZE)
        return self.predictor_.of_inputs(padded).rows(slice(len(inputs)))

    @functools.cached_property
    def predictor_(self) -> Ensemble:
        """The ensemble as a function of X; less `_offset`, if float32 cannot tell X apart."""
        # As the module says of JAX.
        from ensemble.predictor import Ensemble
        from ensemble.sharding import startup

        check_is_fitted(self)
        with startup.limited_threads(self._num_threads()):
            startup.configure(self.num_devices)  # As unpickled, it may be the first to start JAX.
        return Ensemble(**self._ensemble, num_devices=self.num_devices)

    def _num_threads(self) -> int | None:
        """What `n_jobs` says: a negative number counts back from all cores, which are -1.

        Raises:
            InputError: it is no number of threads, or devices need more.
        """
        from ensemble.sharding import startup  # It imports JAX.

        if self.n_jobs is None:
            return None
        is_whole = isinstance(self.n_jobs, numbers.Integral) and not isinstance(self.n_jobs, bool)
        if not is_whole or not self.n_jobs:
            raise InputError(
                f"n_jobs={self.n_jobs!r} must be a whole number, -1 for all cores, or None"
            )
        found = int(self.n_jobs)
        if found < 0:
            found = max(1, startup.num_cores() + 1 + found)
        if self.num_devices is not None and self.num_devices > found:
            raise InputError(
                f"num_devices={self.num_devices} takes as many threads, more than "
                f"n_jobs={self.n_jobs}: lower it, or leave one of the two out"
            )
        return found

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("predictor_", None)  # Compiled programs belong to their process.
        return state

    def _run_config(self, num_examples: int) -> ml_collections.FrozenConfigDict:
        """Joins parameters, `config` and defaults.

        Raises:
            InputError: `config` holds a key that has its place elsewhere, or is not valid.
        """
        params = self.get_params(deep=False)
        config = by_path(params["config"] or {})
        named = {name: key for key, name in _PARAMETERS.items()}
        for key, value in config.items():
            if key in named and named[key] in params:
                raise InputError(
                    f"config has {key!r}, which is a parameter: {named[key]}={value!r}"
                )
            if key == "split_by" and value:
                raise InputError(
                    f"config has split_by={value!r}, and an estimator learns all rows of X: give "
                    "the data frame to ensemble.train, with 'target' in its configuration"
                )
            if key in _FROM_FIT:
                raise InputError(
                    f"config has {key!r}, which comes from X, y and random_state: leave it out"
                )
        defaults = inspect.signature(type(self)).parameters
        given = {
            _PARAMETERS[name]: value
            for name, value in params.items()
            if name in _PARAMETERS and value is not None
        }
        chosen = self._chosen()
        if self.model != defaults["model"].default and "mlp.widths" not in chosen:
            given.pop("mlp.widths", None)  # The default model's.
        given |= {key: self._listed(given[key]) for key in _LISTS if key in given}
        if "num_chains" in _keys_of(self.method):
            chosen.discard("ensemble_size")  # A member of a posterior is a chain.
            given.setdefault("num_chains", config.get("num_chains", given.pop("ensemble_size")))
        whole = {**_DEFAULTS, **config, **given}
        if self.method == defaults["method"].default:
            whole.setdefault("scaler", "robust")
        keys = _keys_of(self.method)
        stops_by_a_tenth = "early_stopping_epochs" in keys and "kfold_bagging.folds" not in keys
        if stops_by_a_tenth and num_examples >= _FEWEST_TO_STOP_BY:
            whole.setdefault("early_stopping_epochs", _PATIENCE)
        whole["seed"] = _seed(params["random_state"])
        # What is a default is left out where the run's method has no such key.
        by_hand = {key: whole[key] for key in (*config, *chosen, "method")}
        others = {key: value for key, value in whole.items() if key not in by_hand}
        return build({"dataset": "arrays", **others}, by_hand).config

    def _of_all_families(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The keys that all families of a search have: what differs from the defaults."""
        fixed = {*_DEFAULTS, *flatten(self.config or {}), *self._chosen(), "likelihood", "seed"}
        return {key: value for key, value in flatten(config).items() if key in fixed}

    def _chosen(self) -> set[str]:
        """The keys of parameters that are not as by default."""
        defaults = inspect.signature(type(self)).parameters
        params = self.get_params(deep=False)
        return {
            _PARAMETERS[name]
            for name in params.keys() & _PARAMETERS.keys()
            if params[name] != defaults[name].default
        }

    def _listed(self, value: Any) -> str:
        """Numbers as the configuration has them, in one text; those of classes by their order."""
        if isinstance(value, str):
            return value
        if isinstance(value, Mapping):
            known = self.classes_.tolist()
            unknown = [label for label in value if label not in known]
            if unknown and any(label not in value for label in known):  # As scikit-learn has it.
                raise InputError(
                    f"class_weight has {', '.join(map(str, unknown))}, which y does not hold, and "
                    "leaves out classes of y: correct its labels"
                )
            value = [value.get(label, 1) for label in self.classes_]
        return ",".join(map(str, np.atleast_1d(value).tolist()))


def _keys_of(method: str) -> Mapping[str, Any]:
    """The keys of a method; of one that there is not, none."""
    return fields_for({"method": method}) if method in METHODS.names else {}


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
        values = np.reshape([_number(one) for one in values.ravel()], values.shape)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        is_bad = ~np.isfinite(values)
        first = tuple(np.argwhere(is_bad)[0])
        raise InputError(
            f"y is {values[first]} for example {first[0]}, and {np.sum(is_bad)} of {values.size} "
            "targets are missing or infinite: leave such examples out"
        )
    return values if values.dtype.kind in "buif" else y


def _number(value: Any) -> float:
    try:
        return float("nan" if value is None else value)
    except (TypeError, ValueError):
        raise InputError(
            f"y holds {shown(str(value))}, which is no number; EnsembleClassifier is for classes"
        ) from None


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


def _with_validation(
    data: Mapping[str, Any], seed: int, equal: NDArray[np.uint64] | None
) -> dict[str, Any]:
    """Data of which a tenth of the examples, at random, are the validation split.

    Args:
        data: what is learned.
        seed: of the choice.
        equal: [N], by which equal inputs are known, to be kept together; None if no row repeats.

    Raises:
        InputError: there are too few.
    """
    # As the module says of JAX.
    from ensemble.data.copies import keep_together
    from ensemble.data.own_arrays import WEIGHTS
    from ensemble.data.splitting import carved_sizes, stratified_split
    from ensemble.sklearn import repetition

    num_examples = repetition.num_examples(data)
    sizes = carved_sizes(num_examples, ["validation"], "X")
    labels = data.get("train_labels", np.zeros(num_examples, int))
    parts = stratified_split(labels, [*sizes.values()], seed)
    if equal is not None:
        parts = keep_together(parts, equal)
    train_rows, validation_rows = parts
    held_out = repetition.taken(data, validation_rows)
    validation = {key.replace("train_", "validation_"): one for key, one in held_out.items()}
    weights = {key: one[train_rows] for key, one in data.items() if key == WEIGHTS}
    return {**data, **repetition.taken(data, train_rows), **weights, **validation}


def _seed(random_state: int | np.random.RandomState | None) -> int:
    """A whole number as it is, else one drawn as scikit-learn draws."""
    if isinstance(random_state, numbers.Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**32, dtype=np.uint32))
