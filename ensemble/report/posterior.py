"""What a posterior's report says of its chains: entries, plots, `posterior.nc`, and findings."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict
from numpy.typing import NDArray

from ensemble import pytrees
from ensemble.config import trait
from ensemble.draws import diagnostics
from ensemble.draws.diagnostics import (
    AGREE,
    DISAGREE,
    ERROR,
    Diagnostics,
    judge_chains,
    predictive_section,
)
from ensemble.draws.store import LOG_DENSITY, LOG_PROB, tracked_scalars
from ensemble.errors import plural
from ensemble.report import charts, plots
from ensemble.report.findings import Finding
from ensemble.report.table import DIVERGENT, MODES, SLOW, ByName, Json, Results, sections_of

_IDLE = 0.05  # Acceptance rate of a chain that hardly moves.
_TOO_LONG = 1.0
"""Nats^2 per step and parameter of a fixed step size, above which networks predict worse."""
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
        section["sd_bias"] = diagnostics.expected_bias(variance, num_params)
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
    summaries = diagnostics.summarise({name: counted[name] for name in (LOG_DENSITY, *traced)})
    disagree = tracked_scalars(counted) if verdict == DISAGREE else {}
    scalar, modes = diagnostics.modes_apart(disagree)
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


# Do chains agree, and if not, why?


def chain_findings(results: Results) -> list[Finding]:
    """Looks for signs that chains have not converged.

    Args:
        results: content of results.json, with `posterior`.

    Returns:
        One finding on agreement, and others on step sizes, divergences and properties.
    """
    if "ess_bulk_min" not in results["posterior"]:
        return []  # Walks have findings of their own.
    return [_agreement(results), *_further(results)]


def _agreement(results: Results) -> Finding:
    posterior = results["posterior"]
    rhat = posterior["rhat_max"]
    ess = posterior["ess_bulk_min"]
    who = plural(len(results["active_members"]), "chain")
    draws = f"{who} of {plural(posterior['num_samples'], 'draw')}"
    level = "warning"
    text = f"R-hat is not known: {draws} are too few, or do not move."
    if np.isfinite(np.array([rhat, ess], float)).all():
        verdict = judge_chains(rhat, ess, posterior["ess_tail_min"])
        measured = f"R-hat is up to {rhat:.3f}, bulk ESS from {ess:,.0f}."
        text = f"Its {draws} agree: {measured}"
        if verdict == AGREE:
            level = "good"
        else:
            text = f"Its {who} {verdict}: {measured} {_advice(results, verdict)}"
    return Finding("convergence", level, text, {"rhat": rhat, "ess_bulk": ess})


def _advice(results: Results, verdict: str) -> str:
    """The likely cause of chains that do not agree, and what helps."""
    posterior = results["posterior"]
    rates = zip(results["active_members"], posterior.get("accept_by_chain") or (), strict=False)
    if idle := [str(k) for k, rate in rates if rate < _IDLE]:
        remedy = "raise config.sampler.num_warmup, or set config.init_from"
        return f"Chains {', '.join(idle)} hardly moved: {remedy}."
    if _is_too_long(results):
        return "The step size is too long, see below."
    if modes := posterior.get("modes"):
        remedy = _own(results, MODES) or "Use them as an ensemble, without intervals."
        if "ladder" in results:
            remedy = "Raise config.parallel_tempering.num_replicas."
        return f"They stay in {modes} modes of {posterior['modes_scalar']}. {remedy}"
    if posterior.get("divergences"):
        return "See the divergences first."
    longer: str = posterior.get("remedy") or "Raise config.sampler.num_samples."
    if verdict != DISAGREE:
        return longer
    return _own(results, SLOW) or f"They mix slowly: start from trained members. {longer}"


def _own(results: Results, fault: str) -> str:
    return "".join(section.remedy(results, fault) for section in sections_of(results))


def _is_too_long(results: Results) -> bool:
    """Whether a step size that nothing tunes is too long."""
    posterior = results["posterior"]
    if not results["config"].get("sampler") or posterior.get("num_warmup", 1) > 0:
        return False
    variance = posterior.get("energy_variance") or 0
    return bool(posterior["divergences"]) or not variance <= _TOO_LONG


def _further(results: Results) -> Iterator[Finding]:
    """Step sizes that are too long, or divergences; the error of predictions, and bias."""
    posterior = results["posterior"]
    number = posterior.get("divergences")
    if _is_too_long(results):
        size = results["config"]["sampler"]["step_size"]
        text = (
            "The step size is too long, and num_warmup=0 tunes none: lower "
            f"config.sampler.step_size={size:g} in a new workdir."
        )
        yield Finding("step_too_long", "warning", text, {"step_size": size})
    elif number:
        remedy = _own(results, DIVERGENT) or "Raise config.sampler.target_accept to 0.95."
        if "energy_variance" in posterior:  # Every step is accepted, whatever is asked for.
            remedy = "Compare with method='adjusted_mclmc'."
        text = f"{plural(number, 'draw')} diverged where the posterior is narrow. {remedy}"
        yield Finding("divergences", "warning", text, {"divergences": number})
    predictive = posterior.get("predictive") or {}
    ends = predictive.get("nll_interval")
    nll = f", and the Monte Carlo error of their NLL {np.ptp(ends) / 2:.4f}" if ends else ""
    text = f"Predictions of single examples have an R-hat of up to {{:.3f}}{nll}."
    bias = "The sampler is unadjusted: standard deviations are off by about {:.1%}."
    known = [
        ("predictions_of_chains", predictive.get("rhat_max"), text),
        ("unadjusted", posterior.get("sd_bias"), bias),
    ]
    for code, value, text in known:
        if value is not None and np.isfinite(value):
            yield Finding(code, "info", text.format(value), {"value": value})
