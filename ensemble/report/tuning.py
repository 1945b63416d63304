"""Chains that did not converge because their step size is far below the scale of the posterior."""

from collections.abc import Mapping
from typing import Any

import numpy as np

_NEARLY_ALL = 0.999
"""Acceptance rate that a warm-up which aims lower does not end at."""
_TUNED_VARIANCE = 5e-4
"""Nats^2 per step and parameter: what the tuning of MCLMC aims at, as BlackJAX sets it."""
_FAR_BELOW = 1e-3
"""Of that: it goes with the sixth power of a step size, which is less than a third then."""


def untuned(report: Mapping[str, Any]) -> list[str]:
    """Says why a warm-up has failed; nothing of chains that have converged.

    Args:
        report: the content of report.json.
    """
    posterior = report.get("posterior", {})
    if posterior.get("converged", True) or not posterior.get("num_warmup"):  # SGHMC has none.
        return []
    step_sizes = np.array(posterior["step_size"], float)
    target = report["config"]["hmc"]["target_acceptance"]
    lost = np.flatnonzero(~(np.isfinite(step_sizes) & (step_sizes > 0)))
    variance = posterior.get("energy_variance")
    if len(lost):
        numbers = ", ".join(str(report["live_members"][i]) for i in lost)
        why = f"the warm-up found no step size for chains {numbers}, which stay where they are"
    elif variance is not None and variance < _FAR_BELOW * _TUNED_VARIANCE:
        why = (
            f"the energy varies by {variance:.1g} nats^2 per step and parameter, where the tuning "
            f"aims at {_TUNED_VARIANCE:g}: step sizes from {step_sizes.min():.2g} are far below "
            "the scale of the posterior"
        )
    elif variance is None and posterior["accept"] > _NEARLY_ALL > target:
        why = (
            f"{posterior['accept']:.1%} of the draws are accepted, where the warm-up aims at "
            f"{target:.0%}: step sizes from {step_sizes.min():.2g} are far below the scale of the "
            "posterior"
        )
    else:
        return []
    return [
        f"The run did not converge, because {why}. Raise config.hmc.num_warmup="
        f"{posterior['num_warmup']}, or start elsewhere with config.init_from."
    ]
