"""Chains of NUTS that do not wait for each other: each is at a draw of its own.

Trees of different chains have different sizes. Where all chains take a draw together, every draw
lasts as long as the largest tree. Here all chains take a leapfrog step together, and a chain whose
tree is done begins its next draw. Draws are those of BlackJAX's `nuts`, with the same random
numbers. On several devices each has a loop of its own, and nothing crosses devices.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.mcmc.hmc import HMCState
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh

from ensemble.methods.kernels import (
    MAX_ENERGY_ERROR,
    MAX_TREE_DEPTH,
    Chain,
    DrawInfo,
    FreeDraws,
    Settings,
)
from ensemble.methods.warmup import Windows, make_windows
from ensemble.numpyro_models.nuts_steps import Tree, grow, plant
from ensemble.sharding.mesh import spec

_PATIENCE = 4
"""Leapfrog steps of all chains that take about as long as to begin a draw; it changes no draw."""


class Recorded(NamedTuple):
    """What has been recorded of draws, in two arrays.

    Attributes:
        numbers: [T, C, n], of every draw.
        positions: [K, C, P], of those that are kept.
    """

    numbers: jax.Array
    positions: jax.Array


class _Run(NamedTuple):
    """C chains under way.

    Attributes:
        t: [C] numbers of their draws.
        chains: with flat positions.
        trees: of these draws.
        num_moves: [C] draws that count at which a chain was elsewhere than before.
        recorded: so far.
    """

    t: jax.Array
    chains: Chain
    trees: Tree
    num_moves: jax.Array
    recorded: Recorded


class _Draw(NamedTuple):
    """How one chain takes a draw.

    Attributes:
        value_and_grad: of the log density, at a flat position.
        windows: that adapt step size and mass.
    """

    value_and_grad: Callable[[jax.Array], tuple[jax.Array, jax.Array]]
    windows: Windows

    @classmethod
    def of(cls, settings: Settings, logdensity_fn: Callable[[jax.Array], jax.Array]) -> "_Draw":
        """By settings and the log density of a flat position."""
        return cls(jax.value_and_grad(logdensity_fn), make_windows(settings))

    def begin(self, chain: Chain, t: jax.Array) -> Tree:
        """The tree of draw t before its first leapfrog step."""
        return plant(
            jax.random.fold_in(chain.rng_key, t),
            chain.state,
            self.windows.step_size(chain.adaptation, t),
            chain.adaptation.mass.inverse_mass_matrix,
            MAX_TREE_DEPTH,
        )

    def grow(self, chain: Chain, tree: Tree) -> Tree:
        """The tree after one more leapfrog step, unless it is done."""
        inverse_mass = chain.adaptation.mass.inverse_mass_matrix
        return grow(tree, self.value_and_grad, inverse_mass, MAX_ENERGY_ERROR)

    def finish(self, chain: Chain, tree: Tree, t: jax.Array) -> tuple[Chain, DrawInfo]:
        """The chain after draw t, whose tree is done."""
        state, info = tree.state, draw_info(tree)
        adaptation = self.windows.update(
            chain.adaptation, t, state.position, state.logdensity_grad, info.acceptance_rate
        )
        return Chain(chain.rng_key, state, adaptation), info


class FreeChains(FreeDraws):
    """The loop of chains that do not wait, with the draws that they take."""

    def run(
        self,
        chains: Chain,
        num_moves: jax.Array,
        recorded: Recorded,
        begun: jax.Array,
        first: jax.Array,
        end: jax.Array,
    ) -> tuple[Chain, jax.Array, Recorded]:
        """Takes draws first..end-1 of every chain.

        Args:
            chains: [C, ...].
            num_moves: [C].
            recorded: of draws begun..first-1, with places for the new ones.
            begun: the number of the record's first draw.
            first: of the new draws.
            end: number after the last one.
        """
        unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], chains.state.position))[1]
        draw = _Draw.of(self.settings, lambda flat: self.logdensity_fn(unravel(flat)))
        # Of chains whose tree is done, in leapfrog steps: then all that are done begin a new draw.
        patience = _PATIENCE * len(num_moves)
        is_patient = self.settings.mass == "dense"  # To begin takes a factorisation of it.

        def advance(run: _Run) -> _Run:
            has_draws = run.t < end
            begun_trees = jax.vmap(draw.begin)(run.chains, run.t)
            trees = _choose(run.trees.is_done & has_draws, begun_trees, run.trees)

            def must_grow(carry: tuple[Tree, jax.Array]) -> jax.Array:
                trees, waited = carry
                return ~jnp.all(trees.is_done) & (is_patient | (waited < patience))

            def grow_all(carry: tuple[Tree, jax.Array]) -> tuple[Tree, jax.Array]:
                trees, waited = carry
                trees = jax.vmap(draw.grow)(run.chains, trees)
                return trees, waited + jnp.sum(trees.is_done & has_draws)

            trees, _ = jax.lax.while_loop(must_grow, grow_all, (trees, jnp.int32(0)))
            return finish_all(run._replace(trees=trees))

        def finish_all(run: _Run) -> _Run:
            is_due = run.trees.is_done & (run.t < end)
            # Of the others the adaptation stays: after the warm-up nothing changes it.
            t = jnp.where(is_due, run.t, self.settings.num_warmup)
            chains, info = jax.vmap(draw.finish)(run.chains, run.trees, t)
            log_density = info.log_density
            moved = (log_density != run.chains.state.logdensity) & jnp.isfinite(log_density)
            counts = is_due & (run.t >= self.num_left_out)
            chains = chains._replace(state=_choose(is_due, chains.state, run.chains.state))
            observed = jax.vmap(lambda info, flat: self.observe(info, unravel(flat)))(
                info, chains.state.position
            )
            numbers, params = (_pack(tree, 1) for tree in observed)
            kept, before = self.num_kept(run.t), self.num_kept(begun)
            is_kept = is_due & (self.num_kept(run.t + 1) > kept)
            recorded = Recorded(
                _write(run.recorded.numbers, is_due, run.t - begun, numbers),
                _write(run.recorded.positions, is_kept, kept - before, params),
            )
            num_moves = run.num_moves + (moved & counts)
            return _Run(run.t + is_due, chains, run.trees, num_moves, recorded)

        flat = chains._replace(state=jax.vmap(_ravel)(chains.state))
        t = jnp.full(len(num_moves), first)
        # Trees that are done: the loop plants all, so that the program has it once.
        nothing = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
            jax.eval_shape(jax.vmap(draw.begin), flat, t),
        )
        trees = nothing._replace(is_done=jnp.ones_like(nothing.is_done))
        run = _Run(t, flat, trees, num_moves, recorded)
        run = jax.lax.while_loop(lambda run: jnp.any(run.t < end), advance, run)
        position, log_density, grad = run.chains.state
        state = HMCState(jax.vmap(unravel)(position), log_density, jax.vmap(unravel)(grad))
        return run.chains._replace(state=state), run.num_moves, run.recorded


def run_on_devices(
    mesh: Mesh,
    free_draws: Callable[..., FreeDraws],
    whole: Sequence[Any],
    chains: Chain,
    num_moves: jax.Array,
    record: Any,
    *numbers: jax.Array,
) -> tuple[Chain, jax.Array, Any]:
    """`FreeChains.run`, each device with chains of its own.

    Args:
        mesh: over whose axis `ensemble` the chains lie.
        free_draws: `(*whole) -> FreeDraws`.
        whole: trees of arrays that every device has whole.
        chains: [C, ...].
        num_moves: [C].
        record: a pair of trees [T, C, ...] and [K, C, ...].
        *numbers: begun, first, end.

    Returns:
        The chains, `num_moves` and the record after these draws.
    """

    def run(whole: Sequence[Any], *arguments: Any) -> Any:
        return FreeChains(*free_draws(*whole)).run(*arguments)

    own, draws, shared = spec("chain"), spec(None, "chain"), spec()
    run_all = jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(shared, own, own, draws, shared, shared, shared),
        out_specs=(own, own, draws),
        check_vma=False,  # Devices that share chains all compute the same.
    )
    packed = Recorded(*(_pack(tree, 2) for tree in record))
    chains, num_moves, recorded = run_all(whole, chains, num_moves, packed, *numbers)
    unpacked = [_unpack(array, tree) for array, tree in zip(recorded, record, strict=True)]
    return chains, num_moves, type(record)(*unpacked)


def draw_info(tree: Tree) -> DrawInfo:
    """The diagnostics of a draw whose tree is done."""
    energy_error = tree.energy - tree.start_energy
    return DrawInfo(
        log_density=tree.state.logdensity,
        acceptance_rate=tree.sum_acceptance / tree.num_steps,
        is_divergent=tree.is_divergent,
        energy_error=jnp.where(jnp.isnan(energy_error), jnp.inf, energy_error),
        step_size=tree.step_size,
        num_gradients=tree.num_steps,
    )


def _ravel(state: HMCState) -> HMCState:
    position, grad = (ravel_pytree(tree)[0] for tree in (state.position, state.logdensity_grad))
    return HMCState(position, state.logdensity, grad)


def _choose(is_chosen: jax.Array, ones: Any, others: Any) -> Any:
    """Takes chosen entries of the first of two trees of arrays [C, ...], and others of the
    second."""

    def choose(one: jax.Array, other: jax.Array) -> jax.Array:
        return jnp.where(is_chosen.reshape(-1, *[1] * (one.ndim - 1)), one, other)

    return jax.tree.map(choose, ones, others)


def _write(
    array: jax.Array, is_written: jax.Array, rows: jax.Array, values: jax.Array
) -> jax.Array:
    """Writes values [C, n] to rows [C] of [T, C, n], each chain to its column."""
    rows = jnp.where(is_written, rows, len(array))  # Beyond the end: nothing is written.
    return array.at[rows, jnp.arange(len(rows))].set(values, mode="drop")


def _pack(tree: Any, num_axes: int) -> jax.Array:
    """Arrays that share so many leading axes as one, [..., n]."""
    pack = lambda one: ravel_pytree(one)[0]  # noqa: E731
    for _ in range(num_axes):
        pack = jax.vmap(pack)
    return pack(tree)


def _unpack(packed: jax.Array, template: Any) -> Any:
    """The inverse of `_pack`, of two axes."""
    one = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[2:], leaf.dtype), template)
    return jax.vmap(jax.vmap(ravel_pytree(one)[1]))(packed)
