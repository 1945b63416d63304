"""Random-walk Metropolis: thousands to millions of chains walk, and only sums are kept.

A step is one step of every chain; the warm-up, which tunes the moves, comes before the first.
`walker.py` does the walking. To the runtime all chains are one member, with programs of its own.
The task is a density: there is nothing to learn from, and nothing to predict.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import ml_collections
import numpy as np

from ensemble.config.builtin import DENSITIES
from ensemble.errors import InputError, TrainingError
from ensemble.pytrees import ByName
from ensemble.random_walk.densities import Density
from ensemble.random_walk.summary import MAX_RHAT, SHARES, summarise
from ensemble.random_walk.walker import Walker
from ensemble.runtime.algorithm import Algorithm
from ensemble.runtime.devices import Devices
from ensemble.runtime.feed import Fixed
from ensemble.runtime.method import Method, Report, Scalars
from ensemble.sharding import processes
from ensemble.task import WithoutExamples

_NUM_POINTS = 5
_MAX_SHOWN = 10  # Dimensions whose moments are scalars of TensorBoard.
_TITLES = {
    "posterior/accept": "accepted",
    "posterior/rhat_max": "R-hat",
    "posterior/nested_rhat_max": "nested R-hat",
    "posterior/ess_min": "ESS",
    "posterior/samples_per_second": "samples/s",
    "posterior/ess_per_second": "ESS/s",
}
_WATCHED = ("rhat_max", "nested_rhat_max", "ess_min", "accept", "ess_per_second")


@dataclass(frozen=True)
class DensityTask(WithoutExamples):
    """A density by its name.

    Attributes:
        name: Name or path of the density.
        density: The density itself.
    """

    name: str
    density: Density
    num_train_examples: int = 0

    def describe(self) -> ByName:
        """Returns what a checkpoint says of what is sampled, JSON-ready.

        The fingerprint has, roughly, its values: another function is another density.
        """
        self.density.check(_NUM_POINTS)
        points = np.random.default_rng(0).normal(size=(_NUM_POINTS, self.density.num_dims))
        values = self.density.logdensity_fn(jnp.asarray(points, jnp.float32))
        fingerprint = " ".join(f"{value:.3g}" for value in np.asarray(values, np.float64))
        return {"name": self.name, "fingerprint": fingerprint, "num_examples": {}}


def create_task(config: ml_collections.FrozenConfigDict, data: Any) -> DensityTask:
    """Makes the task of a run.

    Raises:
        InputError: The density is unknown, or there are data.
    """
    if data is not None:
        raise InputError("data are not for config.method='rwm', which samples a density")
    return DensityTask(config.density, DENSITIES.load(config.density))


def create(config: ml_collections.FrozenConfigDict, task: DensityTask) -> Method:
    """Makes the method of a configuration.

    Raises:
        InputError: The density or the number of chains cannot be used.
    """
    devices = processes.devices(config.num_devices)
    nothing: Any = None  # The walker has programs of its own, of all chains.

    def algorithm(placed: Devices, numbers: Sequence[int]) -> Algorithm:
        walker = Walker(config, task.density, placed)
        return Algorithm(
            nothing, nothing, nothing, config.sampler.num_samples, Fixed(), programs=walker
        )

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

    def monitored(self, run: Any) -> Scalars:
        """Moments, and convergence."""
        if not run.loop.step:
            return {}
        section = self.sections(run)["posterior"]
        scalars = {name: section[name] for name in _WATCHED}
        for name in ("mean", "variance"):
            scalars |= {f"{name}_{d:02d}": one for d, one in enumerate(section[name][:_MAX_SHOWN])}
        return {
            f"posterior/{name}": float(value)
            for name, value in scalars.items()
            if value is not None and math.isfinite(value)
        }

    def headline(self, scalars: Scalars) -> Scalars:
        """What the samples are worth."""
        return {title: scalars[tag] for tag, title in _TITLES.items() if tag in scalars}

    def may_end(self, scalars: Scalars) -> bool:
        """Returns whether the chains have converged as `config.stop_when` asks.

        Both R-hats, of halves and of starts, must be below what is asked, or 1.1.
        """
        # Chains that have not left their starts seem to be worth much: they must agree anyway.
        found = [scalars.get(f"posterior/{name}_max", np.inf) for name in ("rhat", "nested_rhat")]
        goal = self.config.stop_when
        is_enough = scalars.get("posterior/ess_min", 0) > goal.ess and any(goal.values())
        return is_enough and max(found) < (goal.r_hat or MAX_RHAT)

    def sections(self, run: Any) -> ByName:
        """`posterior`, with moments, errors and quantiles [D]."""
        walker = run.algorithm.programs
        host = walker.to_host(run.loop.members.state)
        num_draws = run.loop.step
        num_chains = self.config.num_chains
        num_samples = num_draws * num_chains
        accepted = int(host.chains.accepted.sum())
        if not accepted:
            raise TrainingError(
                f"no proposal of the {num_chains:,} chains was accepted: lower "
                "config.sampler.step_size, or start where the density is not zero"
            )
        summary = summarise(host, num_draws, walker.num_superchains)
        rate = run.clock.timing()["member_examples_per_second"]
        ess_min = float(np.min(summary["ess"]))
        moments = ("mean", "mcse_mean", "variance", "mcse_variance", "ess")
        section = {
            "rhat_max": float(np.max(summary["rhat"])),  # NaN is worse than any number.
            "nested_rhat_max": float(np.max(summary["nested_rhat"])),
            "ess_min": ess_min,
            "accept": accepted / num_samples,
            "num_invalid": int(host.chains.invalid.sum()),
            "num_samples": num_draws,
            "num_chains": num_chains,
            "num_superchains": walker.num_superchains,
            "num_total_samples": num_samples,
            "samples_per_second": rate,
            "ess_per_second": rate and rate * ess_min / num_samples,
            **{name: summary[name].tolist() for name in moments},
            "quantiles": dict(zip(map(str, SHARES), summary["quantiles"].tolist(), strict=True)),
        }
        return {"posterior": section}
