"""One step of Langevin dynamics by the gradient of a batch, as a transformation of optax.

A chain has a position x, a momentum p and a diagonal mass M; U is the negative log posterior of N
examples, of which the gradient of a batch's mean loss is a noisy N-th. A step of size h is

    p  <- p - h dU(x)                              by the batch
    p' <- c p + sqrt(1 - c^2) sqrt(M) xi           xi ~ N(0, I)
    x  <- x + h/2 (p + p') / M

the order of BAOAB (Leimkuhler and Matthews 2013, "Rational construction of stochastic numerical
methods for molecular sampling"), whose positions have no error of discretisation on a normal
posterior, at any stable h. SGHMC (Chen et al. 2014, arXiv:1402.4102) keeps the share c of its
momentum, as SGD with momentum does; SGLD (Welling and Teh 2011) keeps none, c = 0. With the
learning rate eta = h^2 N (1 + c) / 2 the drift is that of SGD with momentum c.

The noise of the gradient heats the chain. Of a gradient with noise V to dU it leaves p at the
temperature 1 + h^2 V / (M (1 - c^2)), and slow directions of x at `temperature` below.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import optax

from ensemble import pytrees
from ensemble.methods.optimizers import Descent
from ensemble.methods.timetable import timetable
from ensemble.runtime.algorithm import Stream

_MEMORY = 0.99  # Of the squared gradients, at each step; RMSprop's.
_LEAST_ROOT = 0.1  # In means over the parameters: what is hardly ever moved is not moved far.


class LangevinState(NamedTuple):
    """What the next step needs beside the parameters.

    Attributes:
        num_steps: taken.
        rng_key: data of the chain's key, [2] uint32; step t draws from `fold_in(rng_key, t)`.
        momentum: as the parameters.
        squares: running mean of squared gradients, as the parameters; None without preconditioner.
        kinetic: [] mean of p^2 / M over the parameters, before noise was added; 1 is expected.
    """

    num_steps: jax.Array
    rng_key: jax.Array
    momentum: Any
    squares: Any
    kinetic: jax.Array


def langevin(
    learning_rate: optax.Schedule,
    is_noisy: Callable[[jax.Array], jax.Array],
    num_examples: int,
    decay: float,
    num_adapting: int,
) -> optax.GradientTransformation:
    """Makes the transformation; `descent_of_chains` seeds its noise.

    Args:
        learning_rate: eta by step.
        is_noisy: whether a step adds noise.
        num_examples: N; gradients are those of U / N.
        decay: c, the share of the momentum that a step keeps.
        num_adapting: steps that adapt the mass, of the root of the mean squared gradient (Li et
            al. 2016, arXiv:1512.07666, without the term of its changes, for then it is frozen); 0
            for a mass of 1.
    """

    def init(params: Any) -> LangevinState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return LangevinState(
            num_steps=jnp.zeros((), jnp.int32),
            rng_key=jax.random.key_data(jax.random.key(0)),
            momentum=zeros,
            squares=zeros if num_adapting else None,
            kinetic=jnp.zeros(()),
        )

    def update(grads: Any, state: LangevinState, params: Any = None) -> tuple[Any, LangevinState]:
        count = state.num_steps
        squares = state.squares
        if num_adapting:
            share = jnp.where(count < num_adapting, 1 - _MEMORY, 0.0)
            squares = jax.tree.map(lambda v, g: v + share * (g**2 - v), squares, grads)
        mass = masses(squares, grads)
        size = jnp.sqrt(2 * learning_rate(count) / (num_examples * (1 + decay)))
        moved = jax.tree.map(lambda p, g: p - size * num_examples * g, state.momentum, grads)
        rng_key = jax.random.fold_in(jax.random.wrap_key_data(state.rng_key), count)
        noise = pytrees.standard_normal(rng_key, grads)
        scale = jnp.sqrt(1 - decay**2) * is_noisy(count)
        momentum = jax.tree.map(
            lambda p, m, xi: decay * p + scale * jnp.sqrt(m) * xi, moved, mass, noise
        )
        updates = jax.tree.map(
            lambda before, after, m: size / 2 * (before + after) / m, moved, momentum, mass
        )
        energies = jax.tree.map(lambda p, m: jnp.sum(p**2 / m), moved, mass)
        kinetic: Any = sum(jax.tree.leaves(energies)) / pytrees.size(grads)
        return updates, LangevinState(count + 1, state.rng_key, momentum, squares, kinetic)

    return optax.GradientTransformation(init, update)


def share_kept(config: ml_collections.FrozenConfigDict) -> float:
    """Returns the share of the momentum that a step keeps."""
    return float(config.get("momentum", 0.0))


def descent_of_chains(config: ml_collections.FrozenConfigDict, num_examples: int) -> Descent:
    """Makes the descent of chains.

    Args:
        config: Configuration of the run.
        num_examples: N of the data.
    """
    times = timetable(config)
    num_adapting = times.num_burn_in * (config.sgmcmc.preconditioner != "none")
    decay = share_kept(config)
    optimizer = langevin(times.learning_rate, times.is_noisy, num_examples, decay, num_adapting)

    def seed(state: LangevinState, rng_key: jax.Array) -> LangevinState:
        noise_key = jax.random.fold_in(rng_key, Stream.DESCENT)
        return state._replace(rng_key=jax.random.key_data(noise_key))

    return Descent(times.learning_rate, optimizer, seed)


def masses(squares: Any, params: Any) -> Any:
    """The mass of every parameter, 1 on average, from mean squared gradients; None: 1 each."""
    if squares is None:
        return jax.tree.map(jnp.ones_like, params)
    roots = jax.tree.map(jnp.sqrt, squares)
    mean = sum(map(jnp.sum, jax.tree.leaves(roots))) / pytrees.size(roots)
    mean = jnp.maximum(mean, jnp.finfo(jnp.float32).tiny)
    return jax.tree.map(lambda root: (root / mean + _LEAST_ROOT) / (1 + _LEAST_ROOT), roots)


def temperature(kinetic: Any, decay: float) -> Any:
    """The temperature at which slow directions are drawn, by that of the momentum.

    Noise that a step adds to p before the noise xi moves x by (1 + c)/2 of what xi does in size.

    Args:
        kinetic: the mean of `LangevinState.kinetic`.
        decay: c.
    """
    return 1 + (kinetic - 1) * ((1 + decay) / 2) ** 2
