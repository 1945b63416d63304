"""Parallel tempering: chains that move between modes which are far apart.

A chain is a ladder of replicas. Replica k samples reference^(1 - b_k) * target^b_k by HMC, from
b_0 = 0, where the reference is wide, to b_{K-1} = 1, whose draws are the chain's. Neighbours swap
their places with the probability that keeps all of these densities, even and odd pairs by turns
(Syed et al. 2022, "Non-reversible parallel tempering"). In the first half of the warm-up the b_k
are spread anew in rounds, so that all pairs swap equally often (their algorithm 2).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc.hmc import HMCState
from blackjax.mcmc.metrics import default_metric
from jax.scipy.stats import norm

from ensemble import pytrees
from ensemble.methods.kernels import Chain, DrawInfo, Sampler, Settings, follow
from ensemble.methods.warmup import Adaptation, make_windows
from ensemble.sharding.chainwise import with_own_gradient

LogDensityFn = Callable[[Any], jax.Array]

SWAP = 2**32 - 3
"""Number of the stream of swaps in a draw's key: no replica has it."""
FIRST_ROUND = 16
"""Draws of the first round; each further one is twice as long."""
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
    target: tuple[jax.Array, Any]
    reference: tuple[jax.Array, Any]

    @property
    def log_ratio(self) -> jax.Array:
        """Log of the ratio of target and reference."""
        return self.target[0] - self.reference[0]


class Replicas(NamedTuple):
    """The ladder of one chain, K replicas: what its next draw needs beside the last one.

    Attributes:
        at: [K, ...], the places of the replicas.
        betas: [K], from 0 to 1.
        tuning: [K], of the step size at each temperature, and of the mass, by its inverse.
        swaps: [K - 1], acceptance rates of swaps, summed over this round or the draws that count.
        num_swaps: [K - 1], how often they were tried.
        top: [K - 1], the largest logarithm, over the draws after the warm-up, of the ratio of the
            densities of the next temperature and this one.
        ratios: [K - 1], the sum of these ratios, relative to the largest one: a logarithm of
            thousands of nats could not hold what one of many draws adds to it.
        num_ratios: [], how many draws these are.
    """

    at: Place
    betas: jax.Array
    tuning: Adaptation
    swaps: jax.Array
    num_swaps: jax.Array
    top: jax.Array
    ratios: jax.Array
    num_ratios: jax.Array


def make(
    settings: Settings,
    target: LogDensityFn,
    make_metric: None,
    reference: LogDensityFn | None,
) -> Sampler:
    """Makes the sampler; the arguments are those of `make_sampler`.

    Every temperature has a warm-up of its own.
    """
    reference = reference or standard_normal
    number = settings.num_replicas
    windows = make_windows(settings)

    def value_and_grad(position: Any, beta: jax.Array) -> Any:
        # Derived of the mixed value, a gradient would be NaN where the target's is, at beta = 0
        # too, where the target does not count.
        at = _place(position, target, reference)
        return _mixed(beta, at.target, at.reference)

    def move(one: tuple[jax.Array, Place, jax.Array, Adaptation], t: jax.Array) -> Any:
        rng_key, at, beta, tuning = one
        before = HMCState(at.position, *_mixed(beta, at.target, at.reference))
        # The variance of gradients: modes that lie apart widen positions, but not these.
        metric = default_metric(1 / tuning.mass.inverse_mass_matrix)
        after, drawn = follow(
            settings,
            with_own_gradient(value_and_grad, beta),
            rng_key,
            before,
            windows.step_size(tuning, t),
            metric,
            t,
        )
        grad = after.logdensity_grad
        tuning = windows.update(tuning, t, grad, grad, drawn.acceptance_rate)
        return _place(after.position, target, reference), tuning, drawn

    def init(rng_key: jax.Array, position: Any) -> Chain:
        at = _place(position, target, reference)
        pairs = jnp.zeros(number - 1)
        # All replicas are at one place; those near the reference leave it at once.
        at, tuning = jax.tree.map(
            lambda leaf: jnp.repeat(leaf[None], number, axis=0), (at, windows.init(position))
        )
        replicas = Replicas(
            at,
            betas=jnp.linspace(0, 1, number) ** _INITIAL_POWER,
            tuning=tuning,
            swaps=pairs,
            num_swaps=pairs,
            top=jnp.full(number - 1, -_HUGE),
            ratios=pairs,
            num_ratios=jnp.int32(0),
        )
        return Chain(rng_key, _last(replicas), replicas)

    def step(chain: Chain, t: jax.Array) -> tuple[Chain, DrawInfo]:
        rng_key = jax.random.fold_in(chain.rng_key, t)
        replicas = chain.adaptation
        keys = pytrees.keys_of(rng_key, jnp.arange(number))
        # One after another: within the vmap over chains, JAX cannot map a likelihood over shards
        # once more.
        at, tuning, drawn = jax.lax.map(
            lambda one: move(one, t), (keys, replicas.at, replicas.betas, replicas.tuning)
        )
        replicas = swapped(rng_key, replicas._replace(at=at, tuning=tuning), t)
        replicas = adapted(replicas, t, settings.num_warmup)
        state = _last(replicas)
        draw = pytrees.at(drawn, -1)._replace(
            log_density=state.logdensity,
            # And one of each replica where it has come to.
            num_gradients=jnp.sum(drawn.num_gradients + 1),
        )
        return Chain(chain.rng_key, state, replicas), draw

    return Sampler(init, step, None)


def standard_normal(position: Any) -> jax.Array:
    """Returns the standard normal log density, nats, of all leaves of a position."""
    densities = jax.tree.map(lambda leaf: jnp.sum(norm.logpdf(leaf)), position)
    return jnp.sum(jnp.stack(jax.tree.leaves(densities)))


def _last(replicas: Replicas) -> HMCState:
    """The replica at the target."""
    at = pytrees.at(replicas.at, -1)
    return HMCState(at.position, *at.target)


def _place(position: Any, target: LogDensityFn, reference: LogDensityFn) -> Place:
    """Evaluates target and reference at a position: one gradient."""
    return Place(
        position, jax.value_and_grad(target)(position), jax.value_and_grad(reference)(position)
    )


def _mixed(beta: jax.Array, of_target: Any, of_reference: Any) -> Any:
    """Mixes log densities and gradients of target and reference.

    Where the target is impossible, so is every density of the ladder but the reference.
    """

    def mixed(one: jax.Array, other: jax.Array) -> jax.Array:
        return jnp.where(beta > 0, beta * one + (1 - beta) * other, other)

    return jax.tree.map(mixed, of_target, of_reference)


def swapped(rng_key: jax.Array, replicas: Replicas, t: jax.Array) -> Replicas:
    """Swaps the places of neighbours: pairs (0, 1), (2, 3), ... at even t, the others at odd t."""
    numbers = jnp.arange(len(replicas.betas))
    ratio = replicas.at.log_ratio
    log_accept = jnp.diff(replicas.betas) * (ratio[:-1] - ratio[1:])
    accept = jnp.where(jnp.isnan(log_accept), 0, jnp.exp(jnp.minimum(log_accept, 0)))
    is_tried = numbers[:-1] % 2 == t % 2
    uniform = jax.random.uniform(jax.random.fold_in(rng_key, SWAP), accept.shape)
    goes_up = jnp.append(is_tried & (uniform < accept), False)
    goes_down = jnp.roll(goes_up, 1)
    order = numbers + goes_up - goes_down  # From which a replica comes.
    return replicas._replace(
        at=pytrees.at(replicas.at, order),
        swaps=replicas.swaps + jnp.where(is_tried, accept, 0),
        num_swaps=replicas.num_swaps + is_tried,
    )


def adapted(replicas: Replicas, t: jax.Array, num_warmup: int) -> Replicas:
    """Spreads the temperatures anew where draw t ends a round; after the warm-up, counts."""
    ends = [FIRST_ROUND - 1]
    length = FIRST_ROUND
    while ends[-1] < num_warmup // 2:
        length *= 2
        ends.append(ends[-1] + length)
    is_end = jnp.any(t == np.array(ends[:-1], int))
    replicas = jax.lax.cond(is_end, spread_anew, lambda one: one, replicas)
    log_ratios = jnp.diff(replicas.betas) * replicas.at.log_ratio[:-1]
    log_ratios = jnp.where(jnp.isnan(log_ratios), -jnp.inf, log_ratios)
    top = jnp.maximum(replicas.top, log_ratios)
    ratios = replicas.ratios * jnp.exp(replicas.top - top) + jnp.exp(log_ratios - top)
    counts = t >= num_warmup
    # The swaps of the warm-up are of other temperatures.
    begins = t != num_warmup - 1
    return replicas._replace(
        swaps=replicas.swaps * begins,
        num_swaps=replicas.num_swaps * begins,
        top=jnp.where(counts, top, replicas.top),
        ratios=jnp.where(counts, ratios, replicas.ratios),
        num_ratios=replicas.num_ratios + counts,
    )


def spread_anew(replicas: Replicas) -> Replicas:
    """Places the temperatures so that all pairs would have been refused equally often."""
    refused = 1 - replicas.swaps / jnp.maximum(replicas.num_swaps, 1)
    barrier = jnp.concatenate([jnp.zeros(1), jnp.cumsum(jnp.maximum(refused, _FLOOR))])
    goals = jnp.linspace(0, barrier[-1], len(replicas.betas))
    betas = jnp.interp(goals, barrier, replicas.betas).at[0].set(0.0).at[-1].set(1.0)
    nothing = jnp.zeros_like(replicas.swaps)
    return replicas._replace(betas=betas, swaps=nothing, num_swaps=nothing)


def section(replicas: Replicas) -> dict[str, Any]:
    """The report's entry `ladder`.

    Args:
        replicas: of all chains, [C, K], on the host.

    Returns:
        `betas` and `swap_rates` of each chain; `log_evidence`, the log of the ratio of the
        integrals of target and reference by the stepping stones of Xie et al. 2011 ("Improving
        marginal likelihood estimation"), in nats, averaged over chains, and `log_evidence_error`,
        its standard error between them; None of a single chain.
    """
    nothing: Any = None
    found = jax.tree.map(np.float64, replicas._replace(at=nothing, tuning=nothing))
    with np.errstate(divide="ignore"):  # Of ratios that all are zero.
        means = np.log(found.ratios / found.num_ratios[:, None])
    of_chains = np.sum(found.top + means, axis=1)
    error = None
    if len(of_chains) > 1:
        error = float(of_chains.std(ddof=1) / np.sqrt(len(of_chains)))
    return {
        "ladder": {
            "betas": found.betas.tolist(),
            "swap_rates": (found.swaps / np.maximum(found.num_swaps, 1)).tolist(),
            "log_evidence": float(of_chains.mean()),
            "log_evidence_error": error,
        }
    }
