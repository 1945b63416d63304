"""What runs of chains say: convergence on the way, the posterior in the end."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ensemble import pytrees
from ensemble.config import trait
from ensemble.config.pieces import resolve
from ensemble.draws.diagnostics import MIN_ESS, Diagnostics, summarise
from ensemble.draws.predictive_error import ERROR
from ensemble.draws.store import (
    LOG_DENSITY,
    Draws,
    fitted_draws,
    tracked_examples,
    tracked_scalars,
)
from ensemble.methods.kernels import SECTIONS
from ensemble.methods.start import find_map
from ensemble.report.posterior import convergence_scalars, posterior_section, write_posterior
from ensemble.run.results import REPORTED_SPLITS
from ensemble.runtime.devices import fetch
from ensemble.runtime.kept import KeptReport
from ensemble.runtime.rows import Period
from ensemble.runtime.status import Status
from ensemble.sharding import processes
from ensemble.task import Learned, Modelled

_MIN_DRAWS_TO_MOVE = 20
_TITLES = {
    "posterior/rhat_max": "R-hat",
    "posterior/ess_bulk_min": "bulk ESS",
    ERROR: "predictive error",
    "posterior/gradients_per_second": "gradients/s",
    "posterior/steps_per_second": "steps/s",
    "posterior/ess_per_second": "ESS/s",
}
"""What a line of the log shows beside means over chains."""


class PosteriorReport(KeptReport):
    """What a run of chains says, whatever moves them.

    Args:
        config: Configuration of the run.
        task: What is sampled.
        remedy: Against chains that are not finite.
        first: Number of the first draw that counts.

    Attributes:
        split: Split that every draw predicts; None: no split.
        tracked_rows: Numbers of its examples whose log-probability is recorded; None: no split.
    """

    noun, set_noun = "chain", "draw"
    means: tuple[str, ...] = ()
    """Scalars of chains whose mean a line of the log shows."""

    def __init__(self, config: Any, task: Learned | Modelled, remedy: str, first: int):
        super().__init__(config, task, remedy)
        self.first = first
        self.split = next((name for name in ("validation", "test") if name in task.sizes), None)
        self.tracked_rows = None if self.split is None else tracked_examples(task.sizes[self.split])
        scored = None if self.split is None else task.scored()
        self.traced = () if scored is None else tuple(scored.likelihood.traced)
        self._known: tuple[Any, Diagnostics] | None = None

    def of_chains(self, run: Any, values: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Tags scalars [C] of chains; those that are not finite are left out."""
        return {
            f"posterior/chain_{k:02d}/{name}": float(value)
            for name, one in values.items()
            for k, value in zip(run.numbers, one, strict=True)
            if np.isfinite(value)
        }

    def diagnose(self, run: Any) -> Diagnostics:
        """The diagnostics of the draws so far that count, of the live chains."""
        key = run.draws.end, tuple(run.live)
        if self._known is None or self._known[0] != key:
            self._known = key, summarise(tracked_scalars(run.draws, self.first, run.live))
        return self._known[1]

    def predicting(self, draws: Draws) -> np.ndarray:
        """Places of the draws that predict among those that count."""
        return draws.predicting(self.most) - self.first

    def average_draw(self, run: Any, split: str) -> dict[str, float]:
        """Mean scores of single draws of the live chains on a split."""
        rows = [run.numbers.index(k) for k in run.live]
        found = self.predicted.average_draw(split, run.draws)
        return {name: float(values[rows].mean()) for name, values in found.items()}

    def monitored(self, run: Any) -> dict[str, float]:
        """Convergence, and the mean scores of single draws."""
        if self.num_rows(run) <= self.first or not run.live:
            return {}
        scalars = {}
        if self.split is not None and self.has_predictions(run):
            found = self.average_draw(run, self.split)
            scalars = {f"{self.split}/average_draw/{name}": one for name, one in found.items()}
        if processes.is_main():  # Which alone has the draws.
            tracked = tracked_scalars(run.draws, self.first, run.live)
            scalars |= convergence_scalars(tracked, self.diagnose(run), self.predicting(run.draws))
        return scalars

    def headline(self, scalars: Mapping[str, float]) -> dict[str, float]:
        """Means over chains of what tells whether they are well, and what they are worth."""
        shown = {}
        for name in self.means:
            tags = [f"posterior/chain_{k:02d}/{name}" for k in range(self.config.num_chains)]
            values = [scalars[tag] for tag in tags if tag in scalars]
            if values:
                is_count = name == "divergences"
                found = int(sum(values)) if is_count else float(np.mean(values))
                shown[name.replace("_", " ")] = found
        of_draws = {
            f"{self.split}/average_draw/{name}": f"average draw's {name}" for name in self.traced
        }
        titles = _TITLES | of_draws
        return shown | {title: scalars[tag] for tag, title in titles.items() if tag in scalars}

    def posterior(self, run: Any, rate: float | None) -> dict[str, Any]:
        """The entry `posterior` of results.json.

        Args:
            run: Of the chains.
            rate: Examples that single chains have seen, per second.
        """
        raise NotImplementedError

    def sections(self, run: Any, timing: Mapping[str, float | None]) -> dict[str, Any]:
        """The posterior, and the average draw's scores."""
        splits = [name for name in REPORTED_SPLITS if name in self.task.sizes]
        average_draw = {split: self.average_draw(run, split) for split in splits}
        if not processes.is_main():
            return {}
        self.predicted.note_fewer(run.draws)
        posterior = self.posterior(run, timing["member_examples_per_second"])
        return {"single_draw": average_draw, "posterior": posterior}

    def counted(self, run: Any) -> dict[str, np.ndarray]:
        """Scalars [C, T] of the draws that count, of the live chains."""
        return {name: one[run.live] for name, one in run.draws.scalars(self.first).items()}

    def write(self, run: Any) -> None:
        """Writes plots of the draws, and `posterior.nc` for ArviZ."""
        if processes.is_main():
            write_posterior(run, self)


class ChainReport(PosteriorReport):
    """What a run of chains says that see all data.

    Attributes:
        density: Log density of the run.
    """

    charts: ClassVar[Mapping[str, str]] = {
        name.replace("_", " "): f"posterior/chain_[0-9]+/{name}"
        for name in ("log_density", "acceptance")
    }
    means = ("acceptance", "step_size", "energy_error", "log_density", "divergences")
    density: Any = None
    _results: Any = None

    # While it runs.

    def scalars(self, run: Any, period: Period) -> dict[str, float]:
        """Means, medians and counts over the draws."""
        draws = period.scalars
        means = {"log_density": LOG_DENSITY, "acceptance": "acceptance_rate"}
        means |= {name: name for name in self.traced if name in draws}
        values = {
            title: np.asarray(draws[name], np.float64).mean(axis=0) for title, name in means.items()
        }
        # The median: a divergent draw's may be infinite.
        values["energy_error"] = np.median(np.abs(draws["energy_error"]), axis=0)
        values["divergences"] = np.sum(draws["is_divergent"], axis=0)
        values["step_size"] = draws["step_size"][-1]
        return self.of_chains(run, values)

    def examples(self, run: Any, period: Period) -> int:
        """Examples whose likelihood the chains have differentiated."""
        return int(np.sum(period.scalars["num_gradients"])) * self.task.num_train_examples

    def rate(self, examples_per_second: float) -> dict[str, float]:
        """Gradients of one chain on all data, per second."""
        return {
            "posterior/gradients_per_second": examples_per_second / self.task.num_train_examples
        }

    def stripped(self, sets: Any) -> Any:
        """Draws without padded rows."""
        return self.density.layout.strip(sets, axis=2)

    def monitored(self, run: Any) -> dict[str, float]:
        """Convergence, the mean scores of single draws, and what a second is worth."""
        scalars = super().monitored(run)
        rate = run.clock.timing()["member_examples_per_second"]
        if rate and "posterior/ess_bulk_min" in scalars:
            seconds = self._num_gradients(run.draws) * self.task.num_train_examples / rate
            scalars["posterior/ess_per_second"] = scalars["posterior/ess_bulk_min"] / seconds
        return scalars

    def may_end(self, scalars: Mapping[str, float]) -> bool:
        """Whether the chains have converged as `config.stop_when` asks; never if it asks nothing.

        A lucky R-hat of few draws does not count: bulk ESS must be at least 100 anyway.
        """
        goal = self.config.stop_when
        return (
            (goal.r_hat > 0 or goal.ess > 0)
            and (not goal.r_hat or scalars.get("posterior/rhat_max", np.inf) < goal.r_hat)
            and scalars.get("posterior/ess_bulk_min", 0) > max(goal.ess, MIN_ESS)
        )

    # In the end.

    def judge(self, run: Any) -> None:
        """Marks the chains that have never moved as stuck."""
        values = run.draws.scalars(self.first)[LOG_DENSITY] if processes.is_main() else None
        stuck: list[int] = processes.from_main(lambda: _stuck(values))
        if stuck:
            run.loop.status = np.array(run.loop.status)
            run.loop.status[stuck] = Status.STUCK

    def more_sections(self, run: Any) -> dict[str, Any]:
        """What the method and the task say of the chains."""
        place, task = SECTIONS.get(self.config.method), self.task
        sections = {}
        if place is not None:
            sections = resolve(place)(fetch(run.loop.members.state.adaptation))
        if isinstance(task, Modelled) or (sections_of := task.draw_report()) is None:
            return sections
        maximum = find_map(task, self.density)
        if processes.is_main():
            fitted = fitted_draws(run.draws, run.live, self.most)
            sections |= sections_of(fitted.sets["params"], maximum)
        return sections

    def sections(self, run: Any, timing: Mapping[str, float | None]) -> dict[str, Any]:
        """The posterior; of a model by its own results."""
        sections, rate = self.more_sections(run), timing["member_examples_per_second"]
        if not isinstance(self.task, Modelled):
            return sections | super().sections(run, timing)
        if not processes.is_main():
            return {}
        self._results = self.task.results(run.draws, self.first, run.live)
        rate = rate and rate / self.task.num_train_examples
        number = self._num_gradients(run.draws)
        return sections | self._results.sections(self.config, number, rate)

    def posterior(self, run: Any, rate: float | None) -> dict[str, Any]:
        """The entry `posterior` of results.json."""
        return posterior_section(
            self.counted(run),
            self.diagnose(run),
            self.config,
            self._num_gradients(run.draws),
            rate and rate / self.task.num_train_examples,
            self.split,
            self.traced,
            pytrees.size(self.task.params_shapes()),
            self.predicting(run.draws),
        )

    def write(self, run: Any) -> None:
        """Writes plots of the draws, and `posterior.nc` for ArviZ."""
        if self._results is None:
            super().write(run)
        else:
            self._results.write(run.where.work)

    def data(self) -> Any:
        """The draws of a model; None of a network."""
        return None if self._results is None else self._results.inference_data

    def _num_gradients(self, draws: Draws) -> int:
        """Gradients of all chains so far: of the draws, and of the tuning of mclmc."""
        config = self.config
        tuning = 0
        if trait("method", config.method, "tunes_at_once"):
            tuning = 2 * config.sampler.num_warmup * config.num_chains
        return int(draws.scalars()["num_gradients"].sum()) + tuning


def _stuck(log_density: np.ndarray | None) -> list[int]:
    """Chains whose log density [C, T] has never changed: a rejection repeats it to the last bit.

    Judged of fewer draws, the verdict would depend on when a run ends.
    """
    if log_density is None or log_density.shape[1] < _MIN_DRAWS_TO_MOVE:
        return []
    moved = (np.diff(log_density, axis=1) != 0) & np.isfinite(log_density[:, 1:])
    return [int(k) for k in np.flatnonzero(~moved.any(axis=1))]
