"""Transitions of the samplers: pure functions of one chain and the number of the draw.

BlackJAX's kernels do the moving; here are their settings, their keys and what a draw reports.
Draw t of a chain comes from `fold_in(key, t)`, so that it makes no difference in which chunks draws
are taken.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from blackjax.mcmc import hmc, nuts
from blackjax.mcmc.integrators import IntegratorState
from blackjax.mcmc.metrics import Metric, default_metric
from jax import Array, random

from ensemble.config.pieces import resolve
from ensemble.methods.warmup import windows

MAX_TREE_DEPTH = 10
MAX_ENERGY_ERROR = 1000.0  # Nats, BlackJAX's own for hmc and nuts.
LogDensityFn = Callable[[Any], Array]
"""From a position, any tree of arrays, to nats."""
TUNING = 2**32 - 2  # Number that no draw has: a stream of a chain's key.


@dataclass(frozen=True)
class Settings:
    """Settings of a sampler.

    Attributes:
        method: 'hmc'; 'nuts', which chooses the lengths itself; 'mclmc', microcanonical and
            unadjusted: it accepts every step, at the price of a bias that falls with its step size;
            'adjusted_mclmc', which rejects some draws, and has no such bias; or
            'parallel_tempering', which moves replicas by hmc at several temperatures.
        step_size: at the start of the warm-up.
        num_leapfrog_steps: L of hmc; the integrator's steps in a draw of mclmc, and of
            adjusted_mclmc where the mass is not 'diagonal': with that it chooses the length itself.
        jitter: share by which the length of hmc and adjusted_mclmc varies evenly about its mean,
            the same for all chains; it keeps trajectories from closing on themselves.
        num_warmup: draws that adapt the step size and the mass, which later ones leave alone; of
            mclmc, the integrator's steps that its tuning may take in all. 0 for none.
        target_accept: that dual averaging aims at.
        mass: 'identity'; 'diagonal', 'low_rank' or 'dense', by the warm-up. Of 'low_rank' whoever
            takes the draws calls `low_rank_mass.estimate` at `warmup.window_ends`.
        num_replicas: of a chain of tempering.
    """

    method: str = "hmc"
    step_size: float = 0.01
    num_leapfrog_steps: int = 32
    jitter: float = 0.2
    num_warmup: int = 500
    target_accept: float = 0.8
    mass: str = "identity"
    num_replicas: int = 1


class Chain(NamedTuple):
    """Everything that the next draw needs.

    Attributes:
        state: BlackJAX's: position, log density and its gradient; mclmc's has its momentum too.
        adaptation: the step size and the mass, and how they are being found: an `Adaptation`, of
            mclmc an `MCLMCAdaptationState`; of tempering `Replicas`, each with its own.
    """

    state: hmc.HMCState | IntegratorState
    adaptation: Any


class DrawInfo(NamedTuple):
    """Diagnostics of one draw, [] each.

    Attributes:
        log_density: at the draw, nats.
        acceptance_rate: of the proposal, or the mean over a tree; a NaN energy counts as 0. Of
            mclmc, which accepts everything else: the share of its steps without a NaN, 0 of a chain
            that has no step size.
        is_divergent: whether an energy error was over 1000 nats, or NaN.
        energy_error: energy after less energy before, nats: of a proposal, or of the state that
            nuts chose from its tree; infinite if it is NaN. Of mclmc its root mean square over the
            steps of a draw.
        step_size: that the draw was made with.
        num_gradients: that it took.
    """

    log_density: Array
    acceptance_rate: Array
    is_divergent: Array
    energy_error: Array
    step_size: Array
    num_gradients: Array


class Sampler(NamedTuple):
    """A sampler of one log density.

    Attributes:
        init: `(rng_key, position) -> Chain`.
        step: `(rng_key, chain, t) -> (chain, DrawInfo)`, with the key of the chain, draw
            t = 0, 1, ..., those of the warm-up first.
        tune: `(rng_key, chain) -> chain`, where the warm-up is one piece in place of draws 0 to
            num_warmup - 1: mclmc's; else None.
    """

    init: Callable
    step: Callable
    tune: Any = None


def make_sampler(
    settings: Settings,
    logdensity_fn: LogDensityFn,
    make_metric: Callable | None = None,
    reference_fn: LogDensityFn | None = None,
) -> Sampler:
    """Makes the functions of one chain, which the caller jits, vmaps and scans.

    Args:
        settings: of the sampler.
        logdensity_fn: from a position, any tree of arrays, to nats.
        make_metric: of hmc and nuts, from a tree of inverse masses to the metric, for positions
            that are not joined to one vector; None: of BlackJAX.
        reference_fn: of tempering, the log density of the hottest replicas.
    """
    make: Callable = make_hamiltonian
    if settings.method not in ("hmc", "nuts"):
        make = resolve(f"ensemble.methods.{settings.method}:make")
    return make(settings, logdensity_fn, make_metric, reference_fn)


def windowed(
    settings: Settings,
    init_state: Callable,
    transition: Callable,
    is_by_leaf: bool = False,
) -> Sampler:
    """Makes a sampler whose warm-up adapts step size and mass draw by draw.

    Args:
        settings: Settings of the sampler.
        init_state: `(rng_key, position) -> state`.
        transition: `(rng_key, state, step_size, inverse_mass, t) -> (state, DrawInfo)`.
        is_by_leaf: As of `windows`.
    """
    warmup = windows(settings, is_by_leaf)

    def init(rng_key, position):
        return Chain(init_state(rng_key, position), warmup.init(position))

    def step(rng_key, chain, t):
        before, tuning = chain
        step_size = warmup.step_size(tuning, t)
        inverse_mass = tuning.mass.inverse_mass_matrix
        key_draw = random.fold_in(rng_key, t)
        state, draw = transition(key_draw, before, step_size, inverse_mass, t)
        return Chain(state, warmup.update(tuning, t, state, draw.acceptance_rate)), draw

    return Sampler(init, step)


def make_hamiltonian(settings: Settings, logdensity_fn: LogDensityFn, make_metric, *_) -> Sampler:
    """Makes hmc or nuts; the arguments are those of `make_sampler`."""

    def transition(rng_key, before, step_size, inverse_mass, t):
        metric = (make_metric or default_metric)(inverse_mass)
        return follow(settings, logdensity_fn, rng_key, before, step_size, metric, t)

    is_by_leaf = make_metric is not None
    return windowed(settings, lambda _, x: hmc.init(x, logdensity_fn), transition, is_by_leaf)


def follow(
    settings: Settings,
    logdensity_fn: LogDensityFn,
    rng_key,
    before,
    step_size,
    metric: Metric,
    t,
) -> tuple[hmc.HMCState, DrawInfo]:
    """Takes draw t of hmc or nuts, by BlackJAX's kernels."""
    is_nuts = settings.method == "nuts"
    kernel = (nuts if is_nuts else hmc).build_kernel(divergence_threshold=MAX_ENERGY_ERROR)
    length = MAX_TREE_DEPTH if is_nuts else num_steps(settings, t, settings.num_leapfrog_steps)
    state, info = kernel(rng_key, before, logdensity_fn, step_size, metric, length)
    energy_before = metric.kinetic_energy(info.momentum) - before.logdensity
    return state, draw_info(state, info, info.energy - energy_before, step_size)


def num_steps(settings: Settings, t: Array, mean) -> Array:
    """Returns the steps of the integrator in draw t, about their mean."""
    # By t alone: vmapped chains that go equally far need not wait for each other.
    key_length = random.fold_in(random.key(0), t)
    share = 1 + settings.jitter * random.uniform(key_length, minval=-1, maxval=1)
    return jnp.maximum(1, jnp.round(mean * share)).astype(jnp.int32)


def draw_info(state, info, energy_error: Array, step_size: Array) -> DrawInfo:
    """Returns the diagnostics of a draw, from BlackJAX's info."""
    return DrawInfo(
        log_density=state.logdensity,
        acceptance_rate=info.acceptance_rate,
        is_divergent=info.is_divergent,
        energy_error=jnp.where(jnp.isnan(energy_error), jnp.inf, energy_error),
        step_size=step_size,
        num_gradients=info.num_integration_steps,
    )
