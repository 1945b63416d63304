"""The contract of likelihoods: what a network's outputs say of a target.

`ensemble.likelihoods` has the implementations, by the name that `config.likelihood` says. A
member's prediction is a dict of named arrays, the parameters of its predictive distribution,
[B, ...] on the devices and [E, N, ...] in files, of E estimators: a member has one or, as a chain
has draws, more. A member's prediction is the equally weighted mixture of its estimators, and an
ensemble's that of its members.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ensemble.scoring.view import View
    from ensemble.source import Source

Arrays = Mapping[str, np.ndarray]
"""Predictions on the host, by name: [M, N, ...]."""


class Panel(NamedTuple):
    """A panel of the learning curves.

    Attributes:
        split: of which a score is drawn.
        score: the name in `metrics.jsonl`.
        title: of the panel.
        label: of the axis, with the unit.
        is_share: whether the score is a share of 1, shown in percent.
    """

    split: str
    score: str
    title: str
    label: str
    is_share: bool = False


class Constant(NamedTuple):
    """A predictor that knows the training targets and looks at no input.

    Attributes:
        what: it says, such as "always answering 'cat'".
        score: the name of its headline score, one of `Likelihood.columns`.
        plain: a likelihood, and what one member predicts by it, [1, 1, ...] by name.
        learned: the same of what the likelihood can learn, which its loss is told of; None: the
            same.
    """

    what: str
    score: str
    plain: tuple[Likelihood, Arrays]
    learned: tuple[Likelihood, Arrays] | None = None

    def views(self, targets: Any) -> tuple[View, View]:
        """What is said by both of targets [N]."""
        plain = view_of_all(self.plain, targets)
        return plain, plain if self.learned is None else view_of_all(self.learned, targets)


def can_be_tempered(likelihood: Any) -> bool:
    """Whether it has `tempered(predicted, factor)`: one member's predictions, wider by a factor."""
    return hasattr(getattr(likelihood, "of", (likelihood,))[0], "tempered")


def is_corrected(likelihood: Any) -> bool:
    """Whether its predictions are corrected for class weights, by which its members learn."""
    return getattr(likelihood, "class_weights", None) is not None


def view_of_all(said: tuple[Likelihood, Arrays], targets: Any) -> View:
    """The view of a likelihood and of what one member predicts, of each example or of all alike."""
    likelihood, arrays = said
    number = len(targets)
    arrays = {
        name: one if one.shape[1] == number else np.repeat(one, number, axis=1)
        for name, one in arrays.items()
    }
    return likelihood.view(arrays, targets)


def compared(loss: float, other: float) -> str:
    """How much lower or higher a positive loss is than another, such as "1.2% lower"."""
    if math.isinf(other):
        return "as high" if math.isinf(loss) else "lower"
    return f"{abs(1 - loss / other):.1%} {'higher' if loss > other else 'lower'}"


class Reduce(NamedTuple):
    """How members on several devices are reduced: functions of arrays, the same on all devices."""

    sum: Callable[[Any], Any]
    max: Callable[[Any], Any]


HERE = Reduce(lambda one: one, lambda one: one)
"""The reduction over members, or estimators of one, that are together on a device."""


def mixture_log_density(log_density: jax.Array, live: jax.Array, over: Reduce) -> jax.Array:
    """Log density [B, ...] of the equally weighted mixture of the live members.

    The members are spread over devices, and some may have failed.

    Args:
        log_density: [slots, B, ...] of this device's members.
        live: [slots] bool.
        over: the groups of devices that hold other members.
    """
    live = live.reshape(-1, *[1] * (log_density.ndim - 1))
    log_density = jnp.where(live, log_density, -jnp.inf)
    top = over.max(jnp.max(log_density, axis=0))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    total = over.sum(jnp.sum(jnp.exp(log_density - top), axis=0))
    count = over.sum(jnp.sum(live.astype(jnp.float32)))
    return jnp.log(total) + top - jnp.log(count)


def weighted_mean(values: Any, weights: Any = None) -> Any:
    """Mean [...] over the members of values [M, ...], of NumPy or of JAX.

    Args:
        values: of the members.
        weights: [M], of sum 1; None: all the same.
    """
    if weights is None:
        return values.mean(axis=0)
    return (weights.reshape(-1, *[1] * (values.ndim - 1)) * values).sum(axis=0)


class Likelihood(Protocol):
    """The distribution of a target given a network's outputs.

    Attributes:
        takes_logits: whether outputs are logits of classes, so that a network must not end in a
            softmax or sigmoid.
        is_of_numbers: whether targets are numbers, so that normal distributions and least squares
            stand beside.
        has_density: whether `log_prob` is of a density or a probability, as posteriors need.
        loss: the score of `columns` that training lowers: `nll`, unless there is no density.
        evaluator: what evaluates runs with it, a class that is an
            `ensemble.evaluation.evaluator.Evaluator`, as the registry names code: `"module:NAME"`.
        num_targets: D of an example; targets are [N, D] where there are several.
    """

    takes_logits: bool
    has_density: bool
    is_of_numbers: bool
    loss: str
    num_targets: int
    evaluator: str

    @property
    def name(self) -> str:
        """In the registry."""

    @property
    def num_outputs(self) -> int:
        """K, numbers that the network puts out for an example."""

    @property
    def columns(self) -> Sequence[str]:
        """The scores that the table of a training shows."""

    @property
    def headline(self) -> Sequence[str]:
        """The scores that an evaluation logs, the most telling first."""

    @property
    def progress(self) -> str:
        """The score of single examples that training shows beside the loss."""

    @property
    def why_not_evaluated(self) -> str:
        """What an evaluation of a run with it says, after the workdir; empty: it is evaluated."""

    @property
    def draw_scores(self) -> Sequence[str]:
        """The scores of single examples that are averaged over draws."""

    @property
    def traced(self) -> Sequence[str]:
        """The names of those that are recorded for every draw."""

    # From the data, and from what a workdir says of them.

    @classmethod
    def of_data(
        cls, targets: np.ndarray, class_names: Sequence[str], **settings: Any
    ) -> Likelihood:
        """Makes the likelihood of training targets [N].

        Args:
            targets: of the training examples.
            class_names: of the data set; empty where targets are no classes.
            **settings: of a likelihood that has keys in the configuration, by
                `ensemble.config.likelihood_settings`.

        Raises:
            UserError: the targets are none that this likelihood can have.
        """

    @classmethod
    def described(cls, description: Mapping[str, Any]) -> Likelihood:
        """The inverse of `describe`.

        Raises:
            ValueError: the description is damaged or forged.
        """

    def describe(self) -> dict[str, Any]:
        """Returns what a program that predicts must know of the targets, JSON-ready."""

    # Pure functions on the devices.

    def init(self, rng_key: jax.Array) -> dict[str, jax.Array]:
        """Starts the likelihood's own parameters, such as a shared variance; often none.

        They are in `variables["params"]["likelihood"]`, and priors find them there.
        """

    def log_prob(self, params: Mapping[str, Any], outputs: jax.Array, targets: Any) -> jax.Array:
        """Log density or probability [B] of targets in their own units, nats, float32.

        Args:
            params: of `init`.
            outputs: [B, K] of the network.
            targets: [B], as the data set has them.
        """

    def predict(self, params: Mapping[str, Any], outputs: jax.Array) -> dict[str, jax.Array]:
        """The predictive distribution of one member: named arrays [B, ...] float32."""

    def example_scores(self, predicted: Mapping[str, Any], targets: Any) -> dict[str, jax.Array]:
        """`draw_scores` [..., B] of one predictor, from what `predict` returns [..., B, ...]."""

    def mixture_scores(
        self, predicted: Mapping[str, Any], targets: Any, live: jax.Array, over: Reduce
    ) -> dict[str, jax.Array]:
        """`loss` and `progress` [B] of the mixture over live members on all devices.

        Args:
            predicted: [slots, B, ...] of this device's members.
            targets: [B].
            live: [slots] bool.
            over: the groups of devices that hold other members.
        """

    # On the host.

    def pooled(self, arrays: Arrays, counts: np.ndarray) -> tuple[Arrays, np.ndarray]:
        """The same mixtures by fewer estimators, where one can stand for several.

        Args:
            arrays: [M, K, N, ...], of K estimators of each member.
            counts: [K], how many each of these stands for already.

        Returns:
            Both, of as many estimators as are left.
        """

    def check_predictions(self, arrays: Arrays, targets: np.ndarray | None = None) -> None:
        """Checks predictions that were read from a file.

        Raises:
            ValueError: they are no predictions [M, N, ...], or not of these targets [N].
        """

    def view(
        self, arrays: Arrays, targets: Any, member_of: Any = None, weights: Any = None
    ) -> View:
        """What is scored: predictions [E, N, ...] beside targets [N].

        Args:
            arrays: of E estimators.
            targets: that they are scored on.
            member_of: [E] int, ascending: the member that each belongs to; None: each is one.
            weights: [M] of the members; None: all the same.
        """

    def normal(self, mean: Any, deviation: Any) -> tuple[Likelihood, Arrays]:
        """A likelihood, and what one member predicts by it that says normal distributions [N].

        Only likelihoods of numbers have it.
        """

    def constant(self, train_targets: np.ndarray) -> Constant:
        """What always says the same, made of training targets [N]."""

    def sentence(self, section: Mapping[str, Any], split: str, num_members: int) -> str:
        """Says in one line what the ensemble brings over its average member.

        Args:
            section: of `ensemble.scoring.sections.score_split`.
            split: that was scored.
            num_members: M.
        """

    def posterior_sentence(
        self, section: Mapping[str, Any], average_draw: Mapping[str, float], split: str
    ) -> str:
        """Says in one line what averaging draws brings over a single draw.

        Args:
            section: of `ensemble.scoring.sections.score_split`.
            average_draw: mean `draw_scores` of single draws.
            split: that was scored.
        """

    def figures(self, arrays: Arrays, source: Source, split: str, title: str) -> dict[str, Figure]:
        """Draws the pictures of one split, by name.

        Args:
            arrays: of its members.
            source: of the examples, of which a picture reads those that it shows.
            split: by name.
            title: of the pictures.
        """

    def final_figures(
        self, arrays: Arrays, targets: np.ndarray, section: Mapping[str, Any]
    ) -> dict[str, Figure]:
        """Draws the pictures that only a finished run has, by name.

        Args:
            arrays: of the members.
            targets: [N] of the same split.
            section: of `ensemble.scoring.sections.score_split`.
        """

    def curves(self) -> Sequence[Panel]:
        """The panels of the learning curves."""

    def spread(self, arrays: Arrays) -> tuple[str, np.ndarray]:
        """The name and values [N] of the uncertainty whose histogram an evaluation shows."""

    # Of an ensemble as a function.

    def prediction(
        self,
        arrays: Arrays,
        temperature: float | None,
        threshold: float = ...,
        weights: Any = None,
    ) -> Any:
        """What an ensemble says of N inputs: a named tuple of arrays.

        Args:
            arrays: of the members, or of draws.
            temperature: of calibration; None leaves predictions as they are.
            threshold: of abstention, on `View.doubt`; by default it accepts all.
            weights: [E] of them, of sum 1; None: all the same.
        """

    def uncertainty(self, prediction: Any) -> np.ndarray:
        """How uncertain each of the N predictions is: what a listing is sorted by."""

    def entry(self, prediction: Any, i: int) -> dict[str, Any]:
        """Prediction i as an entry of a JSON document."""

    def legend(self) -> dict[str, Any]:
        """What such a document says once, for all entries."""

    def cells(self, prediction: Any, i: int) -> list[tuple[str, str | float]]:
        """Prediction i as a row of a table: titles and values."""

    def as_columns(self, prediction: Any) -> dict[str, np.ndarray]:
        """All predictions as columns of a file: numbers or texts [N] by name."""

    def exported(
        self,
        predicted: Mapping[str, Any],
        temperature: float | None,
        threshold: float = ...,
        weights: Any = None,
    ) -> dict[str, jax.Array]:
        """The same as JAX arrays by name, for `jax.export`."""
