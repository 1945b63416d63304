"""Findings on the chains of a posterior: do they agree, and if not, why?"""

from collections.abc import Iterator

import numpy as np

from ensemble.draws.diagnostics import (
    AGREE,
    DISAGREE,
    judge_chains,
)
from ensemble.errors import plural
from ensemble.report.findings import Finding
from ensemble.report.table import DIVERGENT, MODES, SLOW, ByName, sections_of

_IDLE = 0.05  # Acceptance rate of a chain that hardly moves.


def chain_findings(results: ByName) -> list[Finding]:
    """Looks for signs that chains have not converged.

    Args:
        results: content of results.json, with `posterior`.

    Returns:
        One finding on agreement, and others on step sizes, divergences and properties.
    """
    posterior = results["posterior"]
    if "ess_bulk_min" not in posterior:
        return []  # Walks have findings of their own.
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
    numbers = {"rhat": rhat, "ess_bulk": ess}
    return [Finding("convergence", level, text, numbers), *_further(results)]


def _advice(results: ByName, verdict: str) -> str:
    """The likely cause of chains that do not agree, and what helps."""
    posterior = results["posterior"]
    rates = zip(results["active_members"], posterior.get("accept_by_chain") or (), strict=False)
    if idle := [str(k) for k, rate in rates if rate < _IDLE]:
        remedy = "raise config.sampler.num_warmup, or set config.init_from"
        return f"Chains {', '.join(idle)} hardly moved: {remedy}."
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


def _own(results: ByName, fault: str) -> str:
    return "".join(section.remedy(results, fault) for section in sections_of(results))


def _further(results: ByName) -> Iterator[Finding]:
    """Divergences; the error of predictions, and bias."""
    posterior = results["posterior"]
    number = posterior.get("divergences")
    if number:
        usual = "Raise config.sampler.target_accept to 0.95."
        if not posterior.get("num_warmup", 1):
            usual = "Lower config.sampler.step_size in a new workdir."
        remedy = _own(results, DIVERGENT) or usual
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
