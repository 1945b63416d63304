"""Transitions of the samplers: pure functions of one chain and the number of the draw.

BlackJAX's kernels do the moving; here are their settings, their keys and what a draw reports.
Draw t of a chain comes from `fold_in(key, t)`, so that it makes no difference in which chunks draws
are taken.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.adaptation.mclmc_adaptation import MCLMCAdaptationState
from blackjax.mcmc import hmc, mclmc, nuts
from blackjax.mcmc.integrators import IntegratorState
from blackjax.mcmc.metrics import Metric, default_metric

from ensemble import pytrees
from ensemble.errors import InputError
from ensemble.methods.warmup import (
    is_usable,
    make_windows,
    tune_mclmc,
    untuned,
)

MAX_TREE_DEPTH = 10
MAX_ENERGY_ERROR = 1000.0  # Nats, BlackJAX's own for hmc and nuts.
MOMENTUM, TUNING = 2**32 - 1, 2**32 - 2  # Numbers that no draw has: streams of a chain's key.
MAX_DENSE_BYTES = 2**30


@dataclasses.dataclass(frozen=True)
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


def check_dense(settings: Settings, position: Any) -> None:
    """Refuses a dense mass that is too large.

    Args:
        settings: of the sampler.
        position: of one chain; shapes will do.

    Raises:
        InputError: as said.
    """
    num_params = pytrees.size(position)
    num_bytes = 2 * 4 * num_params**2  # The matrix, and the moments that will be the next one.
    if settings.mass == "dense" and num_bytes > MAX_DENSE_BYTES:
        raise InputError(
            f"mass='dense' of {num_params} parameters would take {num_bytes / 2**30:.1f} GiB a "
            f"chain, over the {MAX_DENSE_BYTES / 2**30:.0f} allowed; use 'diagonal'"
        )


class Chain(NamedTuple):
    """Everything that the next draw needs.

    Attributes:
        rng_key: of the chain; no draw changes it. None between draws: it follows from the seed.
        state: BlackJAX's: position, log density and its gradient; mclmc's has its momentum too.
        adaptation: the step size and the mass, and how they are being found: an `Adaptation`, of
            mclmc an `MCLMCAdaptationState`; of tempering `Replicas`, each with its own.
    """

    rng_key: Any
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

    log_density: jax.Array
    acceptance_rate: jax.Array
    is_divergent: jax.Array
    energy_error: jax.Array
    step_size: jax.Array
    num_gradients: jax.Array


class FreeDraws(NamedTuple):
    """Draws of chains that do not wait for each other, which a task's `run_free` takes.

    It is called with the mesh, a function that makes these of what is whole on every device, that,
    the chains [C, ...], the record of draws, the number of its first draw, and the end; it returns
    chains and record.

    Attributes:
        settings: of the sampler.
        logdensity_fn: from a position to nats.
        observe: `(DrawInfo, position) -> (trace, params)`, trees of what is recorded of every draw,
            and of those that are kept.
        num_kept: `(t) -> []`, how many of the first t draws are kept.
    """

    settings: "Settings"
    logdensity_fn: Callable[[Any], jax.Array]
    observe: Callable[[DrawInfo, Any], tuple[Any, Any]]
    num_kept: Callable[[Any], Any]


class Sampler(NamedTuple):
    """A sampler of one log density.

    Attributes:
        init: `(rng_key, position) -> Chain`.
        step: `(chain, t) -> (chain, DrawInfo)`, draw t = 0, 1, ..., those of the warm-up first.
        tune: `(chain) -> chain`, where the warm-up is one piece in place of draws 0 to
            num_warmup - 1: mclmc's; else None.
    """

    init: Callable[[jax.Array, Any], Chain]
    step: Callable[[Chain, jax.Array], tuple[Chain, DrawInfo]]
    tune: Callable[[Chain], Chain] | None


def make_sampler(
    settings: Settings,
    logdensity_fn: Callable[[Any], jax.Array],
    make_metric: Callable[[Any], Metric] | None = None,
    reference_fn: Callable[[Any], jax.Array] | None = None,
) -> Sampler:
    """Makes the functions of one chain, which the caller jits, vmaps and scans.

    Args:
        settings: of the sampler.
        logdensity_fn: from a position, any tree of arrays, to nats.
        make_metric: of hmc and nuts, from a tree of inverse masses to the metric, for positions
            that are not joined to one vector; None: of BlackJAX.
        reference_fn: of tempering, the log density of the hottest replicas; None: standard normal.
    """
    return _MAKERS[settings.method](settings, logdensity_fn, make_metric, reference_fn)


def _windowed(
    settings: Settings,
    init_state: Callable[[jax.Array, Any], hmc.HMCState],
    transition: Callable[..., tuple[hmc.HMCState, DrawInfo]],
    is_by_leaf: bool = False,
) -> Sampler:
    """A sampler whose warm-up adapts step size and mass draw by draw.

    Args:
        settings: of the sampler.
        init_state: `(rng_key, position) -> state`.
        transition: `(rng_key, state, step_size, inverse_mass, t) -> (state, DrawInfo)`.
        is_by_leaf: as of `make_windows`.
    """
    windows = make_windows(settings, is_by_leaf)

    def init(rng_key: jax.Array, position: Any) -> Chain:
        return Chain(rng_key, init_state(rng_key, position), windows.init(position))

    def step(chain: Chain, t: jax.Array) -> tuple[Chain, DrawInfo]:
        tuning = chain.adaptation
        state, draw = transition(
            jax.random.fold_in(chain.rng_key, t),
            chain.state,
            windows.step_size(tuning, t),
            tuning.mass.inverse_mass_matrix,
            t,
        )
        tuning = windows.update(
            tuning, t, state.position, state.logdensity_grad, draw.acceptance_rate
        )
        return Chain(chain.rng_key, state, tuning), draw

    return Sampler(init, step, None)


def _make_hamiltonian(
    kernel: Callable[..., tuple[hmc.HMCState, Any]],
    settings: Settings,
    logdensity_fn: Callable[[Any], jax.Array],
    make_metric: Callable[[Any], Metric] | None,
    *_: Any,
) -> Sampler:
    metric_of = make_metric or default_metric

    def transition(
        rng_key: jax.Array, before: Any, step_size: jax.Array, inverse_mass: Any, t: jax.Array
    ) -> tuple[hmc.HMCState, DrawInfo]:
        metric = metric_of(inverse_mass)
        state, info = kernel(settings, logdensity_fn, rng_key, before, step_size, metric, t)
        energy_before = metric.kinetic_energy(info.momentum) - before.logdensity
        return state, _draw_info(state, info, info.energy - energy_before, step_size)

    return _windowed(
        settings,
        lambda _, position: hmc.init(position, logdensity_fn),
        transition,
        make_metric is not None,
    )


def _draw_info(state: Any, info: Any, energy_error: jax.Array, step_size: jax.Array) -> DrawInfo:
    """What a draw of hmc or nuts says, by BlackJAX's info."""
    return DrawInfo(
        log_density=state.logdensity,
        acceptance_rate=info.acceptance_rate,
        is_divergent=info.is_divergent,
        energy_error=jnp.where(jnp.isnan(energy_error), jnp.inf, energy_error),
        step_size=step_size,
        num_gradients=info.num_integration_steps,
    )


def _draw_nuts(
    settings: Settings,
    logdensity_fn: Any,
    rng_key: jax.Array,
    state: Any,
    step_size: Any,
    metric: Any,
    t: Any,
) -> Any:
    kernel = nuts.build_kernel(divergence_threshold=MAX_ENERGY_ERROR)
    return kernel(rng_key, state, logdensity_fn, step_size, metric, MAX_TREE_DEPTH)


def _num_steps(settings: Settings, t: jax.Array, mean: Any) -> jax.Array:
    """How many steps of the integrator draw t has, about their mean."""
    # From t beside that: vmapped chains that go equally far need not wait for each other.
    key_length = jax.random.fold_in(jax.random.key(0), t)
    share = 1 + settings.jitter * jax.random.uniform(key_length, minval=-1, maxval=1)
    return jnp.maximum(1, jnp.round(mean * share)).astype(jnp.int32)


def _draw_hmc(
    settings: Settings,
    logdensity_fn: Any,
    rng_key: jax.Array,
    state: Any,
    step_size: Any,
    metric: Any,
    t: Any,
) -> Any:
    kernel = hmc.build_kernel(divergence_threshold=MAX_ENERGY_ERROR)
    length = _num_steps(settings, t, settings.num_leapfrog_steps)
    return kernel(rng_key, state, logdensity_fn, step_size, metric, length)


def _make_mclmc(settings: Settings, logdensity_fn: Callable[[Any], jax.Array], *_: Any) -> Sampler:
    """MCLMC (Robnik and Seljak 2023, "Fluctuation without dissipation"), by McLachlan's steps."""
    from ensemble.methods import mclmc_steps  # Of this sampler alone.

    def of_vector(split: Callable[[jax.Array], Any]) -> Callable[[jax.Array], jax.Array]:
        return lambda position: logdensity_fn(split(position))

    def init(rng_key: jax.Array, position: Any) -> Chain:
        _check_two(settings, position)
        key_momentum = jax.random.fold_in(rng_key, MOMENTUM)
        state = mclmc.init(position, logdensity_fn, key_momentum)
        return Chain(rng_key, state, untuned(position, settings.step_size))

    def tune(chain: Chain) -> Chain:
        joined, split = mclmc_steps.join(chain.state)
        joined, adaptation = tune_mclmc(
            jax.random.fold_in(chain.rng_key, TUNING),
            joined,
            chain.adaptation,
            mclmc_steps.step,
            of_vector(split),
            settings.num_warmup,
            settings.mass == "diagonal",
        )
        return Chain(chain.rng_key, mclmc_steps.separate(joined, split), adaptation)

    def step(chain: Chain, t: jax.Array) -> tuple[Chain, DrawInfo]:
        rng_key = jax.random.fold_in(chain.rng_key, t)
        found: MCLMCAdaptationState = chain.adaptation
        joined, split = mclmc_steps.join(chain.state)

        def body(joined: IntegratorState, i: jax.Array) -> tuple[IntegratorState, Any]:
            return mclmc_steps.step(
                jax.random.fold_in(rng_key, i),
                joined,
                of_vector(split),
                found.inverse_mass_matrix,
                found.L,
                found.step_size,
            )

        steps = jnp.arange(settings.num_leapfrog_steps)
        joined, info = jax.lax.scan(body, joined, steps)
        state = mclmc_steps.separate(joined, split)
        is_divergent = ~info.nonans | (jnp.abs(info.energy_change) > MAX_ENERGY_ERROR)
        draw = DrawInfo(
            log_density=state.logdensity,
            acceptance_rate=jnp.mean(info.nonans) * is_usable(found),
            is_divergent=jnp.any(is_divergent),
            energy_error=jnp.where(
                jnp.all(info.nonans), jnp.sqrt(jnp.mean(info.energy_change**2)), jnp.inf
            ),
            step_size=found.step_size,
            num_gradients=jnp.int32(2 * settings.num_leapfrog_steps),
        )
        return chain._replace(state=state), draw

    return Sampler(init, step, tune if settings.num_warmup else None)


def _make_adjusted_mclmc(
    settings: Settings, logdensity_fn: Callable[[Any], jax.Array], *_: Any
) -> Sampler:
    """Adjusted MCLMC, as `ensemble.methods.adjusted_mclmc` says."""
    from ensemble.methods import adjusted_mclmc  # Of this sampler alone.

    move = adjusted_mclmc.make_transition(logdensity_fn, MAX_ENERGY_ERROR)

    def init_state(rng_key: jax.Array, position: Any) -> hmc.HMCState:
        _check_two(settings, position)
        state = hmc.init(position, logdensity_fn)
        if not settings.num_warmup:
            return state
        key_descent = jax.random.fold_in(rng_key, TUNING)
        return adjusted_mclmc.lead(key_descent, state, logdensity_fn, settings.step_size)

    def transition(
        rng_key: jax.Array, before: Any, step_size: jax.Array, inverse_mass: Any, t: jax.Array
    ) -> tuple[hmc.HMCState, DrawInfo]:
        count: Any = settings.num_leapfrog_steps
        if settings.mass == "diagonal":
            count = adjusted_mclmc.num_steps(inverse_mass.size, step_size)
        number = _num_steps(settings, t, count)
        state, info, energy_error = move(rng_key, before, step_size, inverse_mass, number)
        draw = DrawInfo(
            log_density=state.logdensity,
            acceptance_rate=info.acceptance_rate,
            is_divergent=info.is_divergent,
            energy_error=energy_error,
            step_size=step_size,
            num_gradients=2 * number,
        )
        return state, draw

    return _windowed(settings, init_state, transition)


def _make_tempering(
    settings: Settings,
    logdensity_fn: Callable[[Any], jax.Array],
    make_metric: Callable[[Any], Metric] | None,
    reference_fn: Callable[[Any], jax.Array] | None,
) -> Sampler:
    """Parallel tempering, as `ensemble.methods.tempering` says."""
    # Of this sampler alone.
    from ensemble.methods.tempering import make_ladder, standard_normal

    assert make_metric is None  # No task that has it splits parameters.
    init_ladder, step_ladder = make_ladder(
        settings, _draw_hmc, logdensity_fn, reference_fn or standard_normal
    )

    def init(rng_key: jax.Array, position: Any) -> Chain:
        replicas = init_ladder(position)
        return Chain(rng_key, replicas.last(), replicas)

    def step(chain: Chain, t: jax.Array) -> tuple[Chain, DrawInfo]:
        rng_key = jax.random.fold_in(chain.rng_key, t)
        replicas, told = step_ladder(rng_key, chain.adaptation, t)
        state = replicas.last()
        draw = _draw_info(state, *pytrees.at(told, -1))
        # And one of each replica where it has come to.
        num_gradients = jnp.sum(told[0].num_integration_steps + 1)
        return Chain(chain.rng_key, state, replicas), draw._replace(num_gradients=num_gradients)

    return Sampler(init, step, None)


def _check_two(settings: Settings, position: Any) -> None:
    """Refuses one parameter: at a constant speed there is nothing to choose but the sign."""
    if pytrees.size(position) < 2:
        raise InputError(f"method={settings.method!r} must have 2 parameters to move; use 'nuts'")


_MAKERS: dict[str, Callable[..., Sampler]] = {
    "hmc": functools.partial(_make_hamiltonian, _draw_hmc),
    "nuts": functools.partial(_make_hamiltonian, _draw_nuts),
    "mclmc": _make_mclmc,
    "adjusted_mclmc": _make_adjusted_mclmc,
    "parallel_tempering": _make_tempering,
}
"""By method, with the arguments of `make_sampler`."""

SECTIONS = {"parallel_tempering": "ensemble.methods.tempering:section"}
"""By method, `module:NAME`, called with `Chain.adaptation` [C, ...], returns entries
of results.json. Most methods have none."""
