"""What the report says of chains that see batches: the noise that heats them, and remedies."""

from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np

from ensemble.draws.diagnostics import Diagnostics
from ensemble.methods.minibatch.langevin import temperature
from ensemble.methods.minibatch.timetable import Timetable
from ensemble.report.posterior import convergence_section

HOT, COLD = 1.1, 0.9
"""Temperatures of the draws beyond which a note says so."""
_WARM = 1.05
"""What a note then aims at: the excess over 1 goes with the learning rate."""
_FEW_BATCHES = 10


def of_chains(
    scalars: Mapping[str, float], num_examples: int, heats: Sequence[np.ndarray]
) -> dict[str, float]:
    """Names the scalars of an engine's members as those of chains, whose loss is no training loss.

    Args:
        scalars: of members.
        num_examples: N, of which the loss is the mean.
        heats: temperatures [C] of the last draw; none where there is no draw.
    """
    found = {}
    for tag, value in scalars.items():
        name = tag.replace("train/member_", "posterior/chain_")
        if name != tag and name.endswith("/loss"):
            name, value = name.replace("/loss", "/log_density"), -num_examples * value
        found[name] = value
    for values in heats:
        for k, heat in enumerate(values):
            found[f"posterior/chain_{k:02d}/temperature"] = float(heat)
    return {name: value for name, value in found.items() if np.isfinite(value)}


def section(
    counted: Mapping[str, np.ndarray],
    found: Diagnostics,
    config: ml_collections.FrozenConfigDict,
    times: Timetable,
    decay: float,
    steps_per_second: float | None,
    tracked_split: str | None,
    traced: Sequence[str],
    predicting: np.ndarray,
) -> dict[str, Any]:
    """The report's entry `posterior`.

    Args:
        counted: scalars [C, T] of all draws of the live chains.
        found: the diagnostics of those whose convergence counts.
        config: of the run.
        times: of its draws.
        decay: share of the momentum that a step keeps.
        steps_per_second: of single chains, summed over them.
        tracked_split: whose scores are among the scalars.
        traced: those scores.
        predicting: places of the draws that predict.

    Returns:
        Convergence as of other chains; `kinetic_temperature`, the mean of what momenta have at the
        draws; `draw_temperature`, what the noise of the gradients makes of it for the draws; steps
        and their rate.
    """
    num_steps = times.num_steps * config.num_chains
    kinetic = float(counted["kinetic"].mean())
    seconds = num_steps / steps_per_second if steps_per_second else None
    return {
        **convergence_section(counted, found, traced, config.num_chains, predicting),
        "kinetic_temperature": kinetic,
        "draw_temperature": temperature(kinetic, decay),
        "learning_rate": float(counted["step_size"][0, -1]),
        "num_steps": num_steps,
        "steps_per_second": steps_per_second,
        "ess_per_second": found.ess_bulk_min / seconds if seconds else None,
        "num_burn_in": times.num_burn_in,
        "steps_per_draw": times.steps_per_draw,
        "num_cycles": times.num_cycles,
        "num_chains": config.num_chains,
        "temperature": config.temperature,
        "tracked_split": tracked_split,
        "remedy": longer(times, config.sgmcmc.schedule),
    }


def longer(times: Timetable, schedule: str) -> str:
    """What gives more draws in the same workdir, and in a new one draws that depend less.

    Args:
        times: of the draws.
        schedule: of the learning rate; a cyclical one goes on with whole cycles alone.
    """
    more = "num_cycles" if schedule == "cyclical" else "num_samples"
    return (
        f"Raise config.sgmcmc.{more}={getattr(times, more)}, or in a new workdir "
        f"config.sgmcmc.steps_per_draw={times.steps_per_draw} or "
        f"config.sgmcmc.num_burn_in={times.num_burn_in}"
    )


def notes(
    posterior: Mapping[str, Any], config: ml_collections.FrozenConfigDict, num_examples: int
) -> list[str]:
    """Lines on what the draws are not: Bayes at the right temperature, or the best to be had.

    Args:
        posterior: of `section`.
        config: of the run.
        num_examples: N.
    """
    found, heat = [], posterior["draw_temperature"]
    if heat > HOT:
        lower = config.learning_rate * (_WARM - 1) / (heat - 1)
        found.append(
            f"The draws have a temperature of {heat:.2f}, which should be 1, for the noise of the "
            "gradients heats the chains, unless they have not forgotten their start: variances of "
            f"the posterior are too large by some {heat - 1:.0%}. In a new workdir lower "
            f"config.learning_rate={config.learning_rate:g} to {lower:.2g} with as many times the "
            f"steps, for a temperature of {_WARM:g}, or raise config.batch_size="
            f"{config.batch_size}."
        )
    elif heat < COLD:
        found.append(
            f"The draws have a temperature of {heat:.2f}, which should be 1: the noise has not had "
            f"the steps to spread them. In a new workdir raise config.sgmcmc.steps_per_draw="
            f"{config.sgmcmc.steps_per_draw}."
        )
    num_batches = -(-num_examples // config.batch_size)
    if num_batches <= _FEW_BATCHES:
        found.append(
            f"All {num_examples:,} examples are {num_batches} batches: samplers that see them all "
            "at every step, such as config.method='hmc', are affordable here, and without the bias "
            "of gradients of batches."
        )
    return found
