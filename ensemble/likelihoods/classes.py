"""Targets are classes 0..C-1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from ensemble import pytrees
from ensemble.errors import InputError
from ensemble.likelihoods.likelihood import Likelihood, Params
from ensemble.likelihoods.predictive import Array, Arrays, Predictive, namespace
from ensemble.pytrees import ByName


@dataclass(frozen=True, eq=False, repr=False)
class Classes(Predictive):
    """Predictions of classes: the mean of the members' probabilities.

    `arrays` has `log_probs` [S, N, C], normalised; and `entropies` [S, N], nats, if a sample is the
    mean over pooled draws: the mean entropy of these.

    Attributes:
        class_names: [C].
        temperature: T of softmax(log p / T), applied to the mean p (Guo et al. 2017, section 4.2).
            Members, votes and uncertainties are those without it.
    """

    kind = "classes"
    can_scale = True
    class_names: Sequence[str] = ()
    temperature: float = 1.0

    @cached_property
    def mixture(self) -> Array:
        """Log-probabilities [N, C] of the mean of the members, without the temperature."""
        return self.by_pieces(lambda some: some.log_mean(some.values["log_probs"]))

    @cached_property
    def log_probs(self) -> Array:
        """Log-probabilities [N, C]."""
        if self.temperature == 1:
            return self.mixture
        _, special = namespace(self.mixture)
        return special.log_softmax(self.mixture / self.temperature, axis=-1)

    @property
    def probs(self) -> Array:
        """Probabilities [N, C]."""
        return self.xp.exp(self.log_probs)

    @property
    def labels(self) -> Array:
        """The most probable class [N]; the lowest wins a tie."""
        return self.mixture.argmax(axis=-1)

    point = labels

    @property
    def label_names(self) -> Array:
        """Names [N] of the most probable classes."""
        return np.array(self.axis)[self.labels]

    @cached_property
    def confidence(self) -> Array:
        """Probability [N] of the most probable class."""
        return self.xp.minimum(self.xp.exp(self.log_probs.max(axis=-1)), 1.0)

    @property
    def member_log_probs(self) -> Array:
        """Log-probabilities [M, N, C] of the members; of a posterior [S, N, C] of its draws."""
        return self.arrays["log_probs"]

    @cached_property
    def votes(self) -> Array:
        """The most probable class by each member, [M, N]."""
        return np.stack([one.labels for one in self.members])

    def log_prob(self, y: Array) -> Array:
        return at_labels(self.log_probs, y)

    def scores(self, y: Array) -> Arrays:
        """NLL in nats, accuracy and Brier score."""
        of_label = self.log_prob(y)
        squares = (self.probs**2).sum(axis=-1)
        return {
            "nll": -of_label,
            "accuracy": (self.labels == y).astype(np.float32),
            "brier": squares - 2 * self.xp.exp(of_label) + 1,
        }

    def doubt(self) -> Array:
        """1 - the largest probability without temperature, exact also if it is tiny."""
        others = self.xp.arange(self.mixture.shape[-1]) != self.labels[:, None]
        return (others * self.xp.exp(self.mixture)).sum(axis=-1)

    @cached_property
    def uncertainty(self) -> Arrays:
        """Entropy of the mean, mean entropy of the members, and their difference, nats."""
        total = entropy(self.mixture)
        # Entropy is concave, so only rounding can take the difference below zero.
        epistemic = self.xp.maximum(total - self.mean_entropy, 0)
        return {"total": total, "aleatoric": self.mean_entropy, "epistemic": epistemic}

    @cached_property
    def mean_entropy(self) -> Array:
        """Mean entropy [N] of the members, nats."""
        return self.by_pieces(lambda some: some.average(some._entropies()))

    def _entropies(self) -> Array:
        known = self.values.get("entropies")
        return entropy(self.values["log_probs"]) if known is None else known

    @property
    def total_uncertainty(self) -> Array:
        """Entropy [N] of the mean of the members, nats."""
        return self.uncertainty["total"]

    @property
    def aleatoric_uncertainty(self) -> Array:
        """Mean entropy [N] of the members, nats."""
        return self.uncertainty["aleatoric"]

    @property
    def epistemic_uncertainty(self) -> Array:
        """Mutual information [N], nats: the members' disagreement."""
        return self.uncertainty["epistemic"]

    def scaled(self, factor: float) -> Classes:
        """The same at a temperature, times that which it has."""
        found = replace(self, temperature=self.temperature * factor)
        found.__dict__["mixture"] = self.mixture  # Whoever fits a temperature tries many.
        return found

    def columns(self) -> Arrays:
        names = {"class": self.label_names} if self.xp is np else {}
        parts = {f"{name}_uncertainty": one for name, one in self.uncertainty.items()}
        return self._with_answered({"label": self.labels, **names, "probs": self.probs, **parts})

    @property
    def axis(self) -> list[str]:
        """Names [C] of the classes, or their numbers."""
        return [str(one) for one in self.class_names or range(self.mixture.shape[-1])]


def at_labels(log_probs: Array, y: Array) -> Array:
    """The entries [..., N] of log-probabilities [..., N, C] at labels [N]."""
    xp, _ = namespace(log_probs)
    labels = xp.broadcast_to(xp.asarray(y), log_probs.shape[:-1])[..., None]
    return xp.take_along_axis(log_probs, labels, axis=-1)[..., 0]


def entropy(log_probs: Array) -> Array:
    """-sum_c p_c log p_c over the last axis, with 0 log 0 = 0, nats."""
    xp, _ = namespace(log_probs)
    return -xp.sum(xp.exp(log_probs) * xp.where(xp.isneginf(log_probs), 0, log_probs), axis=-1)


class ClassLikelihood(Likelihood):
    """The base of likelihoods of classes.

    If an example of class c counts w_c times in the loss, the outputs learn q(c | input), in
    proportion to w_c p(c | input): so p is in proportion to q / w (Elkan 2001, "The foundations of
    cost-sensitive learning"). `predict` returns p, all else is of q.

    Args:
        class_names: [C].
        class_weights: [C], by which members learn and for which predictions are corrected; None:
            they are not.
    """

    takes_logits = can_be_tempered = True
    progress = "accuracy"
    predictions = Classes
    passed_on = ("class_names",)

    def __init__(self, class_names: Sequence[str], class_weights: Sequence[float] | None = None):
        self.class_names = tuple(class_names)
        self.class_weights = None if class_weights is None else tuple(map(float, class_weights))

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.class_names)

    @classmethod
    def from_data(cls, targets: Array, class_names: Sequence[str], **_: Any) -> Self:
        if not class_names or np.asarray(targets).dtype.kind not in "iu":
            raise InputError(
                f"config.likelihood={cls.name!r} is for classes, and the targets are "
                f"{np.asarray(targets).dtype}. Set config.likelihood='gaussian' for numbers."
            )
        return cls(class_names)

    @classmethod
    def from_dict(cls, description: ByName) -> Self:
        return cls(description["class_names"], description.get("class_weights"))

    def to_dict(self) -> ByName:
        found = {"num_classes": self.num_classes, "class_names": list(self.class_names)}
        weights = self.class_weights
        return found if weights is None else {**found, "class_weights": list(weights)}

    def class_log_probs(self, outputs: Array) -> Array:
        """Log q(class) [..., C] float32 of outputs [..., K]."""
        raise NotImplementedError

    def log_prob(self, params: Params, outputs: Array, targets: Any) -> Array:
        return at_labels(self.class_log_probs(outputs), targets)

    def smoothed_log_prob(self, outputs: Array, targets: Any, smoothing: Any) -> Array:
        """`log_prob` with a share of the target spread evenly over the classes."""
        log_probs = self.class_log_probs(outputs)
        return (1 - smoothing) * at_labels(log_probs, targets) + smoothing * log_probs.mean(-1)

    def expected_log_prob(self, params: Params, outputs: Array, taught: Classes) -> Array:
        """Expected log probability [B] of a class that a teacher predicts."""
        return jnp.sum(taught.probs * self.class_log_probs(outputs), axis=-1)

    def predict(self, params: Params, outputs: Array) -> Arrays:
        log_probs = self.class_log_probs(outputs)
        if self.class_weights is not None:
            log_probs = jax.nn.log_softmax(log_probs - np.log(self.class_weights))
        return {"log_probs": log_probs}

    def tempered(self, predicted: Arrays, factor: Any) -> Arrays:
        return {**predicted, "log_probs": jax.nn.log_softmax(predicted["log_probs"] / factor)}

    def pooled(self, arrays: Arrays, counts: Array) -> tuple[Arrays, Array]:
        """Means [M, 1, N, C] of the samples' probabilities, and of their entropies [M, 1, N]."""
        shares = counts / counts.sum()
        # One member at a time: they are large.
        pools = [
            Classes(pytrees.at(arrays, k), None, shares) for k in range(len(arrays["log_probs"]))
        ]
        found = [{"log_probs": one.mixture, "entropies": one.mean_entropy} for one in pools]
        pooled: Arrays = jax.tree.map(lambda *each: np.stack(each)[:, None], *found)
        return pooled, counts.sum(keepdims=True)


class Categorical(ClassLikelihood):
    """C outputs, the logits of softmax."""

    name = "categorical"

    @property
    def num_outputs(self) -> int:  # type: ignore[override]
        """C."""
        return self.num_classes

    def class_log_probs(self, outputs: Array) -> Array:
        return jax.nn.log_softmax(outputs.astype(jnp.float32))


class Bernoulli(ClassLikelihood):
    """One output, the logit of the second of two classes."""

    name = "bernoulli"
    num_outputs = 1

    @classmethod
    def from_data(cls, targets: Array, class_names: Sequence[str], **_: Any) -> Self:
        if class_names and len(class_names) != 2:
            raise InputError(
                f"config.likelihood='bernoulli' is for two classes, and the data have "
                f"{len(class_names)}. Set config.likelihood='categorical'."
            )
        return super().from_data(targets, class_names)

    def class_log_probs(self, outputs: Array) -> Array:
        logits = outputs.astype(jnp.float32)
        return jnp.concatenate([jax.nn.log_sigmoid(-logits), jax.nn.log_sigmoid(logits)], axis=-1)
