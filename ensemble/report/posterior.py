"""What a posterior's report says of its chains: entries, plots, and `posterior.nc`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict
from numpy.typing import NDArray

from ensemble import pytrees
from ensemble.config import trait
from ensemble.draws import diagnostics
from ensemble.draws.diagnostics import AGREE, DISAGREE, Diagnostics, judge_chains
from ensemble.draws.predictive_error import ERROR, predictive_section
from ensemble.draws.store import LOG_DENSITY, LOG_PROB, tracked_scalars
from ensemble.draws.unadjusted_bias import expected_bias
from ensemble.report import charts, plots
from ensemble.report.table import ByName, Json

_MAX_LOOKED_AT = 10  # Scalars, those whose R-hat is largest.
Scalars = ByName
"""[C, T] each, by name."""


def posterior_section(counted: Scalars, config: Any, num_gradients: int, num_params: int) -> Json:
    """Entries of the report's `posterior` for chains that see all data.

    Args:
        counted: Scalars [C, T] of the draws that count, of the live chains.
        config: Configuration of the run.
        num_gradients: Gradients of all chains, with those of the warm-up; without a search for the
            MAP.
        num_params: Parameters of a chain.

    Returns:
        Over the draws mean `accept`, number of `divergences`, median absolute `energy_error` in
        nats, and `step_size` [C] of the last one; `num_gradients`; and what was asked for. Of a
        sampler that accepts every step, `energy_variance` in nats^2 per step and parameter, and the
        relative error `sd_bias` of standard deviations that goes with it, in the mean over
        directions, None where that is not known.
    """
    errors = counted["energy_error"]
    section = {
        "accept": float(counted["acceptance_rate"].mean()),
        "accept_by_chain": counted["acceptance_rate"].mean(axis=1).tolist(),
        "divergences": int(counted["is_divergent"].sum()),
        "energy_error": float(np.median(np.abs(errors))),
        "step_size": counted["step_size"][:, -1].tolist(),
        "num_gradients": num_gradients,
        "num_warmup": config.sampler.num_warmup,
    }
    if not trait("method", config.method, "is_exact"):
        variance = float(np.mean(np.square(errors))) / num_params
        section["energy_variance"] = variance
        section["sd_bias"] = expected_bias(variance, num_params)
    return section


def convergence_section(
    counted: Scalars,
    found: Diagnostics,
    config: Any,
    traced: Sequence[str] = (),
    predicting: Any = (),
) -> Json:
    """Entries of the report's `posterior` for chains whatever moves them.

    Args:
        counted: As of `posterior_section`.
        found: Diagnostics of the draws whose convergence counts.
        config: Configuration of the run.
        traced: Scores of single draws that are among the scalars, by `Likelihood.traced`.
        predicting: Places of the draws that predict among those that count.

    Returns:
        `converged`, whether no chain is left out, all agree by `judge_chains`, and no draw
        diverged; R-hat, ESS and the scalars that have the worst. `monte_carlo` has mean, its
        standard error (MCSE) and 95% interval of the log density, and of scores of single draws;
        no interval where it is not known. Where chains do not agree because each stays in a mode
        of its own, `modes` has the places of the chains of each mode among the live ones, and
        `modes_scalar` the name of the scalar that shows it; else None. `predictive` is of
        `predictive_section`.
    """
    verdict = judge_chains(found.rhat_max, found.ess_min)
    is_whole = len(counted[LOG_DENSITY]) == config.num_chains
    has_diverged = bool(np.any(counted.get("is_divergent", False)))
    summaries = diagnostics.summarise({name: counted[name] for name in (LOG_DENSITY, *traced)})
    scalar, modes = _modes(counted, found) if verdict == DISAGREE else (None, None)
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


def convergence_scalars(scalars: Scalars, found: Diagnostics, predicting: NDArray) -> Json:
    """What the curves of a run show of convergence; what is not known yet is left out.

    Args:
        scalars: [C, T] each, of the draws that count.
        found: Diagnostics of those whose convergence counts.
        predicting: As of `convergence_section`.
    """
    section = predictive_section(scalars, found, predicting) or {}
    each: Json = {ERROR: section.get("error")}
    for name in ("rhat_max", "ess_bulk_min", "ess_tail_min"):
        each[f"posterior/{name}"] = getattr(found, name)
        each[f"posterior/predictive/{name}"] = section.get(name)
    return {name: one for name, one in each.items() if one is not None and np.isfinite(one)}


def _modes(counted: Scalars, found: Diagnostics) -> Any:
    """Finds the scalar that differs most between modes of chains, and the chains of each."""
    from ensemble.draws import disagreement  # Of chains that disagree alone.

    names = tracked_scalars(counted)
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
    live = list(run.live)
    counted, _ = report.drawn(run)
    panels = charts.traces(draws.scalars(), report.first, *report.traced[:1])
    plots.write(work.plots, {"traces": panels})
    info = {name: one for name, one in counted.items() if not name.startswith(LOG_PROB)}
    positions, kept = draws.positions(draws.predicting(report.most))
    # ArviZ marks divergences by position: parameters, kept for some draws, are a group apart.
    all_draws = report.first + np.arange(counted[LOG_DENSITY].shape[1])
    groups = {
        "sample_stats": diagnostics.sample_stats(info, all_draws),
        "posterior": diagnostics.to_dataset(tracked_scalars(counted), all_draws),
    }
    if positions:
        params = pytrees.at(flatten_dict(positions["params"], sep="/"), live)
        groups["params"] = diagnostics.to_dataset(params, kept)
    data = diagnostics.to_arviz(groups)
    data.attrs |= {"temperature": report.config.posterior_temperature, "chains": live}
    diagnostics.write_netcdf(work.path / "posterior.nc", data)
