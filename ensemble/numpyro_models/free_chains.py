"""Chains of NUTS that do not wait for each other: each is at a draw of its own.

Trees of different chains have different sizes. Where all chains take a draw together, every draw
lasts as long as the largest tree. Here all chains take a leapfrog step together, and a chain whose
tree is done begins its next draw. Draws are those of BlackJAX's `nuts`, with the same random
numbers. On several devices each has a loop of its own, and nothing crosses devices.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.mcmc.hmc import HMCState
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh

from ensemble import pytrees
from ensemble.methods.kernels import (
    MAX_ENERGY_ERROR,
    MAX_TREE_DEPTH,
    Chain,
    DrawInfo,
    LogDensityFn,
    Settings,
)
from ensemble.methods.warmup import windows
from ensemble.numpyro_models.nuts_steps import Tree, grow, plant
from ensemble.sharding.mesh import spec

_PATIENCE = 4
"""Leapfrog steps of all chains that take about as long as to begin a draw; it changes no draw."""


class _Run(NamedTuple):
    """C chains under way.

    Attributes:
        t: Numbers [C] of their draws.
        chains: Chains, with flat positions.
        trees: Trees of these draws.
        record: What is recorded of every draw, [T, C, n], and of those that are kept, [K, C, P].
    """

    t: jax.Array
    chains: Chain
    trees: Tree
    record: tuple[jax.Array, jax.Array]


def take_draws(
    settings: Settings,
    logdensity_fn: LogDensityFn,
    observe: Callable[[DrawInfo, Any], tuple[Any, Any]],
    num_kept: Callable[[Any], Any],
    keys: jax.Array,
    chains: Chain,
    record: tuple[jax.Array, jax.Array],
    first: jax.Array,
    end: jax.Array,
) -> tuple[Chain, tuple[jax.Array, jax.Array]]:
    """Takes draws first..end-1 of every chain.

    Args:
        settings: Settings of the sampler.
        logdensity_fn: Function from a position to nats.
        observe: Function `(DrawInfo, position) -> (trace, params)`, trees of what is recorded of
            every draw, and of those that are kept.
        num_kept: Function of t, how many of the first t draws are kept.
        keys: Keys [C] of the chains.
        chains: Chains [C, ...].
        record: As of `_Run`, with places for the draws from `first` on.
        first: Number of the first draw.
        end: Number after the last one.
    """
    unravel = ravel_pytree(pytrees.at(chains.state.position, 0))[1]
    value_and_grad = jax.value_and_grad(lambda flat: logdensity_fn(unravel(flat)))
    warmup = windows(settings)
    num_chains = len(chains.state.logdensity)
    # Of chains whose tree is done, in leapfrog steps: then all that are done begin a new draw.
    patience = _PATIENCE * num_chains
    is_patient = settings.mass == "dense"  # To begin takes a factorisation of it.

    def begin(key: jax.Array, chain: Chain, t: jax.Array) -> Tree:
        return plant(
            jax.random.fold_in(key, t),
            chain.state,
            warmup.step_size(chain.adaptation, t),
            chain.adaptation.mass.inverse_mass_matrix,
            MAX_TREE_DEPTH,
        )

    def step(chain: Chain, tree: Tree) -> Tree:
        inverse_mass = chain.adaptation.mass.inverse_mass_matrix
        return grow(tree, value_and_grad, inverse_mass, MAX_ENERGY_ERROR)

    def finish(chain: Chain, tree: Tree, t: jax.Array) -> tuple[Chain, DrawInfo]:
        state = tree.state
        error = tree.choice[-1] - tree.start_energy
        info = DrawInfo(
            log_density=state.logdensity,
            acceptance_rate=tree.sum_acceptance / tree.num_steps,
            is_divergent=tree.is_divergent,
            energy_error=jnp.where(jnp.isnan(error), jnp.inf, error),
            step_size=tree.step_size,
            num_gradients=tree.num_steps,
        )
        return Chain(state, warmup.update(chain.adaptation, t, state, info.acceptance_rate)), info

    def advance(run: _Run) -> _Run:
        has_draws = run.t < end
        begun = jax.vmap(begin)(keys, run.chains, run.t)
        trees = _choose(run.trees.is_done & has_draws, begun, run.trees)

        def must_grow(carry: tuple[Tree, jax.Array]) -> jax.Array:
            trees, waited = carry
            return ~jnp.all(trees.is_done) & (is_patient | (waited < patience))

        def grow_all(carry: tuple[Tree, jax.Array]) -> tuple[Tree, jax.Array]:
            trees, waited = carry
            trees = jax.vmap(step)(run.chains, trees)
            return trees, waited + jnp.sum(trees.is_done & has_draws)

        trees, _ = jax.lax.while_loop(must_grow, grow_all, (trees, jnp.int32(0)))
        is_due = trees.is_done & has_draws
        # Of the others the adaptation stays: after the warm-up nothing changes it.
        t = jnp.where(is_due, run.t, settings.num_warmup)
        chains, info = jax.vmap(finish)(run.chains, trees, t)
        chains = chains._replace(state=_choose(is_due, chains.state, run.chains.state))
        observed = jax.vmap(lambda info, flat: observe(info, unravel(flat)))(
            info, chains.state.position
        )
        before = num_kept(first)
        kept = num_kept(run.t)
        is_kept = is_due & (num_kept(run.t + 1) > kept)
        places = (is_due, run.t - first), (is_kept, kept - before)
        written = [
            _write(array, *place, _pack(tree, 1))
            for array, place, tree in zip(run.record, places, observed, strict=True)
        ]
        return _Run(run.t + is_due, chains, trees, (written[0], written[1]))

    def ravel(state: HMCState) -> HMCState:
        position, grad = (ravel_pytree(leaf)[0] for leaf in (state.position, state.logdensity_grad))
        return HMCState(position, state.logdensity, grad)

    flat = chains._replace(state=jax.vmap(ravel)(chains.state))
    t = jnp.full(num_chains, first)
    # Trees that are done: the loop plants all, so that the program has it once.
    shapes = jax.eval_shape(jax.vmap(begin), keys, flat, t)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    trees = nothing._replace(is_done=jnp.ones_like(nothing.is_done))
    run = jax.lax.while_loop(
        lambda run: jnp.any(run.t < end), advance, _Run(t, flat, trees, record)
    )
    position, log_density, grad = run.chains.state
    state = HMCState(jax.vmap(unravel)(position), log_density, jax.vmap(unravel)(grad))
    return run.chains._replace(state=state), run.record


def run_on_devices(
    mesh: Mesh,
    settings: Settings,
    bind: Callable[[Any], LogDensityFn],
    observe: Callable[[DrawInfo, Any], tuple[Any, Any]],
    num_kept: Callable[[Any], Any],
    data: Any,
    keys: jax.Array,
    chains: Chain,
    record: Any,
    first: jax.Array,
    end: jax.Array,
) -> tuple[Chain, Any]:
    """Takes draws first..end-1 of every chain, each device of its own chains.

    Args:
        mesh: Mesh over whose axis `ensemble` the chains lie.
        settings: Settings of the sampler.
        bind: Function from the data to a log density.
        observe: As of `take_draws`.
        num_kept: As of `take_draws`.
        data: Tree of arrays that every device has whole.
        keys: Keys [C] of the chains.
        chains: Chains [C, ...].
        record: A pair of trees, [T, C, ...] of every draw from `first` on, and [K, C, ...] of those
            that are kept.
        first: Number of the first draw.
        end: Number after the last one.

    Returns:
        The chains and the record after these draws.
    """

    def run(data: Any, *arguments: Any) -> Any:
        return take_draws(settings, bind(data), observe, num_kept, *arguments)

    own = spec("chain")
    draws = spec(None, "chain")
    shared = spec()
    run_all = jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(shared, own, own, draws, shared, shared),
        out_specs=(own, draws),
        check_vma=False,  # Devices that share chains all compute the same.
    )
    packed = _pack(record[0], 2), _pack(record[1], 2)
    chains, written = run_all(data, keys, chains, packed, first, end)
    return chains, tuple(map(_unpack, written, record))


_choose = jax.vmap(pytrees.where)
"""Function `(is_chosen [C], ones, others)` that chooses between trees of arrays [C, ...]."""


def _write(
    array: jax.Array, is_written: jax.Array, rows: jax.Array, values: jax.Array
) -> jax.Array:
    """Writes values [C, n] to rows [C] of [T, C, n], each chain to its column."""
    rows = jnp.where(is_written, rows, len(array))  # Beyond the end: nothing is written.
    return array.at[rows, jnp.arange(len(rows))].set(values, mode="drop")


def _pack(tree: Any, num_axes: int) -> jax.Array:
    """Joins arrays that share so many leading axes to one, [..., n]."""
    pack = lambda one: ravel_pytree(one)[0]  # noqa: E731
    for _ in range(num_axes):
        pack = jax.vmap(pack)
    return pack(tree)


def _unpack(packed: jax.Array, template: Any) -> Any:
    """The inverse of `_pack`, of two axes."""
    return jax.vmap(jax.vmap(ravel_pytree(pytrees.at(template, (0, 0)))[1]))(packed)
