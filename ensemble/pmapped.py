"""The Flax how-to's three functions, one member per device, for use by hand.

`create_train_state`, `apply_model` and `update_model` are pmapped as *Ensembling on multiple
devices* has them. They map `apply_member` and `update_member`, which the training loop maps, too.
"""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training import train_state
from jax import Array, random

from ensemble import networks
from ensemble.likelihoods.classes import Categorical
from ensemble.methods.training import apply_member, update_member
from ensemble.network import Network, Variables, widened
from ensemble.networks import as_network
from ensemble.runtime.algorithm import Status, Stream
from ensemble.sharding.mesh import ENSEMBLE
from ensemble.task import Aux


class TrainState(train_state.TrainState):
    """Flax's `TrainState`, and what else a member's next step needs.

    Attributes:
        model_state: The network's collections beside `params`, such as batch statistics.
        rng_key: Key of the member.
        status: [] int8, a `Status`; only an active member is updated.
    """

    model_state: Any
    rng_key: Array
    status: Array


@partial(jax.pmap, axis_name=ENSEMBLE, static_broadcasted_argnums=(1, 2, 3, 4))
def _create_train_state(
    rng_key: Array,
    learning_rate: float,
    momentum: float,
    network: Network,
    input_shape: tuple[int, ...],
) -> TrainState:
    model_state = dict(network.init(rng_key, jnp.ones((1, *input_shape))))
    return TrainState.create(
        apply_fn=network.apply,
        params=model_state.pop("params"),
        tx=optax.sgd(learning_rate, momentum),
        model_state=model_state,
        rng_key=rng_key,
        status=jnp.array(Status.ACTIVE, jnp.int8),
    )


def create_train_state(
    rng_keys: Array,
    learning_rate: float,
    momentum: float,
    model: nn.Module | Network | None = None,
    input_shape: tuple[int, ...] = (28, 28, 1),
) -> TrainState:
    """Starts one member on each device, for SGD with momentum.

    Args:
        rng_keys: [D], one key per device, for instance `jax.random.split(key, D)`.
        learning_rate: constant.
        momentum: of SGD.
        model: a Linen module or a `Network`; the how-to's CNN with ten classes if None.
        input_shape: of one example.

    Returns:
        The states, every leaf with a leading axis [D].
    """
    if model is None:
        model = networks.create("cnn", num_outputs=10)
    network = as_network(model, "model")
    return _create_train_state(rng_keys, learning_rate, momentum, network, tuple(input_shape))


@partial(jax.pmap, axis_name=ENSEMBLE)
def apply_model(state: TrainState, images: Array, labels: Array) -> tuple[Any, Array, Array]:
    """Computes gradients, each member's mean loss, and the accuracy of the mean of softmax.

    Args:
        state: [D, ...], of `create_train_state`.
        images: [D, B, H, W, C] float32, the same batch on every device (`jax_utils.replicate`).
        labels: [D, B] integers.

    Returns:
        `(gradients [D, ...], loss [D], accuracy [D])`; the accuracy is the ensemble's, the same
        on every device: `jax_utils.unreplicate` takes one.
    """

    def objective(
        variables: Variables, images: Array, labels: Array, rng_key: Array
    ) -> tuple[Array, Aux]:
        outputs, model_state = state.apply_fn(variables, images, True, rng_key)
        logits = widened(outputs)
        classes = Categorical([str(k) for k in range(logits.shape[-1])])
        log_prob = classes.log_prob({}, logits, labels)
        return log_prob, Aux(classes.predict({}, logits), model_state)

    rng_key = random.fold_in(random.fold_in(state.rng_key, Stream.DROPOUT), state.step)
    variables = {"params": state.params, **state.model_state}
    output = apply_member(variables, objective, images, labels, jnp.ones(labels.shape), rng_key)
    gradients, loss = jax.tree.map(lambda x: x / labels.size, (output.gradients, output.loss))
    probs = jax.lax.pmean(jnp.exp(output.predicted["log_probs"]), axis_name=ENSEMBLE)
    return gradients, loss, jnp.mean(jnp.argmax(probs, axis=-1) == labels)


@jax.pmap
def update_model(state: TrainState, gradients: Any) -> TrainState:
    """Takes one optimiser step on every device with the gradients of `apply_model`.

    A step whose parameters are not finite is not taken: the member keeps its last finite ones, and
    its status says so from then on.
    """
    params, opt_state, ok = update_member(
        state.tx, state.params, state.opt_state, gradients, jnp.zeros(())
    )
    active = state.status == Status.ACTIVE
    proposed = state.replace(step=state.step + 1, params=params, opt_state=opt_state)
    status = jnp.where(active & ~ok, jnp.int8(Status.NON_FINITE), state.status)
    taken = jax.tree.map(lambda new, old: jnp.where(active & ok, new, old), proposed, state)
    return taken.replace(status=status, rng_key=state.rng_key)
