"""The members: how one starts, how one learns, and the pmapped functions over all of them.

Two pure functions of one member, `apply_member` and `update_member`, hold all the mathematics.
`create_train_state`, `apply_model` and `update_model` map them over devices as the Flax how-to
*Ensembling on multiple devices* has them, one member per device, for use by hand; the training
loop maps the same two, fused in one step, by `ensemble.methods.members.sgd`.
"""

import enum
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from flax.training import train_state

from ensemble import networks
from ensemble.fitted import Fitted, OnDisk
from ensemble.likelihoods.categorical import Categorical
from ensemble.method import Status
from ensemble.network import Network, Variables, widened
from ensemble.networks import as_network
from ensemble.sharding.mesh import ENSEMBLE
from ensemble.tasks.supervised import Aux

MEMBER_DEVICES = "member_devices"
"""The counter of a checkpoint that says over how many devices each member was split."""


class Stream(enum.IntEnum):
    """What a member's key is folded with before it is folded with a step: a stream of its own."""

    DROPOUT = 1
    AUGMENT = 2
    DESCENT = 3
    PASSES = 4
    DRAWS = 5
    SETTINGS = 6


class Best(struct.PyTreeNode):
    """What early stopping keeps of a member: its best variables, and how long ago that was."""

    variables: Any
    nll: jax.Array  # [] float32, nats, on the validation split.
    epochs_since: jax.Array  # [] int32.


class TrainState(train_state.TrainState):
    """Flax's `TrainState` and what else a member's next step needs.

    Attributes:
        model_state: the model's collections beside `params`, such as batch statistics.
        rng_key: of the member; see `step_key`.
        status: [] int8, a `Status`; only an active member is updated.
        best: a `Best` where early stopping is on, else None.
    """

    model_state: Any
    rng_key: jax.Array
    status: jax.Array
    best: Best | None = None

    def step_key(self, stream: Stream, step: int | jax.Array) -> jax.Array:
        """The key of one kind of noise in one step."""
        return jax.random.fold_in(jax.random.fold_in(self.rng_key, stream), step)

    @property
    def variables(self) -> dict[str, Any]:
        """The model's variables as training left them."""
        return {"params": self.params, **self.model_state}

    @property
    def chosen_variables(self) -> dict[str, Any]:
        """The variables to predict with: the best ones where early stopping keeps them."""
        return self.variables if self.best is None else self.best.variables


def fitted(saved: OnDisk) -> Fitted:
    """The members that are on disk: see `ensemble.entries.MethodEntry`."""
    arrays = saved.arrays
    best = arrays["best"]
    chosen = best["variables"] if best else {"params": arrays["params"], **arrays["model_state"]}
    variables = jax.tree.map(lambda leaf: leaf[np.array(saved.live)], chosen)
    return Fitted.one_each(variables, saved.counters[MEMBER_DEVICES])


Objective = Callable[..., tuple[jax.Array, Aux]]
"""`(variables, inputs, targets, rng_key) -> (log likelihood [B] in nats, what else there is)`."""


class Output(NamedTuple):
    """What one member made of a batch; the sums leave out examples of weight zero."""

    gradients: Any  # Of `loss`.
    loss: jax.Array  # [] float32: weighted sum over examples of the negative objective, nats.
    predicted: dict[str, jax.Array]  # [B, ...] float32.
    model_state: Any


def create_member(
    rng_key: jax.Array,
    variables: Variables,
    apply_fn: Callable[..., Any],
    optimizer: optax.GradientTransformation,
    keep_best: bool = False,
) -> TrainState:
    """Starts one member.

    Args:
        rng_key: the member's own, typed or raw.
        variables: that it starts with, made from this key.
        apply_fn: of the network.
        optimizer: built once: the state's tree structure depends on its identity.
        keep_best: whether early stopping will need `best`.
    """
    model_state = dict(variables)
    params = model_state.pop("params")
    best = Best(
        variables={"params": params, **model_state},
        nll=jnp.array(jnp.inf, jnp.float32),
        epochs_since=jnp.array(0, jnp.int32),
    )
    return TrainState.create(
        apply_fn=apply_fn,
        params=params,
        tx=optimizer,
        model_state=model_state,
        rng_key=rng_key,
        status=jnp.array(Status.ACTIVE, jnp.int8),
        best=best if keep_best else None,
    )


def apply_member(
    state: TrainState,
    objective: Objective,
    inputs: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    rng_key: jax.Array,
) -> Output:
    """Runs one member on a batch and differentiates its loss; no collective is crossed.

    Args:
        state: one member's.
        objective: that is maximised.
        inputs: [B, ...] float32, normalised.
        targets: [B].
        weights: [B] float32 of the examples in the loss, zero for padding.
        rng_key: of the network's noise in this step.
    """

    def loss_fn(params: Any) -> tuple[jax.Array, Aux]:
        variables = {"params": params, **state.model_state}
        log_likelihood, aux = objective(variables, inputs, targets, rng_key)
        return jnp.sum(weights * -log_likelihood), aux

    (loss, aux), gradients = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return Output(gradients, loss, aux.predicted, aux.state)


def update_member(
    state: TrainState, gradients: Any, loss: jax.Array, model_state: Any
) -> TrainState:
    """Takes one optimiser step, unless the member is inactive or the step is not finite.

    A step whose loss or new parameters are not finite is not taken: the member keeps its last
    finite parameters, and its status says `NON_FINITE` from then on.

    Args:
        state: one member's.
        gradients: of the mean loss, as `state.params`.
        loss: [] the mean loss, nats.
        model_state: the collections that the forward pass left.
    """
    proposed = state.apply_gradients(grads=gradients).replace(model_state=model_state)
    # A sum is finite only if all its terms are, and is one pass over them.
    sums = [jnp.sum(leaf) for leaf in (loss, *jax.tree.leaves(proposed.params))]
    finite = jnp.isfinite(sum(sums))
    active = state.status == Status.ACTIVE
    take = active & finite
    status = jnp.where(active & ~finite, jnp.int8(Status.NON_FINITE), state.status)

    def choose(new: Any, old: Any) -> Any:
        return jax.tree.map(lambda a, b: jnp.where(take, a, b), new, old)

    return state.replace(
        step=choose(proposed.step, state.step),
        params=choose(proposed.params, state.params),
        opt_state=choose(proposed.opt_state, state.opt_state),
        model_state=choose(proposed.model_state, state.model_state),
        status=status,
    )


def keep_best(state: TrainState, nll: jax.Array, patience: int) -> TrainState:
    """Notes a member's validation NLL: keeps its best variables, stops it without progress.

    A member that predicts NaN has failed.

    Args:
        state: one member's, with `best`.
        nll: [] of its present variables on the validation split, nats.
        patience: epochs without a better value after which the member stops.
    """
    assert state.best is not None
    active = state.status == Status.ACTIVE
    better = active & (nll < state.best.nll)
    waited = jnp.where(better, 0, state.best.epochs_since + active)
    variables = jax.tree.map(
        lambda new, old: jnp.where(better, new, old), state.variables, state.best.variables
    )
    stop = active & (waited >= patience)
    status = jnp.where(stop, jnp.int8(Status.STOPPED_EARLY), state.status)
    status = jnp.where(active & jnp.isnan(nll), jnp.int8(Status.NON_FINITE), status)
    return state.replace(
        status=status,
        best=Best(variables, jnp.where(better, nll, state.best.nll), waited.astype(jnp.int32)),
    )


# One member per device, by hand, as the how-to's text uses them.


@functools.partial(jax.pmap, axis_name=ENSEMBLE, static_broadcasted_argnums=(1, 2, 3, 4))
def _create_train_state(
    rng_key: jax.Array,
    learning_rate: float,
    momentum: float,
    network: Network,
    input_shape: tuple[int, ...],
) -> TrainState:
    variables = network.init(rng_key, jnp.ones((1, *input_shape)))
    return create_member(rng_key, variables, network.apply, optax.sgd(learning_rate, momentum))


def create_train_state(
    rng_keys: jax.Array,
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


@functools.partial(jax.pmap, axis_name=ENSEMBLE)
def apply_model(
    state: TrainState, images: jax.Array, labels: jax.Array
) -> tuple[Any, jax.Array, jax.Array]:
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
        variables: Variables, images: jax.Array, labels: jax.Array, rng_key: jax.Array
    ) -> tuple[jax.Array, Aux]:
        outputs, model_state = state.apply_fn(variables, images, True, rng_key)
        logits = widened(outputs)
        classes = Categorical([str(k) for k in range(logits.shape[-1])])
        log_prob = classes.log_prob({}, logits, labels)
        return log_prob, Aux(classes.predict({}, logits), model_state)

    rng_key = state.step_key(Stream.DROPOUT, state.step)
    output = apply_member(state, objective, images, labels, jnp.ones(labels.shape), rng_key)
    gradients, loss = jax.tree.map(lambda x: x / labels.size, (output.gradients, output.loss))
    probs = jax.lax.pmean(jnp.exp(output.predicted["log_probs"]), axis_name=ENSEMBLE)
    return gradients, loss, jnp.mean(jnp.argmax(probs, axis=-1) == labels)


@jax.pmap
def update_model(state: TrainState, gradients: Any) -> TrainState:
    """Takes one optimiser step on every device with the gradients of `apply_model`."""
    return update_member(state, gradients, jnp.zeros(()), state.model_state)
