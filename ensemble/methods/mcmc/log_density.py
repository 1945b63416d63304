"""The log density that samplers see: a plain function of the parameters, over sharded data.

The trap it avoids: a `psum` inside a function that is differentiated on every shard. Under `pmap`,
or `shard_map` without `check_vma`, the gradient then comes out wrong by a factor or worse, without
an error. Here each shard computes the value and the gradient of its own examples, both are summed,
and a `custom_vjp` hands the sum to whoever differentiates: BlackJAX's kernels run unmodified.
Logistic regression has a value and gradient of its own, in `ensemble.tasks.linear_likelihood`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ensemble.errors import UserError
from ensemble.sharding import processes
from ensemble.sharding.chainwise import with_own_gradient
from ensemble.sharding.layout import Layout
from ensemble.sharding.mesh import CHAINS, DATA, PlacedSplit
from ensemble.source import Examples
from ensemble.tasks import linear_likelihood
from ensemble.tasks.factorisation import watch_likelihood
from ensemble.tasks.factorisation.task import Factorisation
from ensemble.tasks.supervised import Supervised


class LogDensity(NamedTuple):
    """A log density and the data that it is of.

    A jitted program takes `data` as an argument and binds it inside: what a program closes over
    would be a constant of it, whole on every device.

    Attributes:
        data: the examples, spread over the axis `data`.
        bind: `(data) -> logdensity_fn`, which maps the parameters of one network to nats, []
            float32, and can be differentiated in reverse once, vmapped and scanned.
        layout: of the parameters; those that are split over the shards are padded.
    """

    data: Any
    bind: Callable[[Any], Callable[[Any], jax.Array]]
    layout: Layout = Layout()


def make_log_density(
    task: Supervised, split: Examples, mesh: Mesh, temperature: float = 1.0
) -> LogDensity:
    """Returns log p(targets | inputs, params) / temperature + log p(params), up to a constant.

    The likelihood is the sum over all examples: a count that the shards do not divide is padded,
    and the padding weighs nothing. The prior is added once. Chains are vmapped with
    `spmd_axis_name=CHAINS`.

    Args:
        task: network and prior; without batch statistics and dropout.
        split: the N examples to condition on.
        mesh: of `create_mesh`.
        temperature: of the likelihood; 1 is Bayes.

    Returns:
        The log density with its data.

    Raises:
        UserError: the network behaves differently in training, there are fewer examples than
            shards, or the temperature is not positive and finite.
    """
    _check(task, split, mesh, temperature)
    layout = Layout()
    data: Any
    value_and_grad: Callable[[Any, Any], tuple[jax.Array, Any]]
    if isinstance(task, Factorisation):
        data = watch_likelihood.place(task.observed, task.reference, mesh, DATA)
        value_and_grad = watch_likelihood.make_value_and_grad(mesh, CHAINS, DATA)
        num_users = len(task.observed)
        num_places = num_users + -num_users % mesh.shape[DATA]
        layout = Layout(watch_likelihood.USERS, num_users, num_places, DATA)
    elif linear_likelihood.is_logistic_regression(task):
        data = linear_likelihood.place_blocks(task.dataset, split, mesh, DATA)
        value_and_grad = linear_likelihood.make_value_and_grad(mesh, CHAINS, DATA)
    else:
        data = _place(task, split, mesh)
        value_and_grad = _make_value_and_grad(task, mesh)

    def bind(data: Any) -> Callable[[Any], jax.Array]:
        log_likelihood = with_own_gradient(value_and_grad, data)
        return lambda params: log_likelihood(params) / temperature + task.log_prior(params)

    return LogDensity(data, bind, layout)


def make_predict_draw(
    task: Supervised, mesh: Mesh
) -> Callable[[Any, jax.Array], dict[str, jax.Array]]:
    """Returns `(params, inputs [N, ...]) -> prediction`, named arrays [N, ...] of one network.

    Parameters that are split over the shards stay where they are.
    """
    if isinstance(task, Factorisation):
        log_probs = watch_likelihood.make_log_probs(mesh, DATA)
        return lambda params, inputs: {"log_probs": log_probs(params, inputs)}
    return lambda params, inputs: task.predict({"params": params}, inputs)


def place_split(split: Examples, mesh: Mesh) -> PlacedSplit:
    """Puts a split on the devices; the last example pads, for zeros may be no input."""
    num_examples = len(split.targets)
    num_places = num_examples + -num_examples % mesh.shape[DATA]
    index = np.minimum(np.arange(num_places), num_examples - 1)
    mask = np.arange(num_places) < num_examples
    sharding = NamedSharding(mesh, PartitionSpec(DATA))
    arrays = split.inputs[index], split.targets[index], mask
    return PlacedSplit(*processes.put(arrays, sharding))


def _place(task: Supervised, split: Examples, mesh: Mesh) -> PlacedSplit:
    """A split on its shards, with inputs as the network sees them."""
    placed = place_split(split, mesh)
    return placed._replace(inputs=jax.jit(task.prepare)(placed.inputs))


def _make_value_and_grad(
    task: Supervised, mesh: Mesh
) -> Callable[[Any, Any], tuple[jax.Array, Any]]:
    """The log likelihood of all examples and its gradient, in one pass over every shard."""

    def on_shard(params: Any, data: PlacedSplit) -> Any:
        inputs, targets, mask = data

        def log_likelihood(params: Any) -> jax.Array:
            # TPUs and TF32 would round the products to some 3 digits, which are nats here.
            with jax.default_matmul_precision("highest"):
                log_prob, _ = task.log_likelihood({"params": params}, inputs, targets)
            return jnp.sum(jnp.where(mask, log_prob, 0))  # A plain sum: a NaN must show.

        # Varying, so that the gradient is this shard's own: of parameters that all shards share
        # it would be summed already.
        params = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, DATA, to="varying"), params)
        return jax.lax.psum(jax.value_and_grad(log_likelihood)(params), DATA)

    return jax.shard_map(
        on_shard,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(DATA)),
        out_specs=PartitionSpec(),
        check_vma=True,
    )


def _check(task: Supervised, split: Examples, mesh: Mesh, temperature: float) -> None:
    if not task.traits.examples_are_independent:
        raise UserError(
            "a posterior needs a likelihood that is a function of the parameters alone: networks "
            "with batch statistics or dropout have none; choose another config.model"
        )
    what, num_examples, num_shards = "examples", len(split.targets), mesh.shape[DATA]
    if isinstance(task, Factorisation):
        what, num_examples = "users", len(task.observed)
    if num_examples < num_shards:
        raise UserError(
            f"{num_examples} {what} cannot be spread over {num_shards} shards; use at most "
            f"{num_examples} devices"
        )
    if not 0 < temperature < math.inf:
        raise UserError(f"temperature={temperature} must be positive and finite; 1 is Bayes")
