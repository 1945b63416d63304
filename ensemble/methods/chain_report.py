"""Reports of runs of chains: convergence on the way, the posterior in the end."""

import operator
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ensemble import pytrees
from ensemble.config import trait
from ensemble.draws.diagnostics import ERROR, MIN_ESS, Diagnostics, summarise
from ensemble.draws.store import LOG_DENSITY, tracked_examples, tracked_scalars
from ensemble.methods.start import find_map
from ensemble.report.posterior import (
    convergence_scalars,
    convergence_section,
    posterior_section,
    write_posterior,
)
from ensemble.run.results import REPORTED_SPLITS
from ensemble.runtime.algorithm import Status
from ensemble.runtime.devices import fetch
from ensemble.runtime.loading import fitted_draws
from ensemble.runtime.loop import Period
from ensemble.runtime.method import KeptReport
from ensemble.sharding import processes
from ensemble.task import Modelled
from ensemble.tasks.supervised import Supervised

_MIN_DRAWS_TO_MOVE = 20
"""Judged of fewer draws, whether a chain is stuck would depend on when a run ends."""
_TITLES = {
    "posterior/rhat_max": "R-hat",
    "posterior/ess_bulk_min": "bulk ESS",
    ERROR: "predictive error",
}
"""Titles in a line of the log by tag, in addition to means over chains."""


def mean(rows: np.ndarray) -> np.ndarray:
    """Averages rows [T, C] to means [C]."""
    return rows.mean(axis=0, dtype=np.float64)


class PosteriorReport(KeptReport):
    """Report of a run of chains.

    Args:
        config: Configuration of the run.
        task: What is sampled.
        remedy: Remedy against chains that are not finite.
        first: Number of the first draw that counts.

    Attributes:
        split: Split that every draw predicts; None: no split.
        tracked_rows: Numbers of its examples whose log-probability is recorded.
        traced: Scores of its predictions that are recorded.
    """

    noun = "chain"
    series: Mapping = {}
    """Scalars of a line of metrics: a scalar of the steps, and a function of its rows [T, C]."""
    posterior: Any
    """A subclass has `posterior(run)`, entries of `posterior` in results.json."""

    def __init__(self, config, task, remedy: str, first: int):
        super().__init__(config, task, remedy)
        self.first = first
        self.split = next((name for name in ("validation", "test") if name in task.sizes), None)
        self.tracked_rows = tracked_examples(task.sizes.get(self.split, 0))
        self.traced = task.likelihood.traced if self.split else ()
        self._drawn: dict = {}

    def scalars(self, run, period: Period) -> dict:
        """Returns scalars of chains; those that are not finite are left out."""
        series = {**self.series, **{name: (name, mean) for name in self.traced}}
        return {
            f"posterior/chain_{k:02d}/{name}": float(value)
            for name, (recorded, function) in series.items()
            if recorded in period.scalars
            for k, value in zip(run.numbers, function(period.scalars[recorded]), strict=True)
            if np.isfinite(value)
        }

    def drawn(self, run) -> tuple[Any, Diagnostics]:
        """Returns scalars [C, T] of the draws so far that count, and what they are worth.

        Both are of the live chains.
        """
        key = run.draws.end, *run.live
        if key not in self._drawn:
            counted = pytrees.at(run.draws.scalars(self.first), run.live)
            self._drawn = {key: (counted, summarise(tracked_scalars(counted)))}
        return self._drawn[key]

    def single_draw(self, run, split: str) -> dict:
        """Returns the mean scores of single draws of the live chains on a split."""
        found = self.average_draw(run, split)
        return {name: float(values[run.live].mean()) for name, values in found.items()}

    def monitored(self, run) -> dict:
        """Returns convergence, and the mean scores of single draws."""
        scalars: dict = {}
        if run.first_row(run.loop.rows.first) <= self.first or not run.live:
            return scalars
        if self.split is not None and self.has_predictions(run):
            found = self.single_draw(run, self.split)
            scalars = {f"{self.split}/average_draw/{name}": one for name, one in found.items()}
        if processes.is_main():  # Which alone has the draws.
            predicting = run.draws.predicting(self.most) - self.first
            scalars |= convergence_scalars(*self.drawn(run), predicting)
        return scalars

    def headline(self, scalars: Mapping[str, float]) -> dict:
        """Returns means over chains, and what they are worth."""
        shown = {}
        for name in self.series:
            if values := [one for tag, one in scalars.items() if tag.endswith(f"/{name}")]:
                joined = np.sum if name == "divergences" else np.mean
                shown[name.replace("_", " ")] = float(joined(values))
        return shown | {title: scalars[tag] for tag, title in _TITLES.items() if tag in scalars}

    def sections(self, run, timing: Mapping[str, float | None]) -> dict[str, Any]:
        """Returns the posterior, and the average draw's scores."""
        splits = sorted(self.task.sizes.keys() & REPORTED_SPLITS)
        single_draw = {split: self.single_draw(run, split) for split in splits}
        if not processes.is_main():
            return {}
        predicting = run.draws.predicting(self.most) - self.first
        section = convergence_section(*self.drawn(run), self.config, self.traced, predicting)
        return {"single_draw": single_draw, "posterior": section | self.posterior(run)}

    def write(self, run) -> None:
        """Writes plots of the draws, and `posterior.nc` for ArviZ."""
        if processes.is_main():
            write_posterior(run, self)


class ChainReport(PosteriorReport):
    """Report of a run of chains that see all data.

    Args:
        config: Configuration of the run.
        task: What is sampled.

    Attributes:
        tuning: Steps of a tuning that is one piece, and leaves no draws: that of mclmc.
        density: Log density of the run.
    """

    charts: ClassVar = {
        "log density": "posterior/chain_[0-9]+/log_density",
        "acceptance": "posterior/chain_[0-9]+/acceptance",
    }
    series = {  # noqa: RUF012
        "acceptance": ("acceptance_rate", mean),
        "step_size": ("step_size", operator.itemgetter(-1)),
        # The median: a divergent draw's may be infinite.
        "energy_error": ("energy_error", lambda errors: np.median(np.abs(errors), axis=0)),
        "log_density": (LOG_DENSITY, mean),
        "divergences": ("is_divergent", sum),
    }
    density: Any = None
    _results: Any = None

    def __init__(self, config, task: Supervised | Modelled):
        own = config.sampler
        self.tuning = own.num_warmup * trait("method", config.method, "tunes_at_once")
        remedy = f"lower config.sampler.step_size={own.step_size}"
        super().__init__(config, task, remedy, own.num_burn_in + own.num_warmup - self.tuning)

    def examples(self, run, period: Period) -> int:
        """Returns the examples whose likelihood the chains have differentiated."""
        return int(np.sum(period.scalars["num_gradients"])) * self.task.num_train_examples

    def stripped(self, sets):
        """Returns draws without padded rows."""
        return self.density.layout.strip(sets, axis=2)

    def may_end(self, scalars: Mapping[str, float]) -> bool:
        """Returns whether the chains have converged as `config.stop_when` asks.

        A lucky R-hat of few draws does not count: bulk ESS must be at least 100 anyway.
        """
        goal = self.config.stop_when
        r_hat = scalars.get("posterior/rhat_max", np.inf)
        is_enough = scalars.get("posterior/ess_bulk_min", 0) > max(goal.ess, MIN_ESS)
        return is_enough and (r_hat < goal.r_hat if goal.r_hat else goal.ess > 0)

    def judge(self, run) -> None:
        """Marks the chains that have never moved as stuck."""

        def find():
            values = np.nan_to_num(run.draws.scalars(self.first)[LOG_DENSITY])
            # A rejection repeats the log density to the last bit.
            moves = (values != values[:, :1]).any(axis=1) | (values.shape[1] < _MIN_DRAWS_TO_MOVE)
            return moves.tolist()

        moves = processes.from_main(find)
        run.loop.status = np.where(moves, run.loop.status, np.int8(Status.STUCK))

    def sections(self, run, timing: Mapping[str, float | None]) -> dict:
        """Returns the posterior, of a model by its own results, and the ladder of tempering."""
        task = self.task
        sections = {}
        if self.config.method == "parallel_tempering":
            from ensemble.methods import parallel_tempering  # Of its replicas alone.

            replicas = fetch(run.loop.members.state.adaptation)
            sections = parallel_tempering.section(
                replicas, self.config.sampler.num_warmup, run.loop.step
            )
        if isinstance(task, Modelled):
            if processes.is_main():
                self._results = task.results(run.draws, self.first, run.live)
                sections |= self._results.sections
        elif sections_of := task.draw_report(run.devices.mesh):
            maximum = find_map(task, self.density)
            if processes.is_main():
                fitted = fitted_draws(run.draws, run.live, self.most)
                sections |= sections_of(fitted.sets["params"], maximum)
        return sections | super().sections(run, timing)

    def drawn(self, run) -> tuple[Any, Diagnostics]:
        """Returns scalars and their diagnostics; in the end those of all variables of a model."""
        counted, found = super().drawn(run)
        return counted, found if self._results is None else self._results.found

    def posterior(self, run) -> dict:
        """Returns step sizes, acceptance and gradients."""
        # Two gradients in a step of the tuning of mclmc.
        gradients = int(run.draws.scalars()["num_gradients"].sum())
        gradients += 2 * self.tuning * self.config.num_chains
        number = pytrees.size(self.task.params_shapes())
        return posterior_section(self.drawn(run)[0], self.config, gradients, number)

    def write(self, run) -> None:
        """Writes plots of the draws, and `posterior.nc` for ArviZ."""
        if self._results is None:
            super().write(run)
        else:
            self._results.write(run.where.work)

    def data(self):
        """Returns the draws of a model; None for a network."""
        return self._results and self._results.inference_data
