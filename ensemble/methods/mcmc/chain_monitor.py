"""What the chains of a run say while it goes on: scalars of a chunk, a line, whether to end."""

from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np
from blackjax.adaptation.mclmc_adaptation import MCLMCAdaptationState

from ensemble.draws.diagnostics import MIN_ESS, Diagnostics, summarise
from ensemble.draws.predictive_error import ERROR
from ensemble.draws.store import Draws, tracked_scalars
from ensemble.likelihood import Arrays
from ensemble.methods.mcmc.state import Trace
from ensemble.methods.mcmc.warmup import is_usable
from ensemble.notes import note


def trace_scalars(trace: Trace, indices: Sequence[int]) -> dict[str, float]:
    """Fetches the trace of a chunk as named scalars: means, medians, counts over its draws.

    Args:
        trace: of draws [K, C].
        indices: of the chains.
    """
    draws = {
        "log_density": trace.info.log_density,
        "acceptance": trace.info.acceptance_rate,
        **trace.scores,
    }
    values = {name: np.asarray(one, np.float64).mean(axis=0) for name, one in draws.items()}
    # The median: a divergent draw's may be infinite.
    values["energy_error"] = np.median(np.abs(trace.info.energy_error), axis=0)
    values["divergences"] = np.sum(trace.info.is_divergent, axis=0)
    values["step_size"] = np.asarray(trace.info.step_size)[-1]
    return {
        f"posterior/chain_{k:02d}/{name}": float(of_chains[k])
        for name, of_chains in values.items()
        for k in indices
        if np.isfinite(of_chains[k])
    }


def headline(
    scalars: Mapping[str, float], num_chains: int, traced: Sequence[str], tracked_split: str | None
) -> dict[str, float]:
    """Means over chains of what tells whether they are well, and what they are worth.

    Divergences are counted over all chains.

    Args:
        scalars: named as above, and those of convergence, rates and average draws.
        num_chains: of the run.
        traced: scores of single draws that are shown.
        tracked_split: whose average draw is shown.
    """
    shown = {}
    for name in ("acceptance", "step_size", "energy_error", "log_density", "divergences"):
        tags = [f"posterior/chain_{k:02d}/{name}" for k in range(num_chains)]
        values = [scalars[tag] for tag in tags if tag in scalars]
        if values:
            is_count = name == "divergences"
            shown[name.replace("_", " ")] = int(sum(values)) if is_count else float(np.mean(values))
    titles = {
        "posterior/rhat_max": "R-hat",
        "posterior/ess_bulk_min": "bulk ESS",
        ERROR: "predictive error",
        "posterior/gradients_per_second": "gradients/s",
        "posterior/ess_per_second": "ESS/s",
        **{f"{tracked_split}/average_draw/{name}": f"average draw's {name}" for name in traced},
    }
    return shown | {title: scalars[tag] for tag, title in titles.items() if tag in scalars}


def has_converged(scalars: Mapping[str, float], stop_at: Any) -> bool:
    """Whether scalars are as `config.stop_at` asks; never if it asks nothing.

    A lucky R-hat of few draws does not count: bulk ESS must be at least 100 anyway.

    Args:
        scalars: with those of convergence, as far as they are known.
        stop_at: `rhat`, `ess` and `predictive_error`; what is 0 is not asked for.
    """
    error = stop_at.predictive_error
    return (
        (stop_at.rhat > 0 or stop_at.ess > 0 or error > 0)
        and (not error or scalars.get(ERROR, np.inf) < error)
        and (not stop_at.rhat or scalars.get("posterior/rhat_max", np.inf) < stop_at.rhat)
        and scalars.get("posterior/ess_bulk_min", 0) > max(stop_at.ess, MIN_ESS)
    )


def note_untuned(found: MCLMCAdaptationState, config: ml_collections.FrozenConfigDict) -> None:
    """Says which chains of mclmc have no step size: they will stay where they are.

    Args:
        found: by their tuning, fetched.
        config: of the run.
    """
    lost = np.flatnonzero(~np.asarray(is_usable(found)))
    if len(lost):
        note(
            f"The tuning of mclmc has found no step size for {len(lost)} of {config.num_chains} "
            f"chains, which stay where they are: {', '.join(map(str, lost))}; raise "
            f"config.sampler.num_warmup={config.sampler.num_warmup}, start elsewhere with "
            "config.init_from, or use config.method='nuts'."
        )


class Diagnosing:
    """Diagnoses the draws that count, of the live chains, once.

    Args:
        first_counted: number of the first draw that counts.
    """

    def __init__(self, first_counted: int = 0):
        self._first_counted = first_counted
        self._found: tuple[Any, Diagnostics] | None = None

    def __call__(self, live: Sequence[int], draws: Draws) -> Diagnostics:
        """The diagnostics of the draws so far."""
        key = (draws.end, tuple(live))
        if self._found is None or self._found[0] != key:
            found = summarise(tracked_scalars(draws, self._first_counted, key[1]))
            self._found = key, found
        return self._found[1]


def mean_scores(scores: Arrays, live: list[int]) -> dict[str, float]:
    """Mean scores of single draws, over the live chains, of those [C] of each."""
    return {name: float(values[live].mean()) for name, values in scores.items()}
