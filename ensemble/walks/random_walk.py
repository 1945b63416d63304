"""Random-walk Metropolis: thousands to millions of chains walk, and only sums are kept.

A step is one step of every chain; the warm-up, which tunes the moves, comes before the first.
`walker.py` does the walking. To the runtime all chains are one member, with programs of its own.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from ensemble.report import charts, plots
from ensemble.report.svg import Chart
from ensemble.runtime.algorithm import Algorithm, Between, Start
from ensemble.runtime.devices import Devices
from ensemble.runtime.feed import Fixed
from ensemble.runtime.method import Method, Report
from ensemble.runtime.programs import Members, Told
from ensemble.runtime.rows import Period
from ensemble.sharding import processes
from ensemble.sharding.mesh import create_mesh
from ensemble.walks.block_kernel import check_steps
from ensemble.walks.moments import MAX_RHAT, Summary
from ensemble.walks.target import DensityTask
from ensemble.walks.walker import Walker

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of the quantiles in a report."""
_MAX_SHOWN = 10  # Dimensions whose moments are scalars of TensorBoard.
_STATUS: Any = np.zeros(1, np.int8)
"""The one member is well: a proposal without a log density is but rejected."""


def create(config: ml_collections.FrozenConfigDict, task: DensityTask) -> Method:
    """Makes the method of a configuration.

    Raises:
        InputError: The density or the number of chains cannot be used.
    """
    steps = config.sampler.num_samples
    check_steps(config.sampler.num_warmup + steps)
    devices = processes.devices(config.num_devices)
    walker = Walker(task, config.num_chains, create_mesh(len(devices), 1, devices))
    programs = _Programs(config, walker)

    def nothing(*_: Any) -> Any:
        raise NotImplementedError("chains walk by programs of their own")

    def algorithm(placed: Devices, numbers: Sequence[int]) -> Algorithm:
        return Algorithm(
            nothing,
            nothing,
            nothing,
            steps,
            Fixed(),
            between=(Between(lambda step: step == 0, nothing),),
            programs=programs,
        )

    return Method(
        config=config,
        task=task,
        num_members=1,
        place=lambda number: Devices(number, devices[:1]),
        algorithm=algorithm,
        report=WalkReport(config, task, walker),
        steps_per_epoch=config.log_every_steps,
        num_steps=steps,
        may_end_early=any(config.stop_when.values()),
    )


class _Programs:
    """The programs of a walk, in place of those of the runtime.

    Attributes:
        length: Steps of a program, at most.
        stride: Random numbers are made for pairs of steps.
        num_kept: No parameters are kept.
    """

    length, stride, num_kept = 2**30, 2, 0

    def __init__(self, config: ml_collections.FrozenConfigDict, walker: Walker):
        self._config, self._walker = config, walker

    def start(self, found: Start) -> Members:
        """Starts all chains, overdispersed."""
        scale, key = self._config.sampler.step_size, jax.random.key(self._config.seed)
        return _members(self._walker.init(key, scale=scale))

    def change(self, which: Between, members: Members, shared: Any, step: int) -> Members:
        """Tunes the moves."""
        sampler = self._config.sampler
        if not sampler.num_warmup:
            return members
        state = self._walker.warm_up(members.state, sampler.num_warmup, sampler.mass_matrix)
        return members._replace(state=state)

    def advance(
        self, members: Members, shared: Any, first: int, count: int
    ) -> tuple[Members, Told]:
        """Takes steps of all chains; the devices are not waited for."""
        state = self._walker.advance(members.state, count)
        # A copy, which is there when the steps have been taken.
        done = {"accepted": jnp.sum(state.chains.accepted.astype(jnp.float32))[None]}
        return members._replace(state=state), Told({}, done, None, _STATUS)

    def shapes_of_parameters(self, members: Members, shared: Any) -> Any:
        """The position of one chain."""
        size = self._walker.density.num_dims
        return {"position": jax.ShapeDtypeStruct((size,), np.float32)}

    def saved(self, members: Members) -> dict[str, Any]:
        """Fetches what a checkpoint holds."""
        arrays, counters = self._walker.to_host(members.state)
        return {**arrays, **{name: np.int64(one) for name, one in counters.items()}}

    def restored(self, arrays: Mapping[str, Any], shared: Any) -> Members:
        """The inverse of `saved`, on any devices."""
        arrays = {name: np.asarray(one) for name, one in arrays.items()}
        names = ("step", "first", "segment_length", "num_segments")
        counters = {name: int(arrays.pop(name)) for name in names}
        return _members(self._walker.from_host(arrays, counters))


def _members(state: Any) -> Members:
    """All chains as one member."""
    one: Any = np.zeros(1, np.int32)
    return Members(one, _STATUS, one, state)


class WalkReport(Report):
    """What a run of walks says.

    Args:
        config: Configuration of the run.
        task: Density.
        walker: Walker of the chains.
    """

    noun = "chain"
    charts: ClassVar[Mapping[str, str]] = {}

    def __init__(self, config: Any, task: DensityTask, walker: Walker):
        super().__init__(config, task, f"lower config.sampler.step_size={config.sampler.step_size}")
        self._walker = walker

    def scalars(self, run: Any, period: Period) -> dict[str, float]:
        """Nothing: all that is known of the chains are sums over their draws."""
        return {}

    def examples(self, run: Any, period: Period) -> int:
        """Samples of all chains."""
        return int((period.end - period.first) * self.config.num_chains)

    def rate(self, examples_per_second: float) -> dict[str, float]:
        """Samples a second."""
        return {"posterior/samples_per_second": examples_per_second}

    def monitored(self, run: Any) -> dict[str, float]:
        """Moments with their errors, and convergence."""
        state = run.loop.members.state
        if not state.num_draws:
            return {}
        found = self._walker.summaries(state)
        scalars = {f"posterior/{name}": value for name, value in _worst(found).items()}
        scalars["posterior/accept"] = self._walker.acceptance(state)
        scalars["posterior/invalid"] = float(self._num_invalid(state))
        scalars["posterior/stuck"] = float(self._walker.stuck(state))
        rate = run.clock.timing()["member_examples_per_second"]
        if rate:
            ess_per_sample = scalars["posterior/ess_min"] / found.num_samples
            scalars["posterior/ess_per_second"] = ess_per_sample * rate
        quantiles = found.quantiles(SHARES)
        for d in range(min(len(found.mean), _MAX_SHOWN)):
            for name in ("mean", "variance", "mcse_mean", "mcse_variance"):
                scalars[f"posterior/{name}_{d:02d}"] = float(getattr(found, name)[d])
            for share, value in zip(SHARES, quantiles[d], strict=True):
                scalars[f"posterior/quantile_{share:g}_{d:02d}"] = float(value)
        return {name: value for name, value in scalars.items() if math.isfinite(value)}

    def headline(self, scalars: Mapping[str, float]) -> dict[str, float]:
        """The moments of the first dimension, and what they are worth."""
        titles = {
            "mean_00": "mean",
            "variance_00": "variance",
            "accept": "accepted",
            "rhat_max": "R-hat",
            "nested_rhat_max": "nested R-hat",
            "ess_min": "ESS",
            "samples_per_second": "samples/s",
            "ess_per_second": "ESS/s",
        }
        return {
            title: scalars[f"posterior/{name}"]
            for name, title in titles.items()
            if f"posterior/{name}" in scalars
        }

    def may_end(self, scalars: Mapping[str, float]) -> bool:
        """Whether the chains have converged as `config.stop_when` asks.

        Both R-hats, of halves and of starts, must be below what is asked, or 1.1.
        """
        stop_when = self.config.stop_when
        if not (stop_when.r_hat or stop_when.ess):
            return False
        # Chains that have not left their starts seem to be worth much: they must agree anyway.
        names = ("rhat_max", "nested_rhat_max")
        found = [scalars.get(f"posterior/{name}", np.inf) for name in names]
        ess = scalars.get("posterior/ess_min", 0)
        return max(found) < (stop_when.r_hat or MAX_RHAT) and ess > stop_when.ess

    def figures(self, run: Any) -> dict[str, list[Chart]]:
        """Histograms of the draws, one chart per dimension."""
        found = self._walker.summaries(run.loop.members.state)
        return {"marginals": charts.marginals(found.edges, found.cdf)}

    def _num_invalid(self, state: Any) -> int:
        """Proposals that were rejected because their log density was NaN or +inf."""
        return int(self._walker.counts(state)[1].sum(dtype=np.int64))

    def sections(self, run: Any, timing: Mapping[str, float | None]) -> dict[str, Any]:
        """`posterior`, with moments, errors and quantiles [D]."""
        state, rate = run.loop.members.state, timing["member_examples_per_second"]
        found = self._walker.summaries(state)
        worst = _worst(found)
        section = {
            **worst,
            "accept": self._walker.acceptance(state),
            "num_invalid": self._num_invalid(state),
            "num_stuck": self._walker.stuck(state),
            "num_warmup": self.config.sampler.num_warmup,
            "num_samples": found.num_draws,
            "num_chains": self.config.num_chains,
            "num_total_samples": found.num_samples,
            "samples_per_second": rate,
            "ess_per_second": rate and rate * worst["ess_min"] / found.num_samples,
            "scale": np.asarray(state.factor).tolist(),
            **{
                name: getattr(found, name).tolist()
                for name in ("mean", "mcse_mean", "variance", "mcse_variance", "ess")
            },
            **{
                # Where it is not known, no interval.
                name: [None if math.isnan(low) else [low, high] for low, high in ends.tolist()]
                for name in ("mean_interval", "variance_interval")
                for ends in [getattr(found, name)]
            },
            "quantiles": dict(
                zip(map(str, SHARES), found.quantiles(SHARES).T.tolist(), strict=True)
            ),
        }
        return {"posterior": section}

    def write(self, run: Any) -> None:
        """Draws the marginals."""
        figures = self.figures(run)
        if processes.is_main():
            plots.write(run.where.work.plots, figures)


def _worst(found: Summary) -> dict[str, float]:
    """Convergence over all dimensions; NaN is worse than any number."""
    return {
        "rhat_max": float(np.max(found.rhat)),
        "nested_rhat_max": float(np.max(found.nested_rhat)),
        "ess_min": float(np.min(found.ess)),
    }
