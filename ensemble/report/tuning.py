"""Chains whose step size is far below the scale of the posterior, or above it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

_NEARLY_ALL = 0.999
"""Acceptance rate that a warm-up which aims lower does not end at."""
_TUNED_VARIANCE = 5e-4
"""Nats^2 per step and parameter: what the tuning of MCLMC aims at, as BlackJAX sets it."""
_FAR_BELOW = 1e-3
"""The share that is far below: it goes with the sixth power of a step size, which is less than a
third then."""
_TOO_LONG, _SHORT_ENOUGH = 1.0, 0.1
"""Nats^2 per step and parameter of a step size that was given: posteriors of small networks predict
worse above the first (docs/posteriors.md, "When a posterior pays"), and well about the second."""


def untuned(report: Mapping[str, Any]) -> list[str]:
    """Says why a warm-up has failed; nothing of chains that have converged.

    Args:
        report: the content of report.json.
    """
    posterior = report.get("posterior", {})
    if posterior.get("converged", True) or not posterior.get("num_warmup"):  # SGHMC has none.
        return []
    step_sizes = np.array(posterior["step_size"], float)
    target = report["config"]["sampler"]["target_acceptance"]
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
        f"The run did not converge, because {why}. In a new workdir raise "
        f"config.sampler.num_warmup={posterior['num_warmup']}, or start elsewhere with "
        "config.init_from."
    ]


def too_long(report: Mapping[str, Any]) -> list[str]:
    """Says of a step size that nothing has tuned that it is too large, and names a smaller one.

    Args:
        report: the content of report.json.
    """
    posterior, own = report.get("posterior", {}), report.get("config", {}).get("sampler")
    if not own or posterior.get("num_warmup", 1) > 0:  # Walks and minibatches have other steps.
        return []
    size, variance = own["step_size"], posterior.get("energy_variance")
    divergences, seen = posterior["divergences"], []
    if variance is not None and not variance <= _TOO_LONG:
        seen.append(f"the energy varies by {variance:.3g} nats^2 per step and parameter")
    if divergences:
        seen.append(f"{divergences:,} draw{'s' * (divergences > 1)} diverged")
    if not seen:
        return []
    lower, why = size / 2, "half of it, for nothing tells how much is enough"
    if variance is not None and np.isfinite(variance):
        scaled = size * (_SHORT_ENOUGH / max(variance, _SHORT_ENOUGH)) ** (1 / 6)
        if scaled < lower:
            lower = scaled
            why = (
                f"at which the variance would be {_SHORT_ENOUGH:g} if it fell with the sixth power "
                "of the step size, as that of small steps does"
            )
    return [
        f"The steps are too long for the posterior: {' and '.join(seen)}, and with "
        "config.sampler.num_warmup=0 nothing tunes them. In a new workdir lower "
        f"config.sampler.step_size={size:g} to {lower:.2g}, {why}, and look at this again."
    ]
