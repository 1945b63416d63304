"""The base of likelihoods: the distribution of a target given a network's outputs.

Functions of outputs are pure, for use on devices. A member predicts named arrays [B, ...], the
parameters of its predictive distribution; `predictive` makes the ensemble's predictions of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import jax
import numpy as np

from ensemble.likelihoods.predictive import Array, Arrays, Predictive
from ensemble.pytrees import ByName

Params = Mapping[str, Any]
"""The likelihood's own parameters, of `Likelihood.init`."""


class Likelihood:
    """A subclass has what raises an error here, and more in place of the defaults.

    Attributes:
        name: value of `config.likelihood`.
        num_outputs: K, numbers that the network returns for an example.
        num_targets: D of an example; targets are [N, D] if there are several.
        takes_logits: whether outputs are logits of classes, so that a network must not end in a
            softmax or sigmoid.
        has_density: whether `log_prob` is of a density or a probability, as posteriors need.
        can_be_tempered: whether it has `tempered`.
        class_weights: [C] of classes, for which predictions are corrected.
        loss: the score of `Predictive.scores` that training lowers.
        progress: the one that training shows in addition.
        predictions: the class of an ensemble's predictions.
        passed_on: attributes that these have, too.
    """

    name: str
    num_outputs: int
    num_targets = 1
    takes_logits = False
    has_density = True
    can_be_tempered = False
    class_weights: Sequence[float] | None = None
    loss = "nll"
    progress: str
    predictions: type[Predictive]
    passed_on: Sequence[str]

    @property
    def traced(self) -> tuple[str, ...]:
        """The scores that are recorded for every draw."""
        return self.progress, self.loss

    # From the data, and from what a workdir keeps of them.

    @classmethod
    def from_data(cls, targets: Array, class_names: Sequence[str], **settings: Any) -> Self:
        """Makes the likelihood of training targets [N].

        Args:
            targets: of the training examples.
            class_names: of the data set; empty if targets are no classes.
            **settings: keys of the likelihood in the configuration.

        Raises:
            InputError: the targets do not suit this likelihood.
        """
        raise NotImplementedError

    @classmethod
    def check_targets(cls, targets: Array, split: str) -> None:
        """Checks the targets [N] of any split.

        Raises:
            InputError: some do not suit this likelihood.
        """

    @classmethod
    def from_dict(cls, description: ByName) -> Self:
        """The inverse of `to_dict`; other entries are ignored."""
        raise NotImplementedError

    def to_dict(self) -> ByName:
        """Returns what a program that predicts must know of the targets, JSON-ready."""
        raise NotImplementedError

    # On the devices.

    def init(self, rng_key: Array) -> Arrays:
        """Initialises the likelihood's own parameters, such as a shared variance; often none.

        They are in `variables["params"]["likelihood"]`, and priors find them there.
        """
        return {}

    def log_prob(self, params: Params, outputs: Array, targets: Any) -> Array:
        """Log density or probability [B] of targets in their own units, nats, float32.

        Args:
            params: of `init`.
            outputs: [B, K] of the network.
            targets: [B], as the data set has them.
        """
        raise NotImplementedError

    def predict(self, params: Params, outputs: Array) -> Arrays:
        """The predictive distribution of one member: named arrays [B, ...] float32."""
        raise NotImplementedError

    def tempered(self, predicted: Arrays, factor: Any) -> Arrays:
        """One member's predictions, wider by a factor; of classes, at this temperature."""
        raise NotImplementedError

    # Of all members.

    def predictive(
        self,
        arrays: Arrays,
        member_of: Array | None = None,
        weights: Array | None = None,
    ) -> Any:
        """The predictions of an ensemble, arrays [S, N, ...] as of `Predictive`."""
        own = {name: getattr(self, name) for name in self.passed_on}
        return self.predictions(arrays, member_of, weights, **own)

    def pooled(self, arrays: Arrays, counts: Array) -> tuple[Arrays, Array]:
        """The same mixtures of fewer samples, if one can stand for several.

        Args:
            arrays: [M, S, N, ...], of S samples of each member.
            counts: [S], how many each of these stands for already.

        Returns:
            Both, of as many samples as are left.
        """
        return arrays, counts

    def scores(
        self,
        predicted: Arrays,
        targets: Any,
        live: Array | None = None,
        num_each: int = 1,
    ) -> Arrays:
        """`Predictive.scores` [B] of the mixture of members on the devices.

        Args:
            predicted: [M * num_each, B, ...] of this device's members.
            targets: [B].
            live: [M] bool; the others do not count. None: all are.
            num_each: parameter samples of each member.
        """
        number = len(next(iter(predicted.values()))) // num_each
        weights = None if live is None else live / live.sum()
        found = self.predictive(predicted, np.repeat(np.arange(number), num_each), weights)
        scores: Arrays = found.scores(targets)
        return scores

    def each_score(self, predicted: Arrays, targets: Any) -> Arrays:
        """`Predictive.scores` [S, B] of every parameter sample, from arrays [S, B, ...]."""
        return jax.vmap(lambda one: self.scores(jax.tree.map(lambda a: a[None], one), targets))(
            dict(predicted)
        )
