"""Gradient descent of one member: what deep ensembles are, and what other methods wrap."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import optax

from ensemble import pytrees
from ensemble.errors import InputError
from ensemble.methods.optimizers import Descent
from ensemble.network import Variables
from ensemble.runtime.algorithm import Info, Now, Stream
from ensemble.runtime.devices import Devices
from ensemble.runtime.feed import Batch
from ensemble.task import Aux
from ensemble.tasks.supervised import Supervised

Objective = Callable[..., tuple[jax.Array, Aux]]
"""`(variables, inputs, targets, key) -> (log likelihood [B] in nats, what else there is)`."""


class Descending(NamedTuple):
    """A member that descends.

    Attributes:
        variables: `params`, and the network's other collections.
        optimizer: State of the optimiser.
    """

    variables: Variables
    optimizer: Any


class Output(NamedTuple):
    """Result of a batch of a member; the sums leave out examples of weight zero.

    Attributes:
        gradients: Of `loss`, as the parameters.
        loss: Weighted sum over examples of the negative objective, [] nats.
        predicted: [B, ...] by name.
        state: The collections beside `params` after the pass.
    """

    gradients: Any
    loss: jax.Array
    predicted: dict[str, jax.Array]
    state: Variables


def apply_member(
    variables: Variables,
    objective: Objective,
    inputs: jax.Array,
    targets: Any,
    weights: jax.Array,
    key: jax.Array,
) -> Output:
    """Runs one member on a batch and differentiates its loss; no collective is crossed.

    Args:
        variables: Of the member.
        objective: That is maximised.
        inputs: [B, ...] float32, as the network sees them.
        targets: [B].
        weights: [B] float32 of the examples in the loss, zero for padding.
        key: Of the network's noise in this step.
    """
    collections = pytrees.without(variables, "params")

    def loss_fn(params: Any) -> tuple[jax.Array, Aux]:
        found, aux = objective({"params": params, **collections}, inputs, targets, key)
        return jnp.sum(weights * -found), aux

    (loss, aux), gradients = jax.value_and_grad(loss_fn, has_aux=True)(variables["params"])
    return Output(gradients, loss, aux.predicted, aux.state)


def update_member(
    optimizer: optax.GradientTransformation, params: Any, state: Any, gradients: Any, loss: Any
) -> tuple[Any, Any, jax.Array]:
    """Takes one optimiser step.

    Args:
        optimizer: Of the members.
        params: Of one member.
        state: Of its optimiser.
        gradients: Of the mean loss, as the parameters.
        loss: [] the mean loss, nats.

    Returns:
        Parameters, the optimiser's state, and whether loss and parameters are finite: else the step
        is not to be taken.
    """
    updates, state = optimizer.update(gradients, state, params)
    params = optax.apply_updates(params, updates)
    # A sum is finite only if all its terms are, and is one pass over them.
    sums = [jnp.sum(leaf) for leaf in (loss, *jax.tree.leaves(params))]
    return params, state, jnp.isfinite(sum(sums))


def descent(
    task: Supervised,
    devices: Devices,
    objective: Objective,
    how: Descent,
) -> tuple[Callable[..., Descending], Callable[..., tuple[Descending, Info]]]:
    """Returns `init` and `step` of members that descend.

    Args:
        task: What they learn.
        devices: Placement of the members.
        objective: What is maximised.
        how: How they descend.
    """
    optimizer = how.optimizer
    likelihood = task.likelihood
    number = task.num_train_examples

    def of_slice(member: Any, batch: Batch) -> Any:
        variables, key = member
        found = apply_member(variables, objective, batch.inputs, batch.targets, batch.weights, key)
        # Where examples meet in a network, and move its state, they lie in one slice.
        moved = {} if devices.slices_batches else found.state
        sums = found.gradients, found.loss, jnp.sum(batch.weights), moved
        return sums, found.predicted

    spread = devices.over_examples(of_slice, unrolls=True)

    def init(now: Now, batch: Batch) -> Descending:
        variables = dict(task.init_variables(now.key))
        if now.given is not None:
            from ensemble.methods.given_weights import with_given  # Most start by themselves.

            variables = with_given(variables, now.given)
        state = optimizer.init(variables["params"])
        return Descending(variables, how.seed(state, now.key) if how.seed else state)

    def step(now: Now, state: Descending, batch: Batch) -> tuple[Descending, Info]:
        variables = state.variables
        params = state.variables["params"]
        key = jax.random.fold_in(jax.random.fold_in(now.key, Stream.DROPOUT), now.step)
        (grads, loss, weight, moved), predicted = spread((variables, key), batch)
        prior, of_prior = jax.value_and_grad(task.log_prior)(params)
        grads = jax.tree.map(lambda g, p: g / weight - p / number, grads, of_prior)
        loss = loss / weight - prior / number
        params, own, ok = update_member(optimizer, params, state.optimizer, grads, loss)
        scores = likelihood.scores(apart(predicted, task.num_estimators), batch.targets)
        shown = jnp.average(scores[likelihood.progress], weights=batch.mask)
        info = Info({"loss": loss, likelihood.progress: shown}, ok, predicted)
        return Descending({**variables, **moved, "params": params}, own), info

    return init, step


def apart(predicted: Mapping[str, jax.Array], num_each: int) -> dict[str, jax.Array]:
    """Predictions [B, ...] of a member as [1, B, ...]; those of K estimators as [K, B, ...]."""
    if num_each == 1:
        return pytrees.at(predicted, None)
    return {name: jnp.moveaxis(leaf, 1, 0) for name, leaf in predicted.items()}


def ensemble_scores(task: Supervised) -> Callable[[Any, jax.Array, Batch], dict[str, jax.Array]]:
    """Returns an `Algorithm.together`: scores of the mean of all members that live."""
    likelihood = task.likelihood
    num_each = task.num_estimators

    def together(rows: Any, live: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        flat = pytrees.merged(jax.vmap(lambda one: apart(one, num_each))(rows))
        scores = likelihood.scores(flat, batch.targets, live, num_each)
        return {
            name: jnp.average(scores[name], weights=batch.mask)
            for name in (likelihood.loss, likelihood.progress)
        }

    return together


def make_objective(config: ml_collections.FrozenConfigDict, task: Supervised) -> Objective:
    """Objective of a member: the log likelihood, as far as nothing else is configured.

    Samplers divide it by a temperature. Labels may be smoothed.

    Raises:
        InputError: the likelihood has no labels to be smoothed.
    """
    likelihood: Any = task.likelihood
    smoothing = config.label_smoothing
    if smoothing and not hasattr(likelihood, "smoothed_log_prob"):
        raise InputError(
            f"config.label_smoothing={smoothing} is for classes, and this is "
            f"config.likelihood={likelihood.name!r}: set it to 0"
        )

    def objective(
        variables: Variables,
        inputs: jax.Array,
        targets: jax.Array,
        rng_key: jax.Array,
    ) -> tuple[jax.Array, Aux]:
        log_prob, aux = task.log_likelihood(variables, inputs, targets, True, rng_key)
        if smoothing:
            log_prob = likelihood.smoothed_log_prob(aux.outputs, targets, smoothing)
        if "posterior_temperature" in config:
            log_prob = log_prob / config.posterior_temperature
        return log_prob, aux

    return objective
