"""What a posterior's report says of its chains: entries, plots, and `posterior.nc`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np
from flax.traverse_util import flatten_dict
from numpy.typing import NDArray

from ensemble.config import trait
from ensemble.draws import diagnostics
from ensemble.draws.diagnostics import AGREE, DISAGREE, Diagnostics, judge_chains
from ensemble.draws.predictive_error import ERROR, OVER, predictive_section
from ensemble.draws.store import (
    LOG_DENSITY,
    LOG_PROB,
    VALUE,
    is_diagnostic,
    tracked_scalars,
)
from ensemble.draws.unadjusted_bias import expected_bias
from ensemble.report import charts, plots
from ensemble.report.table import Json

_MAX_LOOKED_AT = 10  # Scalars, those whose R-hat is largest.
Scalars = Mapping[str, NDArray]
"""[C, T] each, by name."""


def posterior_section(
    counted: Scalars,
    found: Diagnostics,
    config: ml_collections.FrozenConfigDict,
    num_gradients: int,
    gradients_per_second: float | None,
    tracked_split: str | None,
    traced: Sequence[str],
    num_params: int,
    predicting: NDArray,
) -> Json:
    """The report's entry `posterior`.

    Args:
        counted: scalars [C, T] of the draws that count, of the live chains.
        found: the diagnostics of those whose convergence counts.
        config: of the run.
        num_gradients: of all chains, with those of the warm-up; without a search for the MAP.
        gradients_per_second: of single chains on all data.
        tracked_split: whose scores are among the scalars.
        traced: those scores, by `Likelihood.traced`.
        num_params: of a chain.
        predicting: places of the draws that predict among those that count.

    Returns:
        `converged`, whether no chain is left out, all agree by `judge_chains`, and no draw
        diverged; R-hat, ESS and the scalars that have the worst; over the draws mean `accept`,
        number of `divergences`, median absolute `energy_error` in nats, and `step_size` [C] of the
        last one; `num_gradients`; rates; and what was asked for. `monte_carlo` has mean, its
        standard error (MCSE) and 95% interval of the log density, and of scores of single draws on
        `tracked_split`; no interval where it is not known.
        Of a sampler that accepts every step, `energy_variance`
        in nats^2 per step and parameter, and the relative error `sd_bias` of standard deviations
        that goes with it, in the mean over directions and in the worst one, None where that cannot
        be told. Where chains do not agree because each stays in a mode of its own, `modes` has the
        places of the chains of each mode among the live ones, and `modes_scalar` the name of the
        scalar that shows it; else None.
    """
    rate = gradients_per_second
    errors = counted["energy_error"]
    section = {
        **convergence_section(counted, found, traced, config.num_chains, predicting),
        "accept": float(counted["acceptance_rate"].mean()),
        "accept_by_chain": counted["acceptance_rate"].mean(axis=1).tolist(),
        "divergences": int(counted["is_divergent"].sum()),
        "energy_error": float(np.median(np.abs(errors))),
        "step_size": counted["step_size"][:, -1].tolist(),
        "num_gradients": num_gradients,
        "gradients_per_second": rate,
        "ess_per_second": rate and found.ess_bulk_min * rate / num_gradients,
        "ess_per_gradient": found.ess_bulk_min / num_gradients,
        "num_warmup": config.sampler.num_warmup,
        "num_burn_in": config.sampler.num_burn_in,
        "num_chains": config.num_chains,
        "temperature": config.posterior_temperature,
        "tracked_split": tracked_split,
    }
    if not trait("method", config.method, "is_exact"):
        variance = float(np.mean(np.square(errors))) / num_params
        section["energy_variance"] = variance
        section["sd_bias"] = list(expected_bias(variance, num_params))
    return section


def convergence_section(
    counted: Scalars,
    found: Diagnostics,
    traced: Sequence[str],
    num_chains: int,
    predicting: NDArray,
) -> Json:
    """What the report's entry `posterior` has of chains whatever moves them.

    Args:
        counted: scalars [C, T] of the draws that count, of the live chains.
        found: the diagnostics of those whose convergence counts.
        traced: scores of single draws that are among the scalars.
        num_chains: that were started.
        predicting: as of `posterior_section`.

    Returns:
        As `posterior_section` says; with `predictive`, of `predictive_section`, where there are
        predictions.
    """
    ess = [one.ess_bulk for one in found.scalars.values()]
    verdict = judge_chains(found.rhat_max, found.ess_min)
    is_whole = len(counted[LOG_DENSITY]) == num_chains
    has_diverged = bool(np.any(counted.get("is_divergent", False)))
    predictive = predictive_section(counted, found, predicting)
    summaries = diagnostics.summarise({name: counted[name] for name in (LOG_DENSITY, *traced)})
    scalar, modes = _modes(counted, found) if verdict == DISAGREE else (None, None)
    return {
        "converged": verdict == AGREE and is_whole and not has_diverged,
        **{name: one for name, one in found._asdict().items() if name != "scalars"},
        "ess_bulk_median": float(np.median(ess)) if ess else math.nan,
        "num_scalars": len(found.scalars),
        "modes_scalar": scalar,
        "modes": modes,
        "num_samples": counted[LOG_DENSITY].shape[1],
        "monte_carlo": {
            name: {
                "mean": one.mean,
                "mcse": one.mcse,
                "interval": one.interval,
                "interval_over": OVER,
            }
            for name, one in summaries.scalars.items()
        },
        **({"predictive": predictive} if predictive else {}),
    }


def convergence_scalars(
    scalars: Scalars, found: Diagnostics, predicting: NDArray
) -> dict[str, float]:
    """What the curves of a run show of convergence; what is not known yet is left out.

    Args:
        scalars: [C, T] each, whose convergence counts.
        found: their diagnostics.
        predicting: as of `posterior_section`.
    """
    section = predictive_section(scalars, found, predicting) or {}
    each: Json = {ERROR: section.get("error")}
    for name in ("rhat_max", "ess_bulk_min", "ess_tail_min"):
        each[f"posterior/{name}"] = getattr(found, name)
        each[f"posterior/predictive/{name}"] = section.get(name)
    for level, share in section.get("rhat_above", {}).items():
        each[f"posterior/predictive/rhat_above_{level}"] = share
    return {name: one for name, one in each.items() if one is not None and np.isfinite(one)}


def _modes(counted: Scalars, found: Diagnostics) -> tuple[str | None, list[list[int]] | None]:
    """Finds the scalar that differs most between modes of chains, and the chains of each."""
    from ensemble.draws import disagreement  # Of chains that disagree alone.

    names = {
        name.removeprefix(VALUE): one
        for name, one in counted.items()
        if name == LOG_DENSITY or not is_diagnostic(name)
    }
    known = [name for name in found.scalars if name in names]
    known.sort(key=lambda name: -np.nan_to_num(found.scalars[name].rhat))
    apart = disagreement.modes_apart({one: names[one] for one in known[:_MAX_LOOKED_AT]})
    return apart or (None, None)


def write_posterior(run: Any, report: Any) -> None:
    """Writes plots of the chains, and the live ones as `posterior.nc` for ArviZ.

    Args:
        run: of the chains.
        report: an `ensemble.methods.chain_report.PosteriorReport`.
    """
    work = run.where.work
    draws = run.draws
    first = report.first
    some = list(run.live)
    found = report.diagnose(run)._asdict()
    tracked = tracked_scalars(draws, first, some)
    panels = charts.chains_of(
        draws.scalars(), some, first, [*report.traced, ""][0], report.split, found
    )
    plots.write(work.plots, panels)
    counted = draws.scalars(first)
    info = {name: one[some] for name, one in counted.items() if not name.startswith(LOG_PROB)}
    positions, kept = draws.positions(draws.predicting(report.most))
    params = flatten_dict(positions.get("params", {}), sep="/")
    # ArviZ marks divergences by position: parameters, kept for some draws, are a group apart.
    all_draws = first + np.arange(counted[LOG_DENSITY].shape[1])
    groups = {"sample_stats": diagnostics.sample_stats(info, all_draws)}
    if tracked:
        groups["posterior"] = diagnostics.to_dataset(tracked, all_draws)
    if params:
        live = {name: leaf[some] for name, leaf in params.items()}
        groups["params"] = diagnostics.to_dataset(live, kept)
    data = diagnostics.to_arviz(groups)
    data.attrs |= {"temperature": report.config.posterior_temperature, "chains": some}
    diagnostics.write_netcdf(work.path / "posterior.nc", data)
