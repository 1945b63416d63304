"""What a sampler is told, checked."""

import dataclasses
from typing import Any

import jax

from ensemble.errors import UserError
from ensemble.methods.mcmc.sampler_keys import BLOCK, SAMPLERS, Traits
from ensemble.methods.mcmc.warmup import MASSES

MAX_DENSE_BYTES = 2**30
MIN_MASS_WARMUP = 20  # Stan's: fewer draws say nothing about a mass.

_NUMBERS = ("step_size", "num_leapfrog_steps", "jitter", "num_warmup", "target_acceptance")
"""Settings whose rules are those of the configuration's keys."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a sampler.

    Attributes:
        method: 'hmc'; 'nuts', which chooses the lengths itself; 'mclmc', microcanonical and
            unadjusted: it accepts every step, at the price of a bias that falls with its step size;
            'adjusted_mclmc', which rejects some draws, and has no such bias; or 'tempering', which
            moves replicas by hmc at several temperatures.
        step_size: at the start of the warm-up.
        num_leapfrog_steps: L of hmc; the integrator's steps in a draw of mclmc, and of
            adjusted_mclmc where the mass is not 'diagonal': with that it chooses the length itself.
        jitter: share by which the length of hmc and adjusted_mclmc varies evenly about its mean,
            the same for all chains; it keeps trajectories from closing on themselves.
        num_warmup: draws that adapt the step size and the mass, which later ones leave alone; of
            mclmc, the integrator's steps that its tuning may take in all. 0 for none.
        target_acceptance: that dual averaging aims at.
        mass: 'identity'; 'diagonal', 'low_rank' or 'dense', by the warm-up. Of 'low_rank' whoever
            takes the draws calls `low_rank_mass.estimate` at `warmup.window_ends`.
        num_replicas: of a chain of tempering.
    """

    method: str = "hmc"
    step_size: float = 0.01
    num_leapfrog_steps: int = 32
    jitter: float = 0.2
    num_warmup: int = 500
    target_acceptance: float = 0.8
    mass: str = "identity"
    num_replicas: int = 12

    def __post_init__(self) -> None:
        too_short = self.mass != "identity" and self.num_warmup < MIN_MASS_WARMUP
        traits = SAMPLERS.get(self.method, Traits())
        too_dense = self.mass in ("low_rank", "dense") and not traits.may_be_dense
        rules = [
            (name, rule.holds(getattr(self, name)), rule.text)
            for name in _NUMBERS
            for rule in [BLOCK.keys[f"hmc.{name}"].rule]
        ]
        rules += [
            ("method", self.method in SAMPLERS, f"must be one of {', '.join(SAMPLERS)}"),
            ("mass", self.mass in MASSES, f"must be one of {', '.join(MASSES)}"),
            ("mass", not too_dense, f"must be identity or diagonal with method={self.method!r}"),
            (
                "num_warmup",
                not too_short,
                f"must be at least {MIN_MASS_WARMUP} to adapt mass={self.mass!r}; or use identity",
            ),
        ]
        for name, holds, rule in rules:
            if not holds:
                raise UserError(f"{name}={getattr(self, name)!r} {rule}")


def check_dense(settings: Settings, position: Any) -> None:
    """Refuses a dense mass that is too large.

    Args:
        settings: of the sampler.
        position: of one chain; shapes will do.

    Raises:
        UserError: as said.
    """
    num_params = sum(leaf.size for leaf in jax.tree.leaves(position))
    num_bytes = 2 * 4 * num_params**2  # The matrix, and the moments that will be the next one.
    if settings.mass == "dense" and num_bytes > MAX_DENSE_BYTES:
        raise UserError(
            f"mass='dense' of {num_params} parameters would take {num_bytes / 2**30:.1f} GiB a "
            f"chain, over the {MAX_DENSE_BYTES / 2**30:.0f} allowed; use 'diagonal'"
        )
