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
import numpy as np
import scipy
from numpy.typing import NDArray

from ensemble.config import Config
from ensemble.config.builtin import DENSITIES
from ensemble.errors import InputError, TrainingError, plural
from ensemble.pytrees import ByName
from ensemble.random_walk.block_kernel import segment_length
from ensemble.random_walk.densities import Density
from ensemble.random_walk.walker import Walker
from ensemble.report.table import Section, grid
from ensemble.runtime.algorithm import Algorithm
from ensemble.runtime.devices import Devices
from ensemble.runtime.feed import Fixed
from ensemble.runtime.method import Method, Report, Scalars
from ensemble.sharding import processes
from ensemble.task import WithoutExamples

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of the quantiles in a report."""
MAX_RHAT = 1.1  # Of chains that agree, and have left their starts.
_MIN_DRAWN = 500  # Positions, fewer of which say little of quantiles.
_MAX_CHAINS = 2**15  # Whose positions give the quantiles.


def summarise(walk: Any, num_draws: int, num_superchains: int) -> dict[str, NDArray]:
    """Computes moments and convergence in float64.

    Args:
        walk: `Walk` on the host.
        num_draws: Number of draws of each chain in the sums.
        num_superchains: Number K of groups of neighbouring chains that share a start; it divides C.

    Returns:
        Arrays [D] by name; NaN is what cannot be said:

        - `mean`, `variance`: over all draws;
        - `mcse_mean`, `mcse_variance`: their standard errors, for chains and draws are finite: the
          larger of those over chains and over superchains;
        - `ess`: how many independent draws locate the mean as well;
        - `rhat`: split R-hat (Gelman et al. 2013), without ranks, of the marked segments' halves;
        - `nested_rhat`: of groups of chains from the same start (Margossian et al. 2022, "Nested
          R-hat: Assessing the convergence of Markov chain Monte Carlo when running many short
          chains");
        - `quantiles`: [Q, D] at the levels `SHARES`, of positions at the ends of segments.
    """
    length = segment_length(num_draws)
    number = num_draws // length
    half = number // 2  # An odd segment in the middle is of neither half.
    half_firsts, half_squares = (
        np.concatenate([one[:, half - 1], one[:, number - 1] - one[:, number - half - 1]])
        for one in walk.marks[:2]
    )
    firsts, squares = (
        np.asarray(total, np.float64) - excess + pending
        for pending, total, excess in zip(*walk.sums, strict=True)
    )
    positions = walk.marks[2]
    drawn = positions[:: 1 + len(positions) // _MAX_CHAINS, :number].reshape(-1, walk.origin.size)
    if len(drawn) < _MIN_DRAWN:
        drawn = np.full_like(drawn, np.nan, shape=(1, walk.origin.size))
    with np.errstate(divide="ignore", invalid="ignore"):
        means = firsts / num_draws
        mean = means.mean(axis=0)
        # Of the squares of distances from the mean over all chains.
        seconds = squares / num_draws - 2 * mean * means + mean**2
        variance = seconds.mean(axis=0)
        mcse_mean = _standard_error(means, num_superchains)
        in_half = np.float64(half * length)
        split = _ratio(half_firsts, half_squares, in_half, 2 * len(means))
        return {
            "mean": walk.origin + mean,
            "variance": variance,
            "mcse_mean": mcse_mean,
            "mcse_variance": _standard_error(seconds, num_superchains),
            "ess": variance / mcse_mean**2,
            "rhat": np.sqrt(1 - 1 / in_half + split),
            "nested_rhat": np.sqrt(1 + _ratio(firsts, squares, num_draws, num_superchains)),
            "quantiles": np.quantile(drawn, SHARES, axis=0),
        }


def _standard_error(values: NDArray, num_superchains: int) -> NDArray:
    """The standard error [D] of the mean over chains [C, D]: the larger by chains or superchains;
    NaN of one chain."""
    by_chains = _error_of_groups(values, len(values))
    return np.fmax(by_chains, _error_of_groups(values, num_superchains))


def _error_of_groups(values: NDArray, num_groups: int) -> NDArray:
    """Standard error [D] of the mean over chains [C, D], by groups of neighbours; NaN of one."""
    groups = values.reshape(num_groups, -1, values.shape[1]).mean(axis=1)
    squares = np.square(groups - groups.mean(axis=0)).sum(axis=0)
    return np.sqrt(squares / (num_groups * (num_groups - 1)))


def _ratio(firsts: NDArray, squares: NDArray, num_draws: float, num_groups: int) -> NDArray:
    """Variance [D] between groups of neighbouring chains over that within.

    Args:
        firsts: Sums [C, D] of distances over N draws of each chain.
        squares: Sums of their squares.
        num_draws: N.
        num_groups: Number of groups; of one, and without draws, the result is NaN.
    """
    means = np.asarray(firsts, np.float64) / num_draws
    within = ((squares - firsts * means) / (num_draws - 1)).mean(axis=0)
    groups = means.reshape(num_groups, -1, means.shape[1])
    if groups.shape[1] > 1:
        within = within + groups.var(axis=1, ddof=1).mean(axis=0)
    return num_groups * _error_of_groups(means, num_groups) ** 2 / within


def _contents(report: ByName) -> list[str]:
    """The moments of the density with their intervals, a dimension per line, and their worth."""
    posterior = report["posterior"]
    rhat = np.maximum(posterior["rhat_max"], posterior["nested_rhat_max"])
    # An error that few groups of chains tell is itself uncertain.
    width = (
        scipy.stats.t.ppf(0.975, posterior["num_superchains"] - 1) if rhat < MAX_RHAT else np.nan
    )
    rows = []
    for d, ess in enumerate(posterior["ess"]):
        row = [str(d)]
        for name in ("mean", "variance"):
            value, margin = posterior[name][d], width * posterior[f"mcse_{name}"][d]
            ends = f"[{value - margin:.6g}, {value + margin:.6g}]"
            row += [f"{value:.6g}", ends.replace("[nan, nan]", "not known")]
        rows.append([*row, f"{ess:.6g}"])
    worth = "too few chains or samples to say what they are worth"
    if np.isfinite(posterior["ess_min"] + rhat):
        worth = f"worth {posterior['ess_min']:,.0f}: R-hat up to {rhat:.4f}"
    text = (
        f"{plural(posterior['num_total_samples'], 'sample')} of "
        f"{plural(posterior['num_chains'], 'chain')}, {worth}, {posterior['accept']:.0%} accepted."
    )
    if posterior["num_invalid"]:
        text += f" {posterior['num_invalid']:,} proposals without a log density were rejected."
    table = grid(["dimension", "mean", "95%", "variance", "95%", "ESS"], rows)
    return [table, "", text]


SECTION = Section(_contents, stands_alone=True)


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


def create_task(config: Config, data: Any) -> DensityTask:
    """Makes the task of a run.

    Raises:
        InputError: The density is unknown, or there are data.
    """
    if data is not None:
        raise InputError("data are not for config.method='rwm', which samples a density")
    return DensityTask(config.density, DENSITIES.load(config.density))


def create(config: Config, task: DensityTask) -> Method:
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
