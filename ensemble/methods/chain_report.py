"""Reports of runs of chains: convergence on the way, the posterior in the end."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, ClassVar

import numpy as np
from flax.traverse_util import flatten_dict

from ensemble import pytrees
from ensemble.config import trait
from ensemble.draws import diagnostics
from ensemble.draws.diagnostics import (
    AGREE,
    DISAGREE,
    ERROR,
    MIN_ESS,
    Diagnostics,
    judge_chains,
    modes_apart,
    predictive_section,
    summarise,
)
from ensemble.draws.store import LOG_DENSITY, LOG_PROB, tracked_examples, tracked_scalars
from ensemble.likelihoods.predictive import Array
from ensemble.methods.start import find_map
from ensemble.pytrees import ByName
from ensemble.report import charts, plots
from ensemble.run.results import REPORTED_SPLITS
from ensemble.runtime.algorithm import Status
from ensemble.runtime.devices import fetch
from ensemble.runtime.loading import fitted_draws
from ensemble.runtime.loop import Period
from ensemble.runtime.method import KeptReport, Scalars
from ensemble.sharding import processes
from ensemble.task import Modelled
from ensemble.tasks.supervised import Supervised

_MIN_DRAWS_TO_MOVE = 20
"""Judged of fewer draws, whether a chain is stuck would depend on when a run ends."""
_TENTH = 0.0953  # The logarithm of 1.1.
_TITLES = {
    "posterior/rhat_max": "R-hat",
    "posterior/ess_bulk_min": "bulk ESS",
    ERROR: "predictive error",
}
"""Titles in a line of the log by tag, in addition to means over chains."""


def convergence_section(
    counted, found: Diagnostics, config, traced: Sequence[str] = (), predicting=()
) -> dict:
    """Entries of the report's `posterior` for chains whatever moves them.

    Args:
        counted: Scalars [C, T] of the draws that count, of the live chains.
        found: Diagnostics of those whose convergence counts.
        config: Configuration of the run.
        traced: Scores of single draws that are among the scalars, by `Likelihood.traced`.
        predicting: Places of the draws that predict among those that count.

    Returns:
        `converged`, whether no chain is left out, all agree by `judge_chains`, and no draw
        diverged; R-hat, ESS and the scalars that have the worst. `monte_carlo` has mean, its
        standard error (MCSE) and 95% interval of the log density, and of scores of single draws;
        no interval where it is not known. Where chains do not agree because each stays in a mode
        of its own, `modes` is their number, and `modes_scalar` the name of the first scalar that
        shows it; else None. `predictive` is of `predictive_section`, where there are predictions.
    """
    ess = found.ess_bulk_min, found.ess_tail_min
    verdict = judge_chains(found.rhat_max, *ess)
    is_whole = len(counted[LOG_DENSITY]) == config.num_chains
    has_diverged = bool(np.any(counted.get("is_divergent", False)))
    summaries = summarise({name: counted[name] for name in (LOG_DENSITY, *traced)})
    disagree = tracked_scalars(counted) if verdict == DISAGREE else {}
    scalar, modes = modes_apart(disagree)
    return {
        "converged": verdict == AGREE and is_whole and not has_diverged,
        **pytrees.without(found._asdict(), "scalars"),
        "num_scalars": len(found.scalars),
        "modes_scalar": scalar,
        "modes": modes,
        "num_samples": counted[LOG_DENSITY].shape[1],
        "temperature": config.posterior_temperature,
        "monte_carlo": {
            name: {"mean": one.mean, "mcse": one.mcse, "interval": one.interval}
            for name, one in summaries.scalars.items()
        },
        "predictive": predictive_section(counted, found, predicting),
    }


def mean(rows: np.ndarray) -> Array:
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
        """Returns convergence, and the mean scores of single draws.

        Convergence is of all draws so far: it is found anew when there are a tenth more, so that a
        run of many draws does not spend most of its time on it.
        """
        scalars: dict = {}
        step = run.loop.rows.first
        before = step - self.config.eval_every_epochs * run.method.steps_per_epoch
        few, number = (max(run.first_row(one) - self.first, 0) for one in (before, step))
        if not number or not run.live:
            return scalars
        is_due = run.loop.ended or np.ptp(np.log1p([few, number]) // _TENTH)
        if self.split is not None and self.has_predictions(run):
            found = self.single_draw(run, self.split)
            scalars = {f"{self.split}/average_draw/{name}": one for name, one in found.items()}
        if is_due and processes.is_main():  # Which alone has the draws.
            counted, worth = self.drawn(run)
            section = predictive_section(counted, worth, self.predicting(run)) or {}
            each = {ERROR: section.get("error")}
            for name in ("rhat_max", "ess_bulk_min", "ess_tail_min"):
                each[f"posterior/{name}"] = getattr(worth, name)
                each[f"posterior/predictive/{name}"] = section.get(name)
            known = {name: one for name, one in each.items() if one is not None}
            scalars |= {name: one for name, one in known.items() if np.isfinite(one)}
        return scalars

    def predicting(self, run) -> np.ndarray:
        """Returns the places of the draws that predict among those that count."""
        return run.draws.predicting(self.most) - self.first

    def headline(self, scalars: Scalars) -> dict:
        """Returns means over chains, and what they are worth."""
        shown = {}
        for name in self.series:
            if values := [one for tag, one in scalars.items() if tag.endswith(f"/{name}")]:
                joined = np.sum if name == "divergences" else np.mean
                shown[name.replace("_", " ")] = float(joined(values))
        return shown | {title: scalars[tag] for tag, title in _TITLES.items() if tag in scalars}

    def sections(self, run) -> ByName:
        """Returns the posterior, and the average draw's scores.

        A subclass has `posterior(run)`, entries of `posterior` in results.json.
        """
        splits = sorted(self.task.sizes.keys() & REPORTED_SPLITS)
        single_draw = {split: self.single_draw(run, split) for split in splits}
        if not processes.is_main():
            return {}
        how = self.config, self.traced, self.predicting(run)
        section = convergence_section(*self.drawn(run), *how)
        return {"single_draw": single_draw, "posterior": section | self.posterior(run)}

    def write(self, run) -> None:
        """Writes plots of the draws, and `posterior.nc` for ArviZ."""
        if not processes.is_main():
            return
        work, draws, live = run.where.work, run.draws, run.live
        counted, _ = self.drawn(run)
        panels = charts.traces(draws.scalars(), self.first, *self.traced[:1])
        plots.write(work.plots, {"traces": panels})
        info = {name: one for name, one in counted.items() if not name.startswith(LOG_PROB)}
        positions, kept = draws.positions(draws.predicting(self.most))
        # ArviZ marks divergences by position: parameters, kept for some draws, are a group apart.
        all_draws = self.first + np.arange(counted[LOG_DENSITY].shape[1])
        groups = {
            "sample_stats": diagnostics.sample_stats(info, all_draws),
            "posterior": diagnostics.to_dataset(tracked_scalars(counted), all_draws),
        }
        if positions:
            params = pytrees.at(flatten_dict(positions["params"], sep="/"), live)
            groups["params"] = diagnostics.to_dataset(params, kept)
        data = diagnostics.to_arviz(groups)
        data.attrs |= {"temperature": self.config.posterior_temperature, "chains": live}
        diagnostics.write_netcdf(work.path / "posterior.nc", data)


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
        "step_size": ("step_size", itemgetter(-1)),
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

    def may_end(self, scalars: Scalars) -> bool:
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

    def sections(self, run) -> dict:
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
        return sections | super().sections(run)

    def drawn(self, run) -> tuple[Any, Diagnostics]:
        """Returns scalars and their diagnostics; in the end those of all variables of a model."""
        counted, found = super().drawn(run)
        return counted, found if self._results is None else self._results.found

    def posterior(self, run) -> dict:
        """Returns step sizes, acceptance and gradients.

        Over the draws mean `accept`, number of `divergences`, median absolute `energy_error` in
        nats, and `step_size` [C] of the last one; `num_gradients` of all chains, with those of the
        warm-up, without a search for the MAP; and what was asked for. Of a sampler that accepts
        every step, `energy_variance` in nats^2 per step and parameter, and the relative error
        `sd_bias` of standard deviations that goes with it, in the mean over directions, None where
        that is not known.
        """
        # Two gradients in a step of the tuning of mclmc.
        gradients = int(run.draws.scalars()["num_gradients"].sum())
        gradients += 2 * self.tuning * self.config.num_chains
        number = pytrees.size(self.task.params_shapes())
        counted, _ = self.drawn(run)
        errors = counted["energy_error"]
        section = {
            "accept": float(counted["acceptance_rate"].mean()),
            "accept_by_chain": counted["acceptance_rate"].mean(axis=1).tolist(),
            "divergences": int(counted["is_divergent"].sum()),
            "energy_error": float(np.median(np.abs(errors))),
            "step_size": counted["step_size"][:, -1].tolist(),
            "num_gradients": gradients,
            "num_warmup": self.config.sampler.num_warmup,
        }
        if not trait("method", self.config.method, "is_exact"):
            variance = float(np.mean(np.square(errors))) / number
            bias = diagnostics.expected_bias(variance, number)
            section |= {"energy_variance": variance, "sd_bias": bias}
        return section

    def write(self, run) -> None:
        """Writes plots of the draws, and `posterior.nc` for ArviZ."""
        if self._results is None:
            super().write(run)
        else:
            self._results.write(run.where.work)

    def data(self):
        """Returns the draws of a model; None for a network."""
        return self._results and self._results.inference_data
