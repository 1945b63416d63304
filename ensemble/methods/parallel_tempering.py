"""Parallel tempering: chains that move between modes which are far apart.

A chain is a ladder of replicas. Replica k samples reference^(1 - b_k) * target^b_k by HMC, from
b_0 = 0, where the reference is wide, to b_{K-1} = 1, whose draws are the chain's. Neighbours swap
their places with the probability that keeps all of these densities, even and odd pairs by turns
(Syed et al. 2022, "Non-reversible parallel tempering"). In the first half of the warm-up the b_k
are spread anew in rounds, so that all pairs swap equally often (their algorithm 2).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc.hmc import HMCState
from blackjax.mcmc.metrics import default_metric
from jax import lax, random

from ensemble import pytrees
from ensemble.methods.kernels import Chain, LogDensityFn, Sampler, Settings, follow
from ensemble.methods.warmup import Adaptation, windows
from ensemble.sharding.transfer import with_own_gradient

SWAP = 2**32 - 3
"""Number of the stream of swaps in a draw's key: no replica has it."""
FIRST_ROUND = 16
"""Draws of the first round; each further one is twice as long."""
_ENDS = FIRST_ROUND * 2 ** np.arange(1, 26) - FIRST_ROUND - 1  # The last draws of rounds.
_INITIAL_POWER = 5  # Likelihoods of thousands of nats need the first steps to be small.
_HUGE = float(np.finfo(np.float32).max)  # Infinity less infinity is not a number.
_FLOOR = 1e-3  # Rejections of a pair, so that no two temperatures become one.


class Place(NamedTuple):
    """Position of a replica, and its log densities.

    Attributes:
        position: Tree.
        target: Log density of the target, nats, and its gradient.
        reference: The same of the reference.
    """

    position: Any
    target: Any
    reference: Any

    def mixed(self, beta) -> HMCState:
        """Mixes log densities and gradients of target and reference.

        Where the target is impossible, so is every density of the ladder but the reference.
        """

        def mix(one, other):
            return jnp.where(beta > 0, beta * one + (1 - beta) * other, other)

        return HMCState(self.position, *jax.tree.map(mix, self.target, self.reference))

    @property
    def state(self) -> HMCState:
        """State of HMC at the target."""
        return HMCState(self.position, *self.target)

    @property
    def log_ratio(self):
        """Log of the ratio of target and reference."""
        return self.target[0] - self.reference[0]


class Replicas(NamedTuple):
    """Ladder of one chain, K replicas: what its next draw needs in addition to the last one.

    Attributes:
        at: Places of the replicas, [K, ...].
        betas: Exponents of the target, [K], from 0 to 1.
        tuning: Step size at each temperature and mass, by its inverse, [K].
        swaps: Acceptance rates of swaps, [K - 1], summed over this round or the draws that count.
        top: Largest logarithm [K - 1], over the draws after the warm-up, of the ratio of the
            densities of the next temperature and this one.
        ratios: Sum of these ratios, [K - 1], relative to the largest one: a logarithm of
            thousands of nats could not hold what one of many draws adds to it.
    """

    at: Place
    betas: Any
    tuning: Adaptation
    swaps: Any
    top: Any
    ratios: Any


def make(
    settings: Settings, target: LogDensityFn, make_metric: None, reference: LogDensityFn
) -> Sampler:
    """Makes the sampler; the arguments are those of `make_sampler`.

    Every temperature has a warm-up of its own.
    """
    number = settings.num_replicas
    warmup = windows(settings)

    def place(position):
        of_each = (jax.value_and_grad(one)(position) for one in (target, reference))
        return Place(position, *of_each)

    def value_and_grad(position, beta):
        # Derived of the mixed value, a gradient would be NaN where the target's is, at beta = 0
        # too, where the target does not count.
        return place(position).mixed(beta)[1:]

    def init(rng_key, position):
        pairs = jnp.zeros(number - 1)
        # All replicas are at one place; those near the reference leave it at once.
        at, tuning = jax.tree.map(
            lambda leaf: jnp.repeat(leaf[None], number, axis=0),
            (place(position), warmup.init(position)),
        )
        betas = jnp.linspace(0, 1, number) ** _INITIAL_POWER
        replicas = Replicas(at, betas, tuning, pairs, jnp.full(number - 1, -_HUGE), pairs)
        return Chain(place(position).state, replicas)

    def step(rng_key, chain, t):
        rng_key = random.fold_in(rng_key, t)
        replicas = chain.adaptation

        def move(one):
            rng_key, at, beta, tuning = one
            # The variance of gradients: modes that lie apart widen positions, but not these.
            metric = default_metric(1 / tuning.mass.inverse_mass_matrix)
            density = with_own_gradient(value_and_grad, beta)
            step_size = warmup.step_size(tuning, t)
            after, drawn = follow(settings, density, rng_key, at.mixed(beta), step_size, metric, t)
            moved = after._replace(position=after.logdensity_grad)
            tuning = warmup.update(tuning, t, moved, drawn.acceptance_rate)
            return place(after.position), tuning, drawn

        keys = pytrees.keys_of(rng_key, jnp.arange(number))
        # One after another: within the vmap over chains, JAX cannot map a likelihood over shards
        # once more.
        at, tuning, drawn = lax.map(move, (keys, replicas.at, replicas.betas, replicas.tuning))
        replicas = swapped(rng_key, replicas._replace(at=at, tuning=tuning), t)
        replicas = adapted(replicas, t, settings.num_warmup)
        state = pytrees.at(replicas.at, -1).state
        draw = pytrees.at(drawn, -1)._replace(
            log_density=state.logdensity,
            # And one of each replica where it has come to.
            num_gradients=jnp.sum(drawn.num_gradients + 1),
        )
        return Chain(state, replicas), draw

    return Sampler(init, step)


def swapped(rng_key: jax.Array, replicas: Replicas, t: jax.Array) -> Replicas:
    """Swaps the places of neighbours: pairs (0, 1), (2, 3), ... at even t, the others at odd t."""
    numbers = jnp.arange(len(replicas.betas))
    ratio = replicas.at.log_ratio
    log_accept = jnp.diff(replicas.betas) * (ratio[:-1] - ratio[1:])
    accept = jnp.where(jnp.isnan(log_accept), 0, jnp.exp(jnp.minimum(log_accept, 0)))
    is_tried = numbers[:-1] % 2 == t % 2
    uniform = random.uniform(random.fold_in(rng_key, SWAP), accept.shape)
    goes_up = jnp.append(is_tried & (uniform < accept), False)
    order = numbers + goes_up - jnp.roll(goes_up, 1)  # From which a replica comes.
    swaps = replicas.swaps + jnp.where(is_tried, accept, 0)
    return replicas._replace(at=pytrees.at(replicas.at, order), swaps=swaps)


def adapted(replicas: Replicas, t, num_warmup: int) -> Replicas:
    """Spreads the temperatures anew where draw t ends a round; after the warm-up, counts."""
    is_end = jnp.any(t == _ENDS[num_warmup // 2 > _ENDS])
    replicas = lax.cond(is_end, lambda one: spread_anew(one, t), lambda one: one, replicas)
    log_ratios = jnp.diff(replicas.betas) * replicas.at.log_ratio[:-1]
    log_ratios = jnp.where(jnp.isnan(log_ratios) | (t < num_warmup), -jnp.inf, log_ratios)
    top = jnp.maximum(replicas.top, log_ratios)
    ratios = replicas.ratios * jnp.exp(replicas.top - top) + jnp.exp(log_ratios - top)
    # The swaps of the warm-up are of other temperatures.
    swaps = replicas.swaps * (t != num_warmup - 1)
    return replicas._replace(top=top, ratios=ratios, swaps=swaps)


def spread_anew(replicas: Replicas, t) -> Replicas:
    """Places the temperatures so that all pairs would have been refused equally often.

    Args:
        replicas: Ladder after a round.
        t: Last draw of the round. A pair has tried to swap in every second draw of it.
    """
    refused = 1 - replicas.swaps / ((t + 1 + FIRST_ROUND) / 4)
    barrier = jnp.concatenate([jnp.zeros(1), jnp.cumsum(jnp.maximum(refused, _FLOOR))])
    goals = jnp.linspace(0, barrier[-1], len(replicas.betas))
    betas = jnp.interp(goals, barrier, replicas.betas).at[0].set(0.0).at[-1].set(1.0)
    return replicas._replace(betas=betas, swaps=jnp.zeros_like(replicas.swaps))


def section(replicas: Replicas, num_warmup: int, num_steps: int) -> dict:
    """Returns the report's entry `ladder`.

    Args:
        replicas: Ladders of all chains, [C, K], on the host.
        num_warmup: Draws of the warm-up.
        num_steps: Draws in all.

    Returns:
        `betas` and `swap_rates` of each chain; `log_evidence`, the log of the ratio of the
        integrals of target and reference by the stepping stones of Xie et al. 2011 ("Improving
        marginal likelihood estimation"), in nats, averaged over chains, and `log_evidence_error`,
        its standard error between them; None of a single chain.
    """
    found = replicas.betas, replicas.swaps, replicas.ratios
    betas, swaps, ratios = (np.asarray(one, np.float64) for one in found)
    number = num_steps - num_warmup
    with np.errstate(divide="ignore"):  # Of ratios that all are zero.
        means = np.log(ratios / number)
    of_chains = np.sum(replicas.top + means, axis=1)
    error = float(of_chains.std(ddof=1) / np.sqrt(len(swaps))) if len(swaps) > 1 else None
    return {
        "ladder": {
            "betas": betas.tolist(),
            "swap_rates": (2 * swaps / number).tolist(),  # Every second draw tries.
            "log_evidence": float(of_chains.mean()),
            "log_evidence_error": error,
        }
    }
