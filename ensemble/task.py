"""What tasks give methods: log likelihoods and log densities, and what a forward pass leaves.

`ensemble.tasks` has the tasks, by the names of `ensemble.config.builtin.TASKS`. Members and
samplers take a `Supervised`, whose parameters have a likelihood and a prior. Samplers take a
`Modelled`, too, which is a log density.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import jax
from jax import Array

from ensemble.network import Variables
from ensemble.pytrees import ByName, Function
from ensemble.sharding.transfer import Layout

if TYPE_CHECKING:
    from jax.sharding import Mesh


class Aux(NamedTuple):
    """What a forward pass leaves beside the log likelihood.

    Attributes:
        predicted: the predictive distribution, named arrays [B, ...]; of members that consist of
            K > 1 estimators, [B, K, ...].
        state: the network's collections beside `params`.
        outputs: of the network, [B, K]; None where there is no network.
    """

    predicted: ByName
    state: Variables
    outputs: Array | None = None


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
            `Supervised.predict`.
    """

    place: Function
    value_and_grad: Function
    parts: str
    num_parts: int
    layout: Layout = Layout()
    predict: Function | None = None


@dataclass(frozen=True)
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

    place: Function
    bind: Function
    layout: Layout = field(default_factory=Layout)
    run_free: Any = None
    bind_reference: Any = None
    predict: Function | None = None

    @cached_property
    def data(self) -> Any:
        """The data on the devices, from when they are first asked for, if by what is traced."""
        with jax.ensure_compile_time_eval():
            return self.place()


DrawSections = Function
"""`(params [K, ...] of the draws of a posterior, those at the MAP) -> entries of results.json`."""


@runtime_checkable
class Modelled(Protocol):
    """A log density with a gradient that samplers take as it is; nothing predicts examples.

    Its parameters are named arrays on the whole real line.
    """

    sizes: Mapping[str, int]

    @property
    def tracked(self) -> tuple[str, ...]:
        """Names of the scalars whose convergence is watched at every draw."""

    def params_shapes(self) -> ByName:
        """The shapes of one chain's parameters."""

    def own_log_density(self, mesh: Mesh, may_split: bool) -> LogDensity:
        """What is sampled, with its data on the devices of a mesh.

        Args:
            mesh: of the devices, with the axes of `ensemble.sharding.mesh`.
            may_split: whether parameters may be split, beside their rows of the data.

        Raises:
            InputError: it cannot lie on this mesh.
        """

    def starts(self, rng_keys: Array, from_prior: bool) -> ByName:
        """Finds where chains may start: parameters [C, ...] with a finite density and gradient.

        Args:
            rng_keys: [C].
            from_prior: whether they are drawn from the prior; else dispersed evenly.

        Raises:
            InputError: a chain finds none, with the reason.
        """

    def check_starts(self, params: Any) -> None:
        """Looks at starts [C, ...] that were found elsewhere as `starts` does at its own.

        Raises:
            InputError: the log density is wrong there, or not finite.
        """

    def track(self, params: Any) -> Array:
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


class WithoutExamples:
    """Defaults of a task that has no examples, and predicts none."""

    sizes: Mapping[str, int] = MappingProxyType({})
    dataset = None
