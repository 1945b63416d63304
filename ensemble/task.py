"""The contract of tasks: what is learned, or sampled.

`ensemble.tasks` has the implementations, by the names of `ensemble.config.pieces.TASKS`. The loop
knows a `Task`. SGD and samplers take a `Learned`, whose parameters have a likelihood and a prior.
Samplers take a `Modelled` too, which is a log density. A program that predicts needs a
`PredictingTask` only.

What only some tasks have is asked for by a method, and never by the task's class. A task that
inherits from `Defaults` writes no more of that than it has.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import jax

from ensemble.network import Traits, Variables
from ensemble.sharding.layout import Layout

if TYPE_CHECKING:
    import numpy as np
    from jax.sharding import Mesh

    from ensemble.data.source import Examples, Source
    from ensemble.likelihoods.likelihood import Likelihood


class Scored(NamedTuple):
    """What predictions are scored by.

    Attributes:
        dataset: the examples and their targets.
        likelihood: of a target.
    """

    dataset: Source
    likelihood: Likelihood


class Task(Protocol):
    """What every method is given."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Examples of each split, `train` first; empty where there are no examples."""

    @property
    def num_train_examples(self) -> int:
        """N that the members learn from; 0 where there are no examples."""

    def describe(self) -> dict[str, Any]:
        """Returns what a checkpoint says of what is learned, JSON-ready.

        `name`, `fingerprint` and `num_examples` at least; another fingerprint is another task, and
        so is another `teacher`, which only some have.
        """

    def scored(self) -> Scored | None:
        """What predictions are scored by; None where nothing predicts."""


class PredictingTask(Protocol):
    """What predicts with the variables of members."""

    @property
    def dataset(self) -> Source:
        """The data; of a task that was restored, without examples."""

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood of a target."""

    def describe(self) -> dict[str, Any]:
        """See `Task.describe`."""

    def predict(
        self, variables: Variables, inputs: jax.Array, rng_key: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """The predictive distribution of one member for raw inputs [B, ...]: `Likelihood.predict`.

        It is pure, and can be vmapped over members and exported. Where a key is given, the network
        draws its noise once, and all inputs share it.
        """

    def without_examples(self) -> PredictingTask:
        """Returns the same for predictions alone, which can be pickled if the network can."""

    def check_inputs(self, inputs: np.ndarray, params: Any) -> None:
        """Refuses inputs [N, ...] that members with the parameters [M, ...] cannot predict.

        Raises:
            InputError: as said.
        """


class Aux(NamedTuple):
    """What a forward pass leaves beside the log likelihood.

    Attributes:
        predicted: the predictive distribution, named arrays [B, ...]; of members that consist of
            K > 1 estimators, [B, K, ...].
        state: the network's collections beside `params`.
        outputs: of the network, [B, K]; None where there is no network.
    """

    predicted: dict[str, jax.Array]
    state: Variables
    outputs: jax.Array | None = None


class OwnLogLikelihood(NamedTuple):
    """A log likelihood of all training examples with a gradient of its own.

    Attributes:
        place: puts the examples on the devices, spread over the axis `data` of the mesh.
        value_and_grad: `(params, placed) -> (nats [], gradients)`, which may be vmapped over chains
            with the axis name of chains.
        parts: what is spread over the devices, such as 'users'.
        num_parts: how many of them there are.
        layout: of the parameters: which are split over the devices.
        predict: `(params, inputs) -> prediction` of one draw whose parameters are split; None:
            `PredictingTask.predict`.
    """

    place: Callable[[], Any]
    value_and_grad: Callable[[Any, Any], tuple[jax.Array, Any]]
    parts: str
    num_parts: int
    layout: Layout = Layout()
    predict: Callable[[Any, jax.Array], dict[str, jax.Array]] | None = None


@dataclasses.dataclass(frozen=True)
class LogDensity:
    """A log density of all parameters together, and the data that it is of.

    A jitted program takes `data` as an argument and binds it inside: what a program closes over
    would be a constant of it, whole on every device.

    Attributes:
        place: puts the data on the devices: examples are spread over the axis `data`.
        bind: `(data) -> logdensity_fn`, which maps the parameters of one chain to nats, []
            float32, and can be differentiated in reverse once, vmapped and scanned.
        layout: of the parameters: which are split over the devices, and padded.
        run_free: takes draws of chains that do not wait for each other, where every device computes
            the density by itself, as `ensemble.numpyro_models.free_chains.run_on_devices`. None:
            chains go draw by draw.
        bind_reference: `(data, sd) -> logdensity_fn` of a wide density for tempering to begin at:
            the prior, or where none is known a normal one with this standard deviation.
        predict: `(params, inputs [N, ...]) -> prediction`, named arrays [N, ...] of one network;
            parameters that are split over the shards stay where they are. None where nothing
            predicts.
    """

    place: Callable[[], Any]
    bind: Callable[[Any], Callable[[Any], jax.Array]]
    layout: Layout = dataclasses.field(default_factory=Layout)
    run_free: Callable[..., Any] | None = None
    bind_reference: Callable[[Any, float], Callable[[Any], jax.Array]] | None = None
    predict: Callable[[Any, jax.Array], dict[str, jax.Array]] | None = None

    @functools.cached_property
    def data(self) -> Any:
        """The data on the devices, from when they are first asked for, if by what is traced."""
        with jax.ensure_compile_time_eval():
            return self.place()


DrawSections = Callable[[Any, Any], dict[str, Any]]
"""`(params [K, ...] of the draws of a posterior, those at the MAP) -> entries of results.json`."""


class Learned(Task, PredictingTask, Protocol):
    """What is learned by parameters."""

    @property
    def traits(self) -> Traits:
        """Whether there is state beside the parameters, and noise in training."""

    @property
    def num_estimators(self) -> int:
        """K, networks that a member consists of where it learns: 1, unless a method has made more.

        Above 1, `predict` and `Aux.predicted` are [B, K, ...].
        """

    def init_variables(self, rng_key: jax.Array) -> Variables:
        """Starts the variables of one member, `params` and its state; the key is typed or raw."""

    def params_shapes(self) -> Any:
        """The shapes of one member's parameters."""

    def why_no_noise(self) -> str:
        """Why predictions with a key are none of a network with noise; empty where they are."""

    def log_prior(self, params: Any) -> jax.Array:
        """Returns log p(params) up to a constant, nats []; zero without a prior."""

    def sample_prior(self, rng_key: jax.Array) -> Any:
        """Draws the parameters of one member from the prior.

        Raises:
            InputError: there is no prior.
        """

    def prepare(self, inputs: jax.Array) -> jax.Array:
        """Makes of raw inputs [B, ...], on the devices, what `log_likelihood` takes."""

    def log_likelihood(
        self,
        variables: Variables,
        inputs: jax.Array,
        targets: jax.Array,
        train: bool = False,
        rng_key: jax.Array | None = None,
    ) -> tuple[jax.Array, Aux]:
        """Log p(target | input, variables) of one member.

        Args:
            variables: of the member.
            inputs: [B, ...], prepared.
            targets: [B].
            train: as of `Network.apply`.
            rng_key: as of `Network.apply`.

        Returns:
            Nats [B], for the caller to weight, mask and sum; and what else the pass leaves.
        """

    # What only some tasks have: `Defaults`.

    def own_log_likelihood(self, split: Examples, mesh: Mesh) -> OwnLogLikelihood | None:
        """A faster sum of `log_likelihood` over a split, or one of parameters that are split.

        Args:
            split: the N examples.
            mesh: of the devices, with the axes of `ensemble.sharding.mesh`.
        """

    def draw_report(self, mesh: Mesh) -> DrawSections | None:
        """What the report says of a sample of the posterior beside scores.

        Args:
            mesh: of the devices; all processes call it.
        """


@runtime_checkable
class Modelled(Task, Protocol):
    """A log density with a gradient that samplers take as it is; nothing predicts examples.

    Its parameters are named arrays on the whole real line.
    """

    @property
    def tracked(self) -> tuple[str, ...]:
        """Names of the scalars whose convergence is watched at every draw."""

    def params_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes of one chain's parameters."""

    def own_log_density(self, mesh: Mesh, may_split: bool) -> LogDensity:
        """What is sampled, with its data on the devices of a mesh.

        Args:
            mesh: of the devices, with the axes of `ensemble.sharding.mesh`.
            may_split: whether parameters may be split, beside their rows of the data.

        Raises:
            InputError: it cannot lie on this mesh.
        """

    def starts(self, rng_keys: jax.Array, from_prior: bool) -> dict[str, jax.Array]:
        """Finds where chains may start: parameters [C, ...] with a finite density and gradient.

        Args:
            rng_keys: [C].
            from_prior: whether they are drawn from the prior; else dispersed evenly.

        Raises:
            InputError: a chain finds none, with the reason.
        """

    def check_starts(self, params: Mapping[str, np.ndarray]) -> None:
        """Looks at starts [C, ...] that were found elsewhere as `starts` does at its own.

        Raises:
            InputError: the log density is wrong there, or not finite.
        """

    def track(self, params: Any) -> jax.Array:
        """The scalars `tracked` of one draw."""

    def results(self, draws: Any, first: int, live: Sequence[int]) -> Any:
        """What the draws leave, an `ensemble.numpyro_models.results.SiteResults` or its like.

        It has `found`, the diagnostics; `inference_data`, the draws as the installed ArviZ takes
        them; `sections`, entries of results.json; and `write(work)`, which writes pictures and
        draws into an `ensemble.storage.workdir.Workdir`.

        Args:
            draws: of the run, an `ensemble.draws.store.Draws`.
            first: number of the first draw that counts.
            live: numbers of the chains.
        """


@runtime_checkable
class Comparing(Protocol):
    """A task whose result is laid beside another: the loop asks with `isinstance`."""

    def compared(self, ensemble: Any) -> dict[str, Any]:
        """Entries of results.json.

        Args:
            ensemble: the live members as a function, an `ensemble.predictor.Ensemble`.
        """


class WithoutExamples:
    """Defaults of a task that has no examples, and predicts none."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """No examples."""
        return {}

    def scored(self) -> None:
        """Nothing predicts."""
        return None


class Defaults:
    """What `Learned` and `PredictingTask` ask for and most tasks have not."""

    @property
    def num_estimators(self) -> int:
        """A member is one."""
        return 1

    def prepare(self, inputs: jax.Array) -> jax.Array:
        """Takes inputs as they are."""
        return inputs

    def check_inputs(self, inputs: np.ndarray, params: Any) -> None:
        """Takes all inputs of the right shape."""
        return None

    def why_no_noise(self) -> str:
        """There is none."""
        return "draws no noise"

    def own_log_likelihood(self, split: Examples, mesh: Mesh) -> OwnLogLikelihood | None:
        """The plain sum will do."""
        return None

    def draw_report(self, mesh: Mesh) -> DrawSections | None:
        """There is nothing to add."""
        return None
