"""Transitions of the samplers: pure functions of one chain and the number of the draw.

BlackJAX's kernels do the moving; here are their warm-up and their keys. Draw t of a chain comes
from `fold_in(key, t)`, so that it makes no difference in which chunks draws are taken.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.adaptation.step_size import (
    DualAveragingAdaptationState,
    dual_averaging_adaptation,
)
from blackjax.mcmc import hmc, nuts

from ensemble.errors import UserError

METHODS = ("hmc", "nuts")
MAX_TREE_DEPTH = 10


class Chain(NamedTuple):
    """Everything that the next draw needs.

    Attributes:
        rng_key: of the chain; no draw changes it.
        state: BlackJAX's: position, log density and its gradient.
        adaptation: of the step size, by dual averaging.
    """

    rng_key: jax.Array
    state: hmc.HMCState
    adaptation: DualAveragingAdaptationState


class DrawInfo(NamedTuple):
    """Diagnostics of one draw, [] each.

    Attributes:
        log_density: at the draw, nats.
        acceptance_rate: of the proposal, or the mean over a tree; a NaN energy counts as 0.
        is_divergent: whether the energy error was over 1000 nats, or NaN.
        step_size: that the draw was made with.
        num_gradients: that it took.
    """

    log_density: jax.Array
    acceptance_rate: jax.Array
    is_divergent: jax.Array
    step_size: jax.Array
    num_gradients: jax.Array


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of a sampler.

    Attributes:
        method: 'hmc', or 'nuts', which chooses the lengths itself.
        step_size: at the start of the warm-up.
        num_leapfrog_steps: L of hmc.
        jitter: share by which hmc's length varies evenly about L, the same for all chains; it keeps
            trajectories from closing on themselves.
        num_warmup: draws that adapt the step size, which later ones leave alone; 0 for none.
        target_acceptance: that dual averaging aims at.
    """

    method: str = "hmc"
    step_size: float = 0.01
    num_leapfrog_steps: int = 32
    jitter: float = 0.2
    num_warmup: int = 500
    target_acceptance: float = 0.8

    def __post_init__(self) -> None:
        for name, value, holds, rule in (
            ("method", self.method, self.method in METHODS, f"be one of {', '.join(METHODS)}"),
            ("step_size", self.step_size, self.step_size > 0, "be positive"),
            (
                "num_leapfrog_steps",
                self.num_leapfrog_steps,
                self.num_leapfrog_steps > 0,
                "be positive",
            ),
            ("jitter", self.jitter, 0 <= self.jitter < 1, "be at least 0 and below 1"),
            ("num_warmup", self.num_warmup, self.num_warmup >= 0, "not be negative"),
            (
                "target_acceptance",
                self.target_acceptance,
                0 < self.target_acceptance < 1,
                "be between 0 and 1",
            ),
        ):
            if not holds:
                raise UserError(f"{name}={value!r} must {rule}")


class Sampler(NamedTuple):
    """A sampler of one log density.

    Attributes:
        init: `(rng_key, position) -> Chain`.
        step: `(chain, t) -> (chain, DrawInfo)`, draw t = 0, 1, ..., those of the warm-up first.
    """

    init: Callable[[jax.Array, Any], Chain]
    step: Callable[[Chain, jax.Array], tuple[Chain, DrawInfo]]


def make_sampler(
    settings: Settings, logdensity_fn: Callable[[Any], jax.Array], inverse_mass_matrix: jax.Array
) -> Sampler:
    """Makes the functions of one chain, which the caller jits, vmaps and scans.

    Args:
        settings: of the sampler.
        logdensity_fn: from a position, any tree of arrays, to nats.
        inverse_mass_matrix: [P] or [P, P] for P parameters in all.
    """
    init_step_size, update_step_size, final_step_size = dual_averaging_adaptation(
        settings.target_acceptance
    )
    transition = _make_transition(settings, logdensity_fn, inverse_mass_matrix)

    def init(rng_key: jax.Array, position: Any) -> Chain:
        adaptation = init_step_size(jnp.float32(settings.step_size))
        # BlackJAX starts with Python's numbers, of which every type would be traced anew.
        adaptation = adaptation._replace(
            **{
                name: jnp.asarray(value, jnp.int32 if name == "step" else jnp.float32)
                for name, value in adaptation._asdict().items()
            }
        )
        return Chain(rng_key, hmc.init(position, logdensity_fn), adaptation)

    def step(chain: Chain, t: jax.Array) -> tuple[Chain, DrawInfo]:
        is_warmup = t < settings.num_warmup
        adapted = final_step_size(chain.adaptation) if settings.num_warmup else settings.step_size
        step_size = jnp.where(is_warmup, jnp.exp(chain.adaptation.log_step_size), adapted)
        state, info = transition(jax.random.fold_in(chain.rng_key, t), chain.state, step_size, t)
        updated = update_step_size(chain.adaptation, info.acceptance_rate)
        adaptation = jax.tree.map(
            lambda new, old: jnp.where(is_warmup, new, old), updated, chain.adaptation
        )
        draw = DrawInfo(
            log_density=state.logdensity,
            acceptance_rate=info.acceptance_rate,
            is_divergent=info.is_divergent,
            step_size=step_size,
            num_gradients=info.num_integration_steps,
        )
        return Chain(chain.rng_key, state, adaptation), draw

    return Sampler(init, step)


def _make_transition(
    settings: Settings, logdensity_fn: Callable[[Any], jax.Array], inverse_mass_matrix: jax.Array
) -> Callable[..., tuple[hmc.HMCState, Any]]:
    """One draw at a given step size: `(rng_key, state, step_size, t) -> (state, info)`."""
    if settings.method == "nuts":
        nuts_kernel = nuts.build_kernel()

        def draw_nuts(rng_key: jax.Array, state: Any, step_size: jax.Array, _: jax.Array) -> Any:
            return nuts_kernel(
                rng_key, state, logdensity_fn, step_size, inverse_mass_matrix, MAX_TREE_DEPTH
            )

        return draw_nuts
    hmc_kernel = hmc.build_kernel()

    def draw_hmc(rng_key: jax.Array, state: Any, step_size: jax.Array, t: jax.Array) -> Any:
        # From t alone: vmapped chains that go equally far need not wait for each other.
        key_length = jax.random.fold_in(jax.random.key(0), t)
        share = 1 + settings.jitter * jax.random.uniform(key_length, minval=-1, maxval=1)
        length = jnp.maximum(1, jnp.round(settings.num_leapfrog_steps * share)).astype(jnp.int32)
        return hmc_kernel(rng_key, state, logdensity_fn, step_size, inverse_mass_matrix, length)

    return draw_hmc


def advance(
    sampler: Sampler, chain: Chain, first: jax.Array, num_draws: int
) -> tuple[Chain, tuple[Any, DrawInfo]]:
    """Takes draws in one scan.

    Args:
        sampler: of the chain.
        chain: before the draws.
        first: number of the first draw.
        num_draws: T.

    Returns:
        The chain, and positions [T, ...] with their diagnostics [T]; a rejected proposal repeats
        the position.
    """

    def body(chain: Chain, t: jax.Array) -> tuple[Chain, tuple[Any, DrawInfo]]:
        chain, info = sampler.step(chain, t)
        return chain, (chain.state.position, info)

    return jax.lax.scan(body, chain, first + jnp.arange(num_draws))
