"""SGD on any task, also of a network with batch statistics and dropout."""

import functools

import jax
import jax.numpy as jnp

from ensemble.network import Variables
from ensemble.task import Learned


@functools.partial(jax.jit, static_argnames="task")
def step(
    task: Learned,
    variables: Variables,
    inputs: jax.Array,
    targets: jax.Array,
    rng_key: jax.Array,
    learning_rate: float,
) -> tuple[Variables, jax.Array]:
    """Descends -(log likelihood + log prior) / N by one batch; the loss is that before."""

    def loss_fn(params: Variables) -> tuple[jax.Array, Variables]:
        log_prob, aux = task.log_likelihood(
            {**variables, "params": params}, task.prepare(inputs), targets, True, rng_key
        )
        loss = -jnp.mean(log_prob) - task.log_prior(params) / task.num_train_examples
        return loss, aux.state

    (loss, state), grads = jax.value_and_grad(loss_fn, has_aux=True)(variables["params"])
    params = jax.tree.map(lambda p, g: p - learning_rate * g, variables["params"], grads)
    return {"params": params, **state}, loss
