"""Chains of NUTS that do not wait for each other: each is at a draw, and a step of it, of its own.

Trees of different chains have different sizes. BlackJAX's kernel, mapped over chains, has nested
loops that run as long as the longest of all chains: in every draw, and in every doubling of every
draw. Here a tree grows by one leapfrog step a call, whatever step of whatever doubling it is at,
with no loop inside. All chains take a leapfrog step together, and a chain whose tree is done begins
its next draw. On several devices each has a loop of its own, and nothing crosses devices.

Draws are those of BlackJAX's `nuts`, with the same random numbers: multinomial draws from a tree
whose doublings are iterative (Betancourt 2017, "A Conceptual Introduction to Hamiltonian Monte
Carlo"; Phan et al. 2019, "Composable Effects for Flexible and Accelerated Probabilistic Programming
in NumPyro").
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from blackjax.mcmc.hmc import HMCState
from blackjax.mcmc.metrics import LowRankInverseMassMatrix, default_metric
from jax import Array, lax, random
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
from ensemble.methods.threefry import unrolled
from ensemble.methods.warmup import windows
from ensemble.sharding.mesh import spec

_PATIENCE = 4
"""Leapfrog steps of all chains that take about as long as to begin a draw; it changes no draw."""

InverseMass: TypeAlias = Array | LowRankInverseMassMatrix
"""[P], [P, P], or of low rank."""


# One tree: everything is of one chain, and positions are flat vectors [P].


class Tree(NamedTuple):
    """A trajectory that grows. D is the largest number of doublings.

    What changes at once is one array: XLA:CPU needs about as long to start an operation on a small
    array as to do it. A point is `[position, momentum, gradient]`; a state is position, gradient,
    log density and energy, in a row.

    Attributes:
        is_forward: [D], the direction of each doubling.
        key_leaves: [D], keys of the choices within the new half.
        uniform: [D], even from 0 to 1, for the choice between the halves.
        step_size: of the leapfrog steps.
        start_energy: nats.
        at: [3, P], the point where the next step starts.
        ends: [2, 3, P] first and last point of the trajectory.
        momentum_sum: [P], of the trajectory.
        choice: [2P + 2], a state that was drawn from the trajectory.
        log_weight: of the trajectory, relative to the start.
        sum_acceptance: of all states.
        num_steps: taken.
        depth: doublings that are whole.
        leaf: number of the next state of the half that is being built; the trajectory takes it in
            when it is whole.
        coin: even from 0 to 1, for that state.
        half_sum: [P], momenta of that half.
        half_choice: [2P + 2], from that half.
        half_weight: of that half.
        marks: [2, D, P], of the first states of its subtrees: the sum of momenta up to there less
            half of the last, and the velocity.
        is_divergent: whether an energy error was too large.
        is_done: whether the draw is `choice`; further steps change nothing that counts.
    """

    is_forward: Array
    key_leaves: Array
    uniform: Array
    step_size: Array
    start_energy: Array
    at: Array
    ends: Array
    momentum_sum: Array
    choice: Array
    log_weight: Array
    sum_acceptance: Array
    num_steps: Array
    depth: Array
    leaf: Array
    coin: Array
    half_sum: Array
    half_choice: Array
    half_weight: Array
    marks: Array
    is_divergent: Array
    is_done: Array


def plant(rng_key: Array, state: HMCState, step_size: Array, inverse_mass: InverseMass) -> Tree:
    """Starts the tree of a draw.

    Args:
        rng_key: of the draw.
        state: where it starts; `position` and `logdensity_grad` are flat.
        step_size: of the leapfrog steps.
        inverse_mass: of the draw.
    """
    key_momentum, key_tree = random.split(unrolled(rng_key))
    metric = default_metric(inverse_mass)
    momentum = metric.sample_momentum(key_momentum, state.position)
    energy = metric.kinetic_energy(momentum) - state.logdensity
    point = jnp.stack([state.position, momentum, state.logdensity_grad])
    choice = _in_a_row(point, state.logdensity, energy)
    zero = jnp.zeros(())
    no_steps = jnp.int32(0)

    def of_doubling(depth: Array) -> tuple[Array, Array, Array]:
        keys = random.split(random.fold_in(key_tree, depth), 3)
        key_direction, key_leaves, key_half = keys
        return random.bernoulli(key_direction), key_leaves, random.uniform(key_half)

    is_forward, key_leaves, uniform = jax.vmap(of_doubling)(jnp.arange(MAX_TREE_DEPTH))
    return Tree(
        is_forward=is_forward,
        key_leaves=key_leaves,
        uniform=uniform,
        step_size=step_size,
        start_energy=energy,
        at=point,
        ends=jnp.stack([point, point]),
        momentum_sum=momentum,
        choice=choice,
        log_weight=zero,
        sum_acceptance=zero,
        num_steps=no_steps,
        depth=no_steps,
        leaf=no_steps,
        coin=zero,  # The first state of a half is always taken.
        half_sum=jnp.zeros_like(momentum),
        half_choice=choice,
        half_weight=zero,
        marks=jnp.zeros((2, MAX_TREE_DEPTH, len(momentum))),
        is_divergent=jnp.bool_(False),
        is_done=jnp.bool_(False),
    )


def _in_a_row(point: Array, log_density: Array, energy: Array) -> Array:
    return jnp.concatenate([point[0], point[2], jnp.stack([log_density, energy])])


def grow(tree: Tree, value_and_grad: Callable[..., Any], inverse_mass: InverseMass) -> Tree:
    """Adds one state to a tree.

    Args:
        tree: of `plant`.
        value_and_grad: of the log density, from [P] to nats and [P].
        inverse_mass: as of `plant`.
    """
    doubling = jnp.minimum(tree.depth, MAX_TREE_DEPTH - 1)
    is_forward = tree.is_forward[doubling]
    # A leapfrog step.
    length = jnp.where(is_forward, tree.step_size, -tree.step_size)
    position, momentum, grad = tree.at
    momentum = momentum + 0.5 * length * grad
    position = position + length * times(inverse_mass, momentum)
    log_density, grad = value_and_grad(position)
    momentum = momentum + 0.5 * length * grad
    at = jnp.stack([position, momentum, grad])
    velocity = times(inverse_mass, momentum)
    momentum = at[1]
    energy = 0.5 * velocity @ momentum - log_density
    gain = tree.start_energy - energy
    gain = jnp.where(jnp.isnan(gain), -jnp.inf, gain)
    is_divergent = -gain > MAX_ENERGY_ERROR

    # The half that is being built: one of its states, each with its weight.
    is_first = tree.leaf == 0
    is_chosen = is_first | (tree.coin < jax.nn.sigmoid(gain - tree.half_weight))
    state = _in_a_row(at, log_density, energy)
    half_choice = jnp.where(is_chosen, state, tree.half_choice)
    half_weight = jnp.where(is_first, gain, jnp.logaddexp(tree.half_weight, gain))
    half_sum = jnp.where(is_first, momentum, tree.half_sum + momentum)
    mark = jnp.stack([half_sum - 0.5 * momentum, velocity])
    # The subtrees that end with this state, as the first and last level of their first states.
    last = jnp.bitwise_count(tree.leaf >> 1).astype(jnp.int32)
    num_subtrees = jnp.bitwise_count((~tree.leaf & (tree.leaf + 1)) - 1).astype(jnp.int32)
    first = last - num_subtrees + 1
    levels = jnp.arange(MAX_TREE_DEPTH)
    begins = (levels == last) & (tree.leaf % 2 == 0)
    offsets, velocities = tree.marks
    is_turning = jnp.any(
        (levels >= first) & (levels <= last) & _turns(mark[0] - offsets, velocities, velocity)
    )

    # A half that turns or diverges ends the draw, and is not taken.
    is_active = ~tree.is_done
    fails = is_turning | is_divergent
    is_whole = is_active & (fails | (tree.leaf + 1 >= 1 << doubling))
    uniform = tree.uniform[doubling]
    is_taken = is_whole & ~fails & (uniform < jnp.exp(half_weight - tree.log_weight))
    log_weight = jnp.logaddexp(tree.log_weight, half_weight)
    side = jnp.stack([~is_forward, is_forward])[:, None, None]
    ends = jnp.where(is_whole & side, at, tree.ends)
    momentum_sum = jnp.where(is_whole, tree.momentum_sum + half_sum, tree.momentum_sum)
    rho = momentum_sum - 0.5 * (ends[0, 1] + ends[1, 1])
    closes = _turns(rho, times(inverse_mass, ends[0, 1]), times(inverse_mass, ends[1, 1]))
    depth = tree.depth + is_whole
    goes_forward = tree.is_forward[jnp.minimum(depth, MAX_TREE_DEPTH - 1)]
    # For the next step: computed in that one, it would be so wherever it is used.
    coin = random.uniform(random.fold_in(tree.key_leaves[doubling], tree.leaf + 1))
    return tree._replace(
        at=jnp.where(is_whole, jnp.where(goes_forward, ends[1], ends[0]), at),
        ends=ends,
        momentum_sum=momentum_sum,
        choice=jnp.where(is_taken, half_choice, tree.choice),
        log_weight=jnp.where(is_whole, log_weight, tree.log_weight),
        sum_acceptance=tree.sum_acceptance + jnp.where(is_active, jnp.exp(jnp.minimum(gain, 0)), 0),
        num_steps=tree.num_steps + is_active,
        depth=depth,
        leaf=jnp.where(is_whole, 0, tree.leaf + 1),
        coin=coin,
        half_sum=half_sum,
        half_choice=half_choice,
        half_weight=half_weight,
        marks=jnp.where(begins[:, None], mark[:, None], tree.marks),
        is_divergent=tree.is_divergent | (is_active & is_divergent),
        is_done=tree.is_done | (is_whole & (fails | closes | (depth >= MAX_TREE_DEPTH))),
    )


def times(inverse_mass: InverseMass, momentum: Array) -> Array:
    """The velocity [P] of a momentum [P]."""
    if isinstance(inverse_mass, LowRankInverseMassMatrix):
        scale, directions, variances = inverse_mass
        scaled = scale * momentum
        return scale * (scaled + directions @ ((variances - 1) * (directions.T @ scaled)))
    return inverse_mass * momentum if inverse_mass.ndim == 1 else inverse_mass @ momentum


def _turns(rho: Array, velocity_left: Array, velocity_right: Array) -> Array:
    """Tells whether ends [..., P] approach each other; `rho` sums the momenta between them."""
    return (jnp.sum(velocity_left * rho, -1) <= 0) | (jnp.sum(velocity_right * rho, -1) <= 0)


# All chains.


class _Run(NamedTuple):
    """C chains under way.

    Attributes:
        t: Numbers [C] of their draws.
        chains: Chains, with flat positions.
        trees: Trees of these draws.
        record: What is recorded of every draw, [T, C, n], and of those that are kept, [K, C, n].
    """

    t: Array
    chains: Chain
    trees: Tree
    record: Any


def run_on_devices(
    mesh: Mesh,
    settings: Settings,
    bind: Callable[[Any], LogDensityFn],
    observe: Callable[[DrawInfo, Any], tuple[Any, Any]],
    num_kept: Callable[[Any], Any],
    data: Any,
    keys: Array,
    chains: Chain,
    record: Any,
    first: Array,
    end: Array,
) -> tuple[Chain, Any]:
    """Takes draws first..end-1 of every chain, each device of its own chains.

    Args:
        mesh: Mesh over whose axis `ensemble` the chains lie.
        settings: Settings of the sampler.
        bind: Function from the data to a log density, a function from a position to nats.
        observe: Function `(DrawInfo, position) -> (trace, params)`, trees of what is recorded of
            every draw, and of those that are kept.
        num_kept: Function of t, how many of the first t draws are kept.
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

    def run(data, *arguments):
        return _take_draws(settings, bind(data), observe, num_kept, *arguments)

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
    packed = [_pack(tree, 2) for tree in record]
    chains, written = run_all(data, keys, chains, packed, first, end)
    return chains, tuple(map(_unpack, written, record))


def _take_draws(
    settings: Settings,
    logdensity_fn: LogDensityFn,
    observe,
    num_kept,
    keys: Array,
    chains: Chain,
    record,
    first: Array,
    end: Array,
) -> tuple[Chain, Any]:
    """Takes the draws of the chains of a device; the record is as of `_Run`."""
    unravel = ravel_pytree(pytrees.at(chains.state.position, 0))[1]
    value_and_grad = jax.value_and_grad(lambda flat: logdensity_fn(unravel(flat)))
    warmup = windows(settings)
    num_chains = len(chains.state.logdensity)
    # Of chains whose tree is done, in leapfrog steps: then all that are done begin a new draw.
    patience = _PATIENCE * num_chains
    is_patient = settings.mass == "dense"  # To begin takes a factorisation of it.

    def begin(key: Array, chain: Chain, t: Array) -> Tree:
        adaptation = chain.adaptation
        step_size = warmup.step_size(adaptation, t)
        inverse_mass = adaptation.mass.inverse_mass_matrix
        return plant(random.fold_in(key, t), chain.state, step_size, inverse_mass)

    def step(chain: Chain, tree: Tree) -> Tree:
        return grow(tree, value_and_grad, chain.adaptation.mass.inverse_mass_matrix)

    def finish(chain: Chain, tree: Tree, t: Array) -> tuple[Chain, DrawInfo]:
        position, grad = jnp.split(tree.choice[:-2], 2)
        log_density, energy = tree.choice[-2:]
        state = HMCState(position, log_density, grad)
        error = energy - tree.start_energy
        info = DrawInfo(
            log_density=log_density,
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

        def must_grow(carry: tuple[Tree, Array]) -> Array:
            trees, waited = carry
            return ~jnp.all(trees.is_done) & (is_patient | (waited < patience))

        def grow_all(carry: tuple[Tree, Array]) -> tuple[Tree, Array]:
            trees, waited = carry
            trees = jax.vmap(step)(run.chains, trees)
            return trees, waited + jnp.sum(trees.is_done & has_draws)

        trees, _ = lax.while_loop(must_grow, grow_all, (trees, jnp.int32(0)))
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
        return _Run(run.t + is_due, chains, trees, written)

    position, log_density, grad = chains.state
    flat = chains._replace(state=HMCState(_pack(position, 1), log_density, _pack(grad, 1)))
    t = jnp.full(num_chains, first)
    # Trees that are done: the loop plants all, so that the program has it once.
    shapes = jax.eval_shape(jax.vmap(begin), keys, flat, t)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    trees = nothing._replace(is_done=jnp.ones_like(nothing.is_done))
    run = lax.while_loop(lambda run: jnp.any(run.t < end), advance, _Run(t, flat, trees, record))
    position, log_density, grad = run.chains.state
    unravel_all = jax.vmap(unravel)
    state = HMCState(unravel_all(position), log_density, unravel_all(grad))
    return run.chains._replace(state=state), run.record


_choose = jax.vmap(pytrees.where)
"""Function `(is_chosen [C], ones, others)` that chooses between trees of arrays [C, ...]."""


def _write(array: Array, is_written: Array, rows: Array, values: Array) -> Array:
    """Writes values [C, n] to rows [C] of [T, C, n], each chain to its column."""
    rows = jnp.where(is_written, rows, len(array))  # Beyond the end: nothing is written.
    return array.at[rows, jnp.arange(len(rows))].set(values, mode="drop")


def _pack(tree, num_axes: int) -> Array:
    """Joins arrays that share so many leading axes to one, [..., n]."""
    pack = lambda one: ravel_pytree(one)[0]  # noqa: E731
    for _ in range(num_axes):
        pack = jax.vmap(pack)
    return pack(tree)


def _unpack(packed: Array, template):
    """The inverse of `_pack`, of two axes."""
    return jax.vmap(jax.vmap(ravel_pytree(pytrees.at(template, (0, 0)))[1]))(packed)
