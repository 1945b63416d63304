"""The classifier."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from ensemble.errors import InputError
from ensemble.sklearn.estimator import Estimator


@dataclasses.dataclass(eq=False, repr=False)
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

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Returns the most probable label of each example [N]; with `class_weight`, the largest
        product of probability and weight.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X is not like what was learned.
        """
        p: Any = self.predict_uncertainty(X)
        weights = self._decide_by
        labels = p.labels if weights is None else (p.probs * weights).argmax(axis=1)
        found: np.ndarray = self.classes_[labels]
        return found

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Returns the mean of the members' probabilities [N, C], float64, ordered as `classes_`.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X is not like what was learned.
        """
        p: Any = self.predict_uncertainty(X)
        found: np.ndarray = p.probs / p.probs.sum(axis=1, keepdims=True)
        return found
