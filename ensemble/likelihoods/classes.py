"""The base of all likelihoods of classes: a member's prediction is log p(class | input).

The ensemble's is the log of the mean of the members' probabilities, in log space.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp

from ensemble import metrics
from ensemble.errors import UserError
from ensemble.likelihood import (
    Arrays,
    Constant,
    Panel,
    Reduce,
    compared,
    mixture_log_density,
    weighted_mean,
)
from ensemble.likelihoods.class_view import ENTROPIES, LOG_PROBS, MeanOfSoftmax
from ensemble.metrics.checks import as_log_probs
from ensemble.pictures import examples, member_scores, reliability, uncertainty
from ensemble.pictures.plot_style import plural
from ensemble.scoring.sections import values_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ensemble.source import Source

UNCERTAINTIES = ("total", "aleatoric", "epistemic")
"""Parts of the predictive entropy, by the names of `ClassPrediction`."""


class ClassPrediction(NamedTuple):
    """What an ensemble says of N inputs.

    Attributes:
        probs: [N, C], the mean of softmax over members, at the predictor's temperature.
        label: [N], the most probable class.
        total: [N], entropy of the mean of softmax, nats; it and what follows know no temperature.
        aleatoric: [N], mean entropy of the members, nats.
        epistemic: [N], mutual information, nats: what the members disagree on.
        member_log_probs: [M, N, C]; of a posterior every draw is a member.
        accepted: [N] bool: whether the predictor is sure enough to answer; all, unless it abstains.
        class_names: C names, for tables.
    """

    probs: np.ndarray
    label: np.ndarray
    total: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray
    member_log_probs: np.ndarray
    accepted: np.ndarray
    class_names: Sequence[str] = ()

    @property
    def class_name(self) -> np.ndarray:
        """Names [N] of the most probable classes, as texts."""
        return np.asarray(self.class_names or range(self.probs.shape[1])).astype(str)[self.label]

    def cells(self, i: int) -> list[tuple[str, str | float]]:
        """The two most probable classes of prediction i, and its uncertainties."""
        names = self.class_names or range(self.probs.shape[1])
        first, second = np.argsort(-self.probs[i], kind="stable")[:2]
        return [
            ("class", str(names[first])),
            ("prob", self.probs[i, first]),
            ("runner-up", str(names[second])),
            ("prob", self.probs[i, second]),
            *((f"{name} nats", getattr(self, name)[i]) for name in UNCERTAINTIES),
        ]

    def __repr__(self) -> str:
        from ensemble.pictures import tabular  # Where a program shows predictions alone.

        return tabular.preview(self._heading(), len(self.probs), self.cells)

    def _repr_html_(self) -> str:
        from ensemble.pictures import tabular  # As in `__repr__`.

        return tabular.preview_html(self._heading(), len(self.probs), self.cells)

    def _heading(self) -> str:
        members = plural(len(self.member_log_probs), "member")
        return f"{plural(len(self.probs), 'prediction')} of {members}"


class Classes:
    """Targets are classes 0..C-1; a subclass says how C log-probabilities follow from its outputs.

    Args:
        class_names: one for each class.
        class_weights: [C], by which members learn and for which predictions are corrected; None:
            these are what the outputs say.

    Where an example of class c counts w_c times in the loss, the outputs learn to say q(c | input),
    in proportion to w_c p(c | input): so p is in proportion to q / w (Elkan 2001, "The foundations
    of cost-sensitive learning"). `predict` says p, all else is of q.
    """

    name: str
    num_outputs: int
    columns = ("accuracy", "nll", "brier", "ece")
    headline = ("accuracy", "nll", "ece")
    progress = "accuracy"
    takes_logits = has_density = True
    is_of_numbers = False
    loss, num_targets = "nll", 1
    why_not_evaluated = ""
    evaluator = "ensemble.evaluation.class_evaluator:ClassEvaluator"
    draw_scores = ("accuracy", "nll", "brier")
    traced = ("accuracy", "nll")

    def __init__(self, class_names: Sequence[str], class_weights: Sequence[float] | None = None):
        self.class_names = tuple(class_names)
        self.class_weights = None if class_weights is None else tuple(map(float, class_weights))

    def corrected(self, class_weights: Sequence[float]) -> Classes:
        """The same, whose predictions are corrected for class weights [C]."""
        return type(self)(self.class_names, class_weights)

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.class_names)

    # From the data, and from what a workdir says of them.

    @classmethod
    def of_data(cls, targets: np.ndarray, class_names: Sequence[str], **_: Any) -> Classes:
        """Makes the likelihood of labels [N].

        Raises:
            UserError: the targets are no classes.
        """
        if not class_names or np.asarray(targets).dtype.kind not in "iu":
            raise UserError(
                f"config.likelihood={cls.name!r} is for classes, and the targets are "
                f"{np.asarray(targets).dtype}: set config.likelihood='gaussian' for numbers"
            )
        return cls(class_names)

    @classmethod
    def described(cls, description: Mapping[str, Any]) -> Classes:
        """The inverse of `describe`.

        Raises:
            ValueError: the description is damaged or forged.
        """
        names = description["class_names"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("dataset.class_names must be texts")
        number = description["num_classes"]
        if len(names) < 2 or type(number) is not int or number != len(names):
            raise ValueError("dataset.class_names must be as many as num_classes, from 2")
        weights = description.get("class_weights")
        if weights is not None and not _are_weights(weights, number):
            raise ValueError("dataset.class_weights must be a positive number for each class")
        return cls(names, weights)

    def describe(self) -> dict[str, Any]:
        """Returns the classes, JSON-ready, and the weights that predictions are corrected for."""
        weights = self.class_weights
        return {
            "num_classes": self.num_classes,
            "class_names": list(self.class_names),
            **({} if weights is None else {"class_weights": list(weights)}),
        }

    # Pure functions on the devices.

    def class_log_probs(self, outputs: jax.Array) -> jax.Array:
        """Log p(class) [..., C] float32 of outputs [..., K]."""
        raise NotImplementedError

    def init(self, rng_key: jax.Array) -> dict[str, jax.Array]:
        """Classes need no parameters beside the network's."""
        return {}

    def log_prob(self, params: Mapping[str, Any], outputs: jax.Array, targets: Any) -> jax.Array:
        """Log-probability [B] of the labels, nats, in what the outputs say."""
        return at_labels(self.class_log_probs(outputs), targets)

    def smoothed_log_prob(self, outputs: jax.Array, targets: Any, smoothing: float) -> jax.Array:
        """The same with a share of the target spread evenly over the classes: SGD's objective."""
        log_probs = self.class_log_probs(outputs)
        return (1 - smoothing) * at_labels(log_probs, targets) + smoothing * log_probs.mean(-1)

    def expected_log_prob(
        self, params: Mapping[str, Any], outputs: jax.Array, taught: Mapping[str, jax.Array]
    ) -> jax.Array:
        """Log-probability [B] of a label, in the mean over what a teacher's `exported` says."""
        return jnp.sum(taught["probs"] * self.class_log_probs(outputs), axis=-1)

    def predict(self, params: Mapping[str, Any], outputs: jax.Array) -> dict[str, jax.Array]:
        """Log p(class) [B, C], corrected for class weights."""
        log_probs = self.class_log_probs(outputs)
        if self.class_weights is not None:
            log_probs = jax.nn.log_softmax(log_probs - np.log(self.class_weights))
        return {LOG_PROBS: log_probs}

    def tempered(self, predicted: Mapping[str, Any], factor: Any) -> dict[str, Any]:
        """One member's log-probabilities at a temperature, the factor."""
        return {**predicted, LOG_PROBS: jax.nn.log_softmax(predicted[LOG_PROBS] / factor)}

    def example_scores(self, predicted: Mapping[str, Any], targets: Any) -> dict[str, jax.Array]:
        """Accuracy, NLL in nats and Brier score [..., B] of one predictor."""
        log_probs = predicted[LOG_PROBS]
        of_label = at_labels(log_probs, targets)
        squares = jnp.sum(jnp.exp(log_probs) ** 2, axis=-1)
        return {
            "accuracy": is_right(log_probs, targets),
            "nll": -of_label,
            "brier": squares - 2 * jnp.exp(of_label) + 1,
        }

    def mixture_scores(
        self, predicted: Mapping[str, Any], targets: Any, live: jax.Array, over: Reduce
    ) -> dict[str, jax.Array]:
        """NLL and accuracy [B] of the mean of softmax over live members."""
        mean = mixture_log_density(predicted[LOG_PROBS], live, over)
        return {"nll": -at_labels(mean, targets), "accuracy": is_right(mean, targets)}

    # On the host.

    def pooled(self, arrays: Arrays, counts: np.ndarray) -> tuple[Arrays, np.ndarray]:
        """The means [M, 1, N, C] of the estimators' probabilities, and those of their entropies.

        Args:
            arrays: `LOG_PROBS` [M, K, N, C], and `ENTROPIES` of the first of these, which stand
                for several.
            counts: [K], how many each of these stands for.
        """
        log_probs = arrays[LOG_PROBS]
        known = arrays.get(ENTROPIES, np.zeros((len(log_probs), 0, log_probs.shape[2])))
        shares = counts / counts.sum()
        means, entropies = [], []
        for one, of_several in zip(log_probs, known, strict=True):
            each = np.asarray(one, np.float64)  # Of one member at a time: they may be many.
            means.append(logsumexp(each + np.log(shares)[:, None, None], axis=0))
            new = [metrics.entropies(single) for single in each[len(of_several) :]]
            entropies.append(shares @ np.stack([*of_several, *new]))
        found = {LOG_PROBS: np.stack(means)[:, None], ENTROPIES: np.stack(entropies)[:, None]}
        return found, counts.sum(keepdims=True)

    def check_predictions(self, arrays: Arrays, targets: np.ndarray | None = None) -> None:
        """Checks predictions that were read from a file.

        Raises:
            ValueError: log_probs are none, or entropies or targets do not belong to them.
        """
        if LOG_PROBS not in arrays:
            raise ValueError("there are no log_probs")
        log_probs, entropies = arrays[LOG_PROBS], arrays.get(ENTROPIES)
        shape, kind = log_probs.shape, log_probs.dtype.kind
        if len(shape) != 3 or 0 in shape or shape[2] != self.num_classes or kind != "f":
            raise ValueError(f"log_probs {shape} must be [M, N, {self.num_classes}] of floats")
        if targets is not None and (
            targets.dtype.kind not in "iu" or targets.min() < 0 or targets.max() >= shape[2]
        ):
            raise ValueError(f"targets must be classes in 0..{shape[2] - 1}")
        if np.isnan(log_probs).any():
            raise ValueError("log_probs hold NaN")
        as_log_probs(log_probs, ndim=3)
        if entropies is not None and (
            entropies.shape != shape[:2]
            or entropies.dtype.kind != "f"
            or not np.isfinite(entropies).all()
        ):
            raise ValueError(f"entropies must be finite, {shape[:2]}")

    def view(
        self, arrays: Arrays, targets: Any, member_of: Any = None, weights: Any = None
    ) -> MeanOfSoftmax:
        """What is scored, from predictions [M, N, C], as of `ensemble.scoring.view.View`.

        Raises:
            ValueError: a member has several estimators, which must have been pooled.
        """
        if member_of is not None and len(member_of) > member_of[-1] + 1:
            raise ValueError("a member of classes has one estimator, the mean over its own")
        return MeanOfSoftmax(arrays=arrays, targets=targets, member_of=member_of, weights=weights)

    def normal(self, mean: Any, deviation: Any) -> Any:
        """No normal distribution is one of classes."""
        raise NotImplementedError

    def constant(self, train_targets: np.ndarray) -> Constant:
        """Always answers the most frequent class of training, with the frequencies as chances."""
        counts = np.bincount(train_targets, minlength=self.num_classes)
        log_probs = np.log((counts + 1) / (counts + 1).sum())
        what = f"always answering {self.class_names[int(counts.argmax())]!r}"
        return Constant(what, "accuracy", (self, {LOG_PROBS: log_probs[None, None]}))

    def sentence(self, section: Mapping[str, Any], split: str, num_members: int) -> str:
        """Says in one line what the ensemble brings over its average member."""
        scores, mean = values_in(section), values_in(section, "mean")
        if num_members == 1:
            return (
                f"One member is right on {100 * scores['accuracy']:.2f}% of {split} examples, at "
                f"an NLL of {scores['nll']:.4f} nats."
            )
        gained = gain(scores["accuracy"], mean["accuracy"])
        return (
            f"The ensemble of {num_members} is right on {100 * scores['accuracy']:.2f}% of {split} "
            f"examples, {gained} than its average member. "
            f"Its NLL is {compared(scores['nll'], mean['nll'])}."
        )

    def posterior_sentence(
        self, section: Mapping[str, Any], average_draw: Mapping[str, float], split: str
    ) -> str:
        """Says in one line what averaging draws brings over a single draw."""
        whole = section["scores"]["accuracy"]["value"]
        return (
            f"The average over draws is right on {100 * whole:.2f}% of {split} examples, "
            f"{gain(whole, average_draw['accuracy'])} than a single draw on average."
        )

    def figures(self, arrays: Arrays, source: Source, split: str, title: str) -> dict[str, Figure]:
        """Draws the reliability diagram and, of pictures, the least certain ones."""
        log_probs, labels = arrays[LOG_PROBS], source.targets(split)
        drawn = {"reliability": reliability.reliability_diagram(log_probs, labels, title=title)}
        if source.has_pictures:
            drawn["uncertain"] = examples.uncertain_examples(
                lambda indices: source.read(split, indices).inputs,
                log_probs,
                labels,
                self.class_names,
            )
        return drawn

    def final_figures(
        self, arrays: Arrays, targets: np.ndarray, section: Mapping[str, Any]
    ) -> dict[str, Figure]:
        """Draws the members' scores beside the ensemble's, and the entropies."""
        return {
            "members": member_scores.member_scores(
                section,
                {
                    "accuracy": "accuracy (higher is better)",
                    "nll": "NLL in nats (lower is better)",
                },
                shares=("accuracy",),
            ),
            "entropy": uncertainty.entropy_histogram(arrays[LOG_PROBS], targets),
        }

    def curves(self) -> Sequence[Panel]:
        """Training loss, validation NLL and validation accuracy."""
        return (
            Panel("train", "loss", "Training loss", "loss (nats)"),
            Panel("validation", "nll", "Validation NLL (lower is better)", "NLL (nats)"),
            Panel("validation", "accuracy", "Validation accuracy", "accuracy", is_share=True),
        )

    def spread(self, arrays: Arrays) -> tuple[str, np.ndarray]:
        """The entropy of the mean of softmax, nats."""
        return "entropy", metrics.uncertainty(arrays[LOG_PROBS])["total"]

    # Of an ensemble as a function.

    def prediction(
        self,
        arrays: Arrays,
        temperature: float | None,
        threshold: float = metrics.ACCEPT_ALL,
        weights: Any = None,
    ) -> ClassPrediction:
        """What an ensemble says of N inputs.

        Args:
            arrays: of the members.
            temperature: T of probs = softmax(log p / T), where p is the members' mean.
            threshold: accepted is where 1 - max p lies below it.
            weights: [M] of the members, of sum 1; None: all the same.
        """
        log_probs = arrays[LOG_PROBS]
        mean = metrics.ensemble_log_probs(log_probs, weights)
        accepted = metrics.one_minus_max(mean) < threshold  # Before the temperature.
        if temperature is not None:
            mean = metrics.apply_temperature(mean, temperature)
        return ClassPrediction(
            probs=np.exp(mean),
            label=mean.argmax(axis=-1),
            member_log_probs=log_probs,
            class_names=self.class_names,
            accepted=accepted,
            **metrics.uncertainty(log_probs, arrays.get(ENTROPIES), weights),
        )

    def uncertainty(self, prediction: ClassPrediction) -> np.ndarray:
        """The total uncertainty [N], nats."""
        return prediction.total

    def entry(self, prediction: ClassPrediction, i: int) -> dict[str, Any]:
        """Label, class, probabilities and uncertainties of prediction i, JSON-ready."""
        label = int(prediction.label[i])
        return {
            "label": label,
            "class": self.class_names[label],
            "probs": prediction.probs[i].tolist(),
            **{name: float(getattr(prediction, name)[i]) for name in UNCERTAINTIES},
        }

    def legend(self) -> dict[str, Any]:
        """The names of the classes."""
        return {"class_names": self.class_names}

    def cells(self, prediction: ClassPrediction, i: int) -> list[tuple[str, str | float]]:
        """The two most probable classes of prediction i, and its uncertainties."""
        return prediction.cells(i)

    def as_columns(self, prediction: ClassPrediction) -> dict[str, np.ndarray]:
        """Labels, classes, a column of probabilities for each class, and uncertainties."""
        probs = zip(self.class_names, prediction.probs.T, strict=True)
        return {
            "label": prediction.label,
            "class": np.array(self.class_names, object)[prediction.label],
            **{f"prob_{name}": values for name, values in probs},
            **{name: getattr(prediction, name) for name in UNCERTAINTIES},
        }

    def exported(
        self,
        predicted: Mapping[str, Any],
        temperature: float | None,
        threshold: float = metrics.ACCEPT_ALL,
        weights: Any = None,
    ) -> dict[str, jax.Array]:
        """The same as JAX arrays by name, without the label.

        Args:
            predicted: of the members, [M, N, C].
            temperature: as of `prediction`; the uncertainties are those without it.
            threshold: as of `prediction`.
            weights: as of `prediction`.
        """
        log_probs = predicted[LOG_PROBS]
        if weights is None:
            mean = jax.nn.logsumexp(log_probs, axis=0) - jnp.log(log_probs.shape[0])
        else:
            mean = jax.nn.logsumexp(log_probs + jnp.log(weights)[:, None, None], axis=0)
        of_members = predicted.get(ENTROPIES, entropies(log_probs))
        total, aleatoric = entropies(mean), weighted_mean(of_members, weights)
        return {
            "probs": jnp.exp(mean) if temperature is None else jax.nn.softmax(mean / temperature),
            "total": total,
            "aleatoric": aleatoric,
            # Entropy is concave, so only rounding can take the difference below zero.
            "epistemic": jnp.maximum(total - aleatoric, 0),
            "member_log_probs": log_probs,
            "accepted": metrics.one_minus_max(mean, jnp) < threshold,
        }


def _are_weights(found: Any, number: int) -> bool:
    """Whether something that was read is so many positive numbers."""
    if not isinstance(found, list) or len(found) != number:
        return False
    return all(type(one) in (int, float) and 0 < one < float("inf") for one in found)


def gain(accuracy: float, mean_accuracy: float) -> str:
    """How much larger or smaller an ensemble's accuracy is than another, shares of 1."""
    points = 100 * (accuracy - mean_accuracy)
    return f"{abs(points):.2f} points {'less' if points < 0 else 'more'}"


# Functions of log-probabilities [..., B, C] on the devices.


def at_labels(log_probs: jax.Array, targets: Any) -> jax.Array:
    """The entries [..., B] of log-probabilities [..., B, C] at the labels [B]."""
    labels = jnp.broadcast_to(targets, log_probs.shape[:-1])[..., None]
    return jnp.take_along_axis(log_probs, labels, axis=-1)[..., 0]


def is_right(log_probs: jax.Array, targets: Any) -> jax.Array:
    """Whether the most probable class [..., B] is the label [B], 0 or 1."""
    return (jnp.argmax(log_probs, axis=-1) == targets).astype(jnp.float32)


def entropies(log_probs: jax.Array) -> jax.Array:
    """Entropy over the last axis, nats, with 0 log 0 = 0."""
    return -jnp.sum(jnp.exp(log_probs) * jnp.where(jnp.isneginf(log_probs), 0, log_probs), axis=-1)
