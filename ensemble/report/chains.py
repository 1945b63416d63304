"""Do chains agree, and if not, why: findings of a posterior, with advice by cause."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ensemble.draws.diagnostics import AGREE, DISAGREE, judge_chains
from ensemble.errors import plural
from ensemble.report.findings import Finding
from ensemble.report.sections import DIVERGENT, MODES, SLOW, Results, sections_of

_IDLE = 0.05  # Acceptance rate of a chain that hardly moves.
_TOO_LONG = 1.0
"""Nats^2 per step and parameter of a fixed step size, above which networks predict worse."""


def chain_findings(results: Results) -> list[Finding]:
    """Looks for signs that chains have not converged.

    Args:
        results: content of results.json, with `posterior`.

    Returns:
        One finding on agreement, and others on step sizes, divergences and properties.
    """
    posterior = results["posterior"]
    if "ess_bulk_min" not in posterior:
        return []  # Walks have findings of their own.
    return [_agreement(results, posterior), *_faults(results, posterior), *_worth(results)]


def _agreement(results: Results, posterior: Results) -> Finding:
    rhat = posterior["rhat_max"]
    ess = posterior["ess_bulk_min"]
    who = plural(len(results["active_members"]), "chain")
    draws = f"{who} of {plural(posterior['num_samples'], 'draw')}"
    level = "warning"
    text = f"R-hat is not known: {draws} are too few, or do not move."
    if np.isfinite(np.array([rhat, ess], float)).all():
        verdict = judge_chains(rhat, ess, posterior["ess_tail_min"])
        measured = f"R-hat is up to {rhat:.3f}, bulk ESS from {ess:,.0f}."
        if verdict == AGREE:
            level = "good"
            text = f"Its {draws} agree: {measured}"
        else:
            text = f"Its {who} {verdict}: {measured} {_advice(results, posterior, verdict)}"
    return Finding("convergence", level, text, {"rhat": rhat, "ess_bulk": ess})


def _advice(results: Results, posterior: Results, verdict: str) -> str:
    """The likely cause of chains that do not agree, and what helps."""
    rates = zip(results["active_members"], posterior.get("accept_by_chain") or (), strict=False)
    if idle := [str(k) for k, rate in rates if rate < _IDLE]:
        remedy = "raise config.sampler.num_warmup, or set config.init_from"
        return f"Chains {', '.join(idle)} hardly moved: {remedy}."
    if _is_too_long(results, posterior):
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


def _is_too_long(results: Results, posterior: Results) -> bool:
    """Whether a step size that nothing tunes is too long."""
    if not results["config"].get("sampler") or posterior.get("num_warmup", 1) > 0:
        return False
    variance = posterior.get("energy_variance") or 0
    return bool(posterior["divergences"]) or not variance <= _TOO_LONG


def _faults(results: Results, posterior: Results) -> Iterator[Finding]:
    """Step sizes that are too long, or divergences."""
    variance = posterior.get("energy_variance")
    number = posterior.get("divergences")
    if _is_too_long(results, posterior):
        size = results["config"]["sampler"]["step_size"]
        text = (
            "The step size is too long, and num_warmup=0 tunes none: lower "
            f"config.sampler.step_size={size:g} in a new workdir."
        )
        yield Finding("step_too_long", "warning", text, {"step_size": size})
    elif number:
        remedy = _own(results, DIVERGENT) or "Raise config.sampler.target_accept to 0.95."
        if variance is not None:  # Every step is accepted, whatever acceptance is asked for.
            remedy = "Compare with method='adjusted_mclmc'."
        text = f"{plural(number, 'draw')} diverged where the posterior is narrow. {remedy}"
        yield Finding("divergences", "warning", text, {"divergences": number})


def _worth(results: Results) -> Iterator[Finding]:
    """What a posterior is worth: predictions, bias, temperature and evidence."""
    posterior = results["posterior"]
    ladder = results.get("ladder", {})
    predictive = posterior.get("predictive") or {}
    ends = predictive.get("nll_interval")
    error = ladder.get("log_evidence_error")
    temperature = posterior.get("temperature", 1)
    of_nll = f", and the Monte Carlo error of their NLL {np.ptp(ends) / 2:.4f}" if ends else ""
    within = "" if error is None else f" +- {error:.2f}"
    known = {
        "predictions_of_chains": (
            predictive.get("rhat_max"),
            f"Predictions of single examples have an R-hat of up to {{:.3f}}{of_nll}.",
        ),
        "unadjusted": (
            posterior.get("sd_bias"),
            "The sampler is unadjusted: standard deviations are off by about {:.1%}.",
        ),
        "temperature": (
            None if temperature == 1 else temperature,
            "The likelihood has temperature {:g}: this is not the Bayes posterior.",
        ),
        "evidence": (ladder.get("log_evidence"), f"The log evidence is {{:.2f}}{within} nats."),
    }
    for code, (value, text) in known.items():
        if value is not None and np.isfinite(value):
            yield Finding(code, "info", text.format(value), {"value": value})
