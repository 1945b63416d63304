"""Random-walk Metropolis: thousands to millions of chains walk, and only sums are kept.

A step is one step of every chain; the warm-up, which tunes the moves, comes before the first.
`walker.py` does the walking. To the runtime all chains are one member, with programs of its own.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import ml_collections
import numpy as np

from ensemble.errors import TrainingError
from ensemble.random_walk.summary import quantiles, summarise
from ensemble.random_walk.task import DensityTask
from ensemble.random_walk.walker import Walker
from ensemble.runtime.algorithm import Algorithm
from ensemble.runtime.devices import Devices
from ensemble.runtime.feed import Fixed
from ensemble.runtime.method import Method, Report
from ensemble.sharding import processes

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of the quantiles in a report."""
MAX_RHAT = 1.1  # Of chains that agree, and have left their starts.
_MAX_SHOWN = 10  # Dimensions whose moments are scalars of TensorBoard.
_TITLES = {
    "posterior/accept": "accepted",
    "posterior/rhat_max": "R-hat",
    "posterior/nested_rhat_max": "nested R-hat",
    "posterior/ess_min": "ESS",
    "posterior/samples_per_second": "samples/s",
    "posterior/ess_per_second": "ESS/s",
}
_MOMENTS = ("mean", "mcse_mean", "variance", "mcse_variance")
_WATCHED = (
    *("rhat_max", "nested_rhat_max", "ess_min", "accept", "ess_per_second", "num_invalid"),
    "num_stuck",
)


def create(config: ml_collections.FrozenConfigDict, task: DensityTask) -> Method:
    """Makes the method of a configuration.

    Raises:
        InputError: The density or the number of chains cannot be used.
    """
    steps = config.sampler.num_samples
    devices = processes.devices(config.num_devices)

    def algorithm(placed: Devices, numbers: Sequence[int]) -> Algorithm:
        nothing: Any = None  # The walker has programs of its own, of all chains.
        walker = Walker(config, task.density, placed)
        return Algorithm(nothing, nothing, nothing, steps, Fixed(), programs=walker)

    return Method(
        config=config,
        task=task,
        num_members=1,
        place=lambda number: Devices(number, devices, groups=len(devices)),
        algorithm=algorithm,
        report=WalkReport(config, task, remedy="lower config.sampler.step_size"),
        steps_per_epoch=config.log_every_steps,
        examples_before=lambda step: step * config.num_chains,
    )


class WalkReport(Report):
    """Report of a run of random walks."""

    noun = "chain"
    rate = "posterior/samples_per_second"
    charts: ClassVar[Mapping[str, str]] = {}

    def monitored(self, run: Any) -> dict[str, float]:
        """Moments with their errors, and convergence."""
        if not run.loop.step:
            return {}
        section = self.sections(run, run.clock.timing())["posterior"]
        scalars = {name.removeprefix("num_"): section[name] for name in _WATCHED}
        each = {f"quantile_{share}": one for share, one in section["quantiles"].items()}
        for name, values in (each | {name: section[name] for name in _MOMENTS}).items():
            scalars |= {f"{name}_{d:02d}": one for d, one in enumerate(values[:_MAX_SHOWN])}
        return {
            f"posterior/{name}": float(value)
            for name, value in scalars.items()
            if value is not None and math.isfinite(value)
        }

    def headline(self, scalars: Mapping[str, float]) -> dict[str, float]:
        """What the samples are worth."""
        return {title: scalars[tag] for tag, title in _TITLES.items() if tag in scalars}

    def may_end(self, scalars: Mapping[str, float]) -> bool:
        """Returns whether the chains have converged as `config.stop_when` asks.

        Both R-hats, of halves and of starts, must be below what is asked, or 1.1.
        """
        # Chains that have not left their starts seem to be worth much: they must agree anyway.
        found = [scalars.get(f"posterior/{name}_max", np.inf) for name in ("rhat", "nested_rhat")]
        goal = self.config.stop_when
        is_enough = scalars.get("posterior/ess_min", 0) > goal.ess and any(goal.values())
        return is_enough and max(found) < (goal.r_hat or MAX_RHAT)

    def sections(self, run: Any, timing: Mapping[str, float | None]) -> dict[str, Any]:
        """`posterior`, with moments, errors and quantiles [D]."""
        walker = run.algorithm.programs
        host = walker.to_host(run.loop.members.state)
        summary = summarise(host, run.loop.step, walker.num_superchains)
        config = self.config
        num_draws = run.loop.step
        num_samples = num_draws * config.num_chains
        accepted = int(host.chains.accepted.sum())
        if not accepted:
            raise TrainingError(
                f"no proposal of the {config.num_chains:,} chains was accepted: lower "
                "config.sampler.step_size, or start where the density is not zero"
            )
        rate = timing["member_examples_per_second"]
        ess_min = float(np.min(summary["ess"]))
        section = {
            "rhat_max": float(np.max(summary["rhat"])),  # NaN is worse than any number.
            "nested_rhat_max": float(np.max(summary["nested_rhat"])),
            "ess_min": ess_min,
            "accept": accepted / num_samples,
            "num_invalid": int(host.chains.invalid.sum()),
            "num_stuck": int(np.isneginf(host.chains.log_density).sum()),
            "num_warmup": config.sampler.num_warmup,
            "num_samples": num_draws,
            "num_chains": config.num_chains,
            "num_superchains": run.algorithm.programs.num_superchains,
            "num_total_samples": num_samples,
            "samples_per_second": rate,
            "ess_per_second": rate and rate * ess_min / num_samples,
            "scale": host.factor.tolist(),
            **{name: summary[name].tolist() for name in (*_MOMENTS, "ess")},
        }
        levels = quantiles(summary, SHARES).T.tolist()
        section["quantiles"] = dict(zip(map(str, SHARES), levels, strict=True))
        return {"posterior": section}
