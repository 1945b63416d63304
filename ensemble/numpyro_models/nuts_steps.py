"""NUTS as a machine of single leapfrog steps, so that chains need not wait for each other.

The transition is BlackJAX's `nuts`, with the same random numbers: multinomial draws from a tree
whose doublings are iterative (Betancourt 2017, "A Conceptual Introduction to Hamiltonian Monte
Carlo"; Phan et al. 2019, "Composable Effects for Flexible and Accelerated Probabilistic Programming
in NumPyro"). Mapped over chains, its nested loops run as long as the longest of all chains: in
every draw, and in every doubling of every draw. Here a tree grows by one step a call, whatever step
of whatever doubling it is at, with no loop inside.

Everything is of one chain, and positions are flat vectors [P].
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from blackjax.mcmc.hmc import HMCState
from blackjax.mcmc.metrics import LowRankInverseMassMatrix, default_metric

from ensemble.methods.threefry import unrolled

ValueAndGrad = Callable[[jax.Array], tuple[jax.Array, jax.Array]]
InverseMass: TypeAlias = jax.Array | LowRankInverseMassMatrix
"""[P], [P, P], or of low rank."""


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

    is_forward: jax.Array
    key_leaves: jax.Array
    uniform: jax.Array
    step_size: jax.Array
    start_energy: jax.Array
    at: jax.Array
    ends: jax.Array
    momentum_sum: jax.Array
    choice: jax.Array
    log_weight: jax.Array
    sum_acceptance: jax.Array
    num_steps: jax.Array
    depth: jax.Array
    leaf: jax.Array
    coin: jax.Array
    half_sum: jax.Array
    half_choice: jax.Array
    half_weight: jax.Array
    marks: jax.Array
    is_divergent: jax.Array
    is_done: jax.Array

    @property
    def state(self) -> HMCState:
        """The draw, if the tree is done."""
        num_params = self.momentum_sum.size
        position = self.choice[:num_params]
        grad = self.choice[num_params:-2]
        return HMCState(position, self.choice[-2], grad)


def plant(
    rng_key: jax.Array,
    state: HMCState,
    step_size: jax.Array,
    inverse_mass: InverseMass,
    max_depth: int,
) -> Tree:
    """Starts the tree of a draw.

    Args:
        rng_key: of the draw.
        state: where it starts; `position` and `logdensity_grad` are flat.
        step_size: of the leapfrog steps.
        inverse_mass: of the draw.
        max_depth: D.
    """
    key_momentum, key_tree = jax.random.split(unrolled(rng_key))
    metric = default_metric(inverse_mass)
    momentum = metric.sample_momentum(key_momentum, state.position)
    energy = metric.kinetic_energy(momentum) - state.logdensity
    point = jnp.stack([state.position, momentum, state.logdensity_grad])
    choice = _in_a_row(point, state.logdensity, energy)
    zero = jnp.zeros(())
    no_steps = jnp.int32(0)

    def of_doubling(depth: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        keys = jax.random.split(jax.random.fold_in(key_tree, depth), 3)
        key_direction, key_leaves, key_half = keys
        return jax.random.bernoulli(key_direction), key_leaves, jax.random.uniform(key_half)

    is_forward, key_leaves, uniform = jax.vmap(of_doubling)(jnp.arange(max_depth))
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
        marks=jnp.zeros((2, max_depth, len(momentum))),
        is_divergent=jnp.bool_(False),
        is_done=jnp.bool_(False),
    )


def _in_a_row(point: jax.Array, log_density: jax.Array, energy: jax.Array) -> jax.Array:
    return jnp.concatenate([point[0], point[2], jnp.stack([log_density, energy])])


def grow(
    tree: Tree,
    value_and_grad: ValueAndGrad,
    inverse_mass: InverseMass,
    max_energy_error: float,
) -> Tree:
    """Adds one state to a tree.

    Args:
        tree: of `plant`.
        value_and_grad: of the log density, from [P] to nats and [P].
        inverse_mass: as of `plant`.
        max_energy_error: nats above which a state is divergent.
    """
    max_depth = tree.marks.shape[1]
    doubling = jnp.minimum(tree.depth, max_depth - 1)
    is_forward = tree.is_forward[doubling]
    length = jnp.where(is_forward, tree.step_size, -tree.step_size)
    at, log_density, velocity = _leapfrog(tree.at, value_and_grad, length, inverse_mass)
    momentum = at[1]
    energy = 0.5 * velocity @ momentum - log_density
    gain = tree.start_energy - energy
    gain = jnp.where(jnp.isnan(gain), -jnp.inf, gain)
    is_divergent = -gain > max_energy_error

    # The half that is being built: one of its states, each with its weight.
    is_first = tree.leaf == 0
    is_chosen = is_first | (tree.coin < jax.nn.sigmoid(gain - tree.half_weight))
    state = _in_a_row(at, log_density, energy)
    half_choice = jnp.where(is_chosen, state, tree.half_choice)
    half_weight = jnp.where(is_first, gain, jnp.logaddexp(tree.half_weight, gain))
    half_sum = jnp.where(is_first, momentum, tree.half_sum + momentum)
    mark = jnp.stack([half_sum - 0.5 * momentum, velocity])
    first, last = _subtrees(tree.leaf)
    levels = jnp.arange(max_depth)
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
    goes_forward = tree.is_forward[jnp.minimum(depth, max_depth - 1)]
    # For the next step: computed in that one, it would be so wherever it is used.
    coin = jax.random.uniform(jax.random.fold_in(tree.key_leaves[doubling], tree.leaf + 1))
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
        is_done=tree.is_done | (is_whole & (fails | closes | (depth >= max_depth))),
    )


def _leapfrog(
    at: jax.Array, value_and_grad: ValueAndGrad, length: jax.Array, inverse_mass: InverseMass
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The next point, with its log density and its velocity [P]."""
    position, momentum, grad = at
    momentum = momentum + 0.5 * length * grad
    position = position + length * times(inverse_mass, momentum)
    log_density, grad = value_and_grad(position)
    momentum = momentum + 0.5 * length * grad
    return jnp.stack([position, momentum, grad]), log_density, times(inverse_mass, momentum)


def times(inverse_mass: InverseMass, momentum: jax.Array) -> jax.Array:
    """The velocity [P] of a momentum [P]."""
    if isinstance(inverse_mass, LowRankInverseMassMatrix):
        scale, directions, variances = inverse_mass
        scaled = scale * momentum
        return scale * (scaled + directions @ ((variances - 1) * (directions.T @ scaled)))
    return inverse_mass * momentum if inverse_mass.ndim == 1 else inverse_mass @ momentum


def _turns(rho: jax.Array, velocity_left: jax.Array, velocity_right: jax.Array) -> jax.Array:
    """Whether ends [..., P] approach each other; `rho` is the sum of momenta between them."""
    return (jnp.sum(velocity_left * rho, -1) <= 0) | (jnp.sum(velocity_right * rho, -1) <= 0)


def _subtrees(leaf: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The subtrees that end with a state, as the first and last level of their first states."""
    last = jnp.bitwise_count(leaf >> 1).astype(jnp.int32)
    num_subtrees = jnp.bitwise_count((~leaf & (leaf + 1)) - 1).astype(jnp.int32)
    return last - num_subtrees + 1, last
