"""The log density that samplers see: a plain function of the parameters, over sharded data.

The trap it avoids: a `psum` inside a function that is differentiated on every shard. Under `pmap`,
or `shard_map` without `check_vma`, the gradient then comes out wrong by a factor or worse, without
an error. Here each shard computes the value and the gradient of its own examples, both are summed,
and a `custom_vjp` hands the sum to whoever differentiates: BlackJAX's kernels run unmodified.
A task may have a value and gradient of its own: `ensemble.task.OwnLogLikelihood`.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from ensemble.data.source import Examples
from ensemble.errors import InputError
from ensemble.sharding.mesh import DATA, platform_of, spec
from ensemble.sharding.transfer import place_split, with_own_gradient
from ensemble.task import LogDensity, OwnLogLikelihood
from ensemble.tasks.supervised import Supervised

TPU_BLOCK_SIZE = 256
"""Examples that a TPU convolves at a time. Its compiler takes minutes for more: decision 0093."""


def make_log_density(
    task: Supervised,
    split: Examples,
    mesh: Mesh,
    temperature: float = 1.0,
) -> LogDensity:
    """Returns log p(targets | inputs, params) / temperature + log p(params), up to a constant.

    The likelihood is the sum over all examples: a count that the shards do not divide is padded,
    and the padding weighs nothing. The prior is added once. Chains are vmapped with
    `spmd_axis_name=ENSEMBLE`.

    Args:
        task: network and prior; without batch statistics and dropout.
        split: the N examples to condition on.
        mesh: of `create_mesh`.
        temperature: of the likelihood; 1 is Bayes.

    Returns:
        The log density with its data.

    Raises:
        InputError: The network behaves differently in training, or there are fewer examples than
            shards.
    """
    check_posterior(task)
    own = task.own_log_likelihood(split, mesh)
    if not own:
        is_slow = platform_of(mesh) == "tpu" and task.traits.has_convolutions
        own = sum_of_examples(task, split, mesh, TPU_BLOCK_SIZE if is_slow else None)
    if own.num_parts < mesh.shape[DATA]:
        raise InputError(
            f"{own.num_parts} {own.parts} cannot be spread over {mesh.shape[DATA]} devices. Set "
            f"config.num_devices to at most {own.num_parts}"
        )

    def bind(data):
        log_likelihood = with_own_gradient(own.value_and_grad, data)
        return lambda params: log_likelihood(params) / temperature + task.log_prior(params)

    return LogDensity(
        own.place,
        bind,
        own.layout,
        bind_reference=lambda data, sd: task.log_prior,
        predict=own.predict or (lambda params, inputs: task.predict({"params": params}, inputs)),
    )


def sum_of_examples(
    task: Supervised, split: Examples, mesh: Mesh, block_size: int | None = None
) -> OwnLogLikelihood:
    """Returns the log likelihood of all examples and its gradient, in one pass over every shard.

    Args:
        task: Network.
        split: The N examples.
        mesh: Mesh of the devices.
        block_size: Most examples of a shard at a time; None: all of them.
    """
    number = len(split.targets)
    num_blocks = -(-number // (block_size * mesh.shape[DATA])) if block_size else 1

    def place():
        # Inputs as the network sees them.
        return place_split(split.inputs, split.targets, mesh, task.prepare, num_blocks=num_blocks)

    def of_block(params, data, i):
        # Varying, so that the gradient is this shard's own: of parameters that all shards share it
        # would be summed already.
        params = jax.tree.map(lambda leaf: lax.pcast(leaf, DATA, to="varying"), params)
        if num_blocks > 1:
            data = jax.tree.map(lambda leaf: leaf.reshape(num_blocks, -1, *leaf.shape[1:])[i], data)
        inputs, targets, mask = data

        def log_likelihood(params):
            # TPUs and TF32 would round the products to some 3 digits, which are nats here.
            with jax.default_matmul_precision("highest"):
                log_prob, _ = task.log_likelihood({"params": params}, inputs, targets)
            return jnp.sum(jnp.where(mask, log_prob, 0))  # A plain sum: a NaN must show.

        return lax.psum(jax.value_and_grad(log_likelihood)(params), DATA)

    whole = spec()
    of_shards = jax.shard_map(
        of_block,
        mesh=mesh,
        in_specs=(whole, spec("example"), whole),
        out_specs=whole,
        check_vma=True,
    )

    def value_and_grad(params, data):
        if num_blocks == 1:
            return of_shards(params, data, 0)

        def add(i, sums):
            return jax.tree.map(jnp.add, sums, of_shards(params, data, i))

        zeros = jnp.float32(0), jax.tree.map(jnp.zeros_like, params)
        return lax.fori_loop(0, num_blocks, add, zeros)

    return OwnLogLikelihood(place, value_and_grad, "examples", number)


def check_posterior(task: Supervised) -> None:
    """Refuses a task that has no posterior: its loss depends on more than parameters and data.

    Raises:
        InputError: the network behaves differently in training, or examples are weighted.
    """
    if not task.traits.examples_are_independent:
        raise InputError(
            "a posterior needs a likelihood that is a function of the parameters alone: networks "
            "with batch statistics or dropout have none; choose another config.model"
        )
    if task.dataset.train_weights is not None:
        raise InputError(
            "sample_weight is for config.method='deep_ensemble': in a posterior every example "
            "counts once; leave it out"
        )
