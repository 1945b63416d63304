"""The method `rwm`: thousands to millions of chains walk at random, and only sums are kept.

A step is one step of every chain. The warm-up, which tunes the moves, is the first chunk, whole.
`walker.py` does the walking; here is what the loop asks for.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np

from ensemble.draws.store import Draws
from ensemble.method import Method, Status, check_not_longer
from ensemble.pictures.chain_plots import marginal_plot
from ensemble.pictures.plot_style import figure_to_png
from ensemble.sharding import processes
from ensemble.sharding.mesh import create_mesh
from ensemble.storage.files import write_file
from ensemble.storage.workdir import Workdir
from ensemble.walks.block_kernel import check_steps
from ensemble.walks.moments import MAX_RHAT, Summary
from ensemble.walks.target import DensityTask
from ensemble.walks.walker import Walker
from ensemble.walks.walker_state import WalkerState

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of the quantiles in a report."""
_MAX_SHOWN = 10  # Dimensions whose moments are scalars of TensorBoard.
_COMPILING_WARMUP = 1536  # Steps of a warm-up after which nothing is left to compile.


class RandomWalkState(NamedTuple):
    """A random walk as the loop sees it: all chains are one member.

    Attributes:
        walk: the chains, and the sums over their draws.
        begun: steps that have been reported.
    """

    walk: WalkerState
    begun: int

    @property
    def step(self) -> int:
        """Steps of every chain, those of the warm-up included."""
        return self.walk.step


class RandomWalkInfo(NamedTuple):
    """The diagnostics of one chunk.

    Attributes:
        step: after the chunk.
        begun: steps that had been reported before.
        first: before it.
        compiles: whether its time says nothing of speed.
        accepted: proposals accepted by each chain, on the devices: ready when the chunk is.
        is_cut: whether the limit ended it.
    """

    step: int
    begun: int
    first: int
    compiles: bool
    accepted: Any
    is_cut: bool


class RandomWalk(Method[RandomWalkState, RandomWalkInfo]):
    """Random-walk Metropolis of many chains, `(init, advance)` and what the loop needs.

    Args:
        config: validated, of `ensemble.config`, with the method 'rwm'.
        task: the density.

    Raises:
        UserError: the density or the number of chains cannot be used.
    """

    noun = "chain"
    indices = (0,)  # All chains are one member.

    def __init__(self, config: ml_collections.FrozenConfigDict, task: DensityTask):
        self.config = config
        self.task = task
        self.num_steps = config.rwm.num_warmup + config.rwm.num_samples
        self.may_end_early = any(config.stop_at.values())
        self.steps_per_epoch = config.log_every_steps
        self.tracked_split = None
        self.remedy = f"lower config.rwm.scale={config.rwm.scale}"
        devices = processes.devices(config.num_devices)
        mesh = create_mesh(len(devices), 1, devices)
        self._walk = Walker(task, config.num_chains, mesh)
        self._compiles = True
        check_steps(self.num_steps)

    # The protocol of a method.

    def init(self, rng_key: jax.Array) -> RandomWalkState:
        """Starts all chains, overdispersed."""
        return RandomWalkState(self._walk.init(rng_key, scale=self.config.rwm.scale), 0)

    def advance(
        self, state: RandomWalkState, limit: int | None = None
    ) -> tuple[RandomWalkState, RandomWalkInfo]:
        """Takes the steps up to the next due logging or the goal; the warm-up is one chunk."""
        first, num_warmup = state.step, self.config.rwm.num_warmup
        if first < num_warmup:
            walk = self._walk.warm_up(state.walk, num_warmup, self.config.rwm.shape)
            compiles, self._compiles = True, num_warmup < _COMPILING_WARMUP
            due = num_warmup
        else:
            every = self.config.log_every_steps
            due = end = min((first // every + 1) * every, self.num_steps)
            if limit is not None:  # Steps go by pairs.
                end = min(end, first + max(limit - limit % 2, 2))
            walk = self._walk.advance(state.walk, end - first)
            compiles, self._compiles = self._compiles, False
        # A copy: the chunk after this one uses the state up.
        accepted = walk.chains.accepted + 0
        begun, is_cut = state.begun, walk.step < due
        info = RandomWalkInfo(walk.step, begun, first, compiles, accepted, is_cut)
        return RandomWalkState(walk, begun if is_cut else walk.step), info

    def finished(self, state: RandomWalkState) -> bool:
        """Whether all steps have been taken."""
        return state.step >= self.num_steps

    # What the loop asks for.

    def status(self, info_or_state: RandomWalkInfo | RandomWalkState) -> dict[int, Status]:
        """The one member is well: a proposal without a log density is but rejected."""
        if isinstance(info_or_state, RandomWalkInfo):
            jax.block_until_ready(info_or_state.accepted)
        return {0: Status.ACTIVE}

    def scalars(self, info: RandomWalkInfo) -> dict[str, float]:
        """Nothing: all that is known of the chains are sums over their draws."""
        return {}

    def member_examples(self, info: RandomWalkInfo) -> int:
        """Samples of all chains in a chunk."""
        return (info.step - info.begun) * self.config.num_chains

    def rate_scalars(self, member_examples_per_second: float) -> dict[str, float]:
        """The speed as it is shown."""
        return {"posterior/samples_per_second": member_examples_per_second}

    def monitor_scalars(
        self, state: RandomWalkState, draws: Draws, member_examples_per_second: float | None
    ) -> dict[str, float]:
        """Moments with their errors, and convergence, as named scalars."""
        if not state.walk.num_draws:
            return {}
        found = self._walk.summaries(state.walk)
        scalars = {f"posterior/{name}": value for name, value in _worst(found).items()}
        scalars["posterior/accept"] = self._walk.acceptance(state.walk)
        scalars["posterior/invalid"] = float(self._num_invalid(state))
        scalars["posterior/stuck"] = float(self._walk.stuck(state.walk))
        if member_examples_per_second:
            ess_per_sample = scalars["posterior/ess_min"] / found.num_samples
            scalars["posterior/ess_per_second"] = ess_per_sample * member_examples_per_second
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

    def has_converged(self, scalars: Mapping[str, float]) -> bool:
        """Whether `monitor_scalars` are as `config.stop_at` asks; never if it asks nothing."""
        return has_converged(scalars, self.config.stop_at)

    def figures(self, state: RandomWalkState) -> dict[str, Any]:
        """Draws the histograms of all dimensions."""
        found = self._walk.summaries(state.walk)
        title = f"{self.task.name}: what the chains have seen"
        return {"posterior/marginals": marginal_plot(found.edges, found.cdf, title)}

    def _num_invalid(self, state: RandomWalkState) -> int:
        """Proposals that were rejected because their log density was NaN or +inf."""
        return int(self._walk.counts(state.walk)[1].sum(dtype=np.int64))

    def parameters(self, state: RandomWalkState) -> Any:
        """The position of one chain."""
        return {"position": np.zeros(self._walk.density.num_dims, np.float32)}

    # What is left on disk.

    def report_sections(
        self, state: RandomWalkState, draws: Draws, timing: Mapping[str, float | None]
    ) -> dict[str, Any]:
        """What report.json says: `posterior`, with moments, errors and quantiles [D]."""
        found, rate = self._walk.summaries(state.walk), timing["member_examples_per_second"]
        worst = _worst(found)
        section = {
            **worst,
            "accept": self._walk.acceptance(state.walk),
            "num_invalid": self._num_invalid(state),
            "num_stuck": self._walk.stuck(state.walk),
            "num_warmup": self.config.rwm.num_warmup,
            "num_samples": found.num_draws,
            "num_chains": self.config.num_chains,
            "num_total_samples": found.num_samples,
            "samples_per_second": rate,
            "ess_per_second": rate and rate * worst["ess_min"] / found.num_samples,
            "scale": np.asarray(state.walk.factor).tolist(),
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

    def write_results(self, state: RandomWalkState, work: Workdir, draws: Draws) -> None:
        """Draws the marginals."""
        figures = self.figures(state)
        if not processes.is_main():
            return
        work.plots.mkdir(parents=True, exist_ok=True)
        for tag, figure in figures.items():
            write_file(work.plots / f"{tag.split('/')[-1]}.png", figure_to_png(figure))

    def to_host(self, state: RandomWalkState) -> tuple[dict[str, Any], dict[str, int]]:
        """Fetches a state as `(arrays, counters)`."""
        return self._walk.to_host(state.walk)

    def from_host(
        self, rng_key: jax.Array, arrays: Any, counters: dict[str, int]
    ) -> RandomWalkState:
        """The inverse of `to_host`, on any devices."""
        walk = self._walk.from_host(arrays, counters)
        return RandomWalkState(walk, walk.step)  # Nothing but a rate is reported.

    def check_resumable(self, counters: Mapping[str, int], where: str) -> None:
        """Refuses counters of a run that this configuration cannot go on with.

        Raises:
            UserError: it has taken more steps.
        """
        check_not_longer(counters["step"], self.num_steps, "steps", "rwm.num_samples", where)


def has_converged(scalars: Mapping[str, float], stop_at: Any) -> bool:
    """Whether scalars are as `config.stop_at` asks; never if it asks nothing.

    Both R-hats, of halves and of starts, must be below what is asked, or 1.1.

    Args:
        scalars: with those of convergence, as far as they are known.
        stop_at: `rhat` and `ess`; what is 0 is not asked for.
    """
    if not (stop_at.rhat or stop_at.ess):
        return False
    # Chains that have not left their starts seem to be worth much: they must agree anyway.
    found = [scalars.get(f"posterior/{name}", np.inf) for name in ("rhat_max", "nested_rhat_max")]
    ess = scalars.get("posterior/ess_min", 0)
    return max(found) < (stop_at.rhat or MAX_RHAT) and ess > stop_at.ess


def _worst(found: Summary) -> dict[str, float]:
    """Convergence over all dimensions; NaN is worse than any number."""
    return {
        "rhat_max": float(np.max(found.rhat)),
        "nested_rhat_max": float(np.max(found.nested_rhat)),
        "ess_min": float(np.min(found.ess)),
    }
