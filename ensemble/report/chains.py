"""Do chains agree, and if not, why: findings of a posterior, with advice by cause."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ensemble.draws.diagnostics import AGREE, DISAGREE, judge_chains, least_ess
from ensemble.errors import plural
from ensemble.report.findings import Finding
from ensemble.report.sections import DIVERGENT, MODES, SLOW, Results, sections_of

_IDLE = 0.05  # Acceptance rate of a chain that hardly moves.
_RARE_SWAPS = 0.1
_MIN_SWAPPED = 20
"""Share of swaps between neighbours of a ladder, and draws from which on it is judged."""
_TOO_LONG = 1.0
_SHORT_ENOUGH = 0.1
"""Nats^2 per step and parameter of a fixed step size: above the first, networks predict worse."""


def chain_findings(results: Results) -> list[Finding]:
    """Looks for signs that chains have not converged.

    Args:
        results: content of results.json, with `posterior`.

    Returns:
        One finding on agreement, and others on step sizes, divergences, swaps and properties.
    """
    posterior = results.get("posterior") or {}
    if posterior.get("rhat_max") is None or "ess_bulk_min" not in posterior:
        return []  # Walks have findings of their own.
    return [
        *_agreement(results, posterior),
        *_faults(results, posterior),
        *_worth(posterior, results.get("ladder", {})),
    ]


def _agreement(results: Results, posterior: Results) -> Iterator[Finding]:
    numbers: dict[str, Any] = {
        "rhat": posterior.get("rhat_max"),
        "ess_bulk": posterior.get("ess_bulk_min"),
    }
    rhat, ess = numbers.values()
    who = plural(len(results["active_members"]), "chain")
    draws = f"{who} of {plural(posterior['num_samples'], 'draw')}"
    level = "warning"
    text = f"R-hat is not known: {draws} are too few, or do not move."
    if np.isfinite(np.array([rhat, ess], float)).all():
        verdict = judge_chains(rhat, least_ess(posterior))
        measured = f"R-hat is up to {rhat:.3f}, bulk ESS from {ess:,.0f}."
        if verdict == AGREE:
            level = "good"
            text = f"Its {draws} agree: {measured}"
        else:
            text = f"Its {who} {verdict}: {measured} {_advice(results, posterior, verdict)}"
    yield Finding("convergence", level, text, numbers)


def _advice(results: Results, posterior: Results, verdict: str) -> str:
    """The likely cause of chains that do not agree, and what helps."""
    rates = zip(results["active_members"], posterior.get("accept_by_chain") or (), strict=False)
    if idle := [str(k) for k, rate in rates if rate < _IDLE]:
        chains = f"Chain{'s' * (len(idle) > 1)} {', '.join(idle)}"
        return f"{chains} hardly moved: raise config.sampler.num_warmup, or set config.init_from."
    if _is_too_long(results, posterior):
        return "The step size is too long, see below."
    if modes := posterior.get("modes"):
        remedy = _own(results, MODES) or "Use them as an ensemble, without intervals."
        if "ladder" in results:
            remedy = "Raise config.parallel_tempering.num_replicas."
        return f"They stay in {len(modes)} modes of {posterior['modes_scalar']}. {remedy}"
    if posterior.get("divergences"):
        return "See the divergences first."
    longer = posterior.get("remedy") or "Raise config.sampler.num_samples."
    if verdict != DISAGREE:
        return longer
    return _own(results, SLOW) or f"They mix slowly: start from trained members. {longer}"


def _own(results: Results, fault: str) -> str:
    return "".join(section.remedy(results, fault) for section in sections_of(results))


def _is_too_long(results: Results, posterior: Results) -> bool:
    """Whether a step size that nothing tunes is too long."""
    if not results["config"].get("sampler") or posterior.get("num_warmup", 1) > 0:
        return False
    return (
        bool(posterior["divergences"]) or not (posterior.get("energy_variance") or 0) <= _TOO_LONG
    )


def _faults(results: Results, posterior: Results) -> Iterator[Finding]:
    """Step sizes that are too long, or not found; divergences; replicas that hardly swap."""

    def warning(code: str, text: str, **numbers: Any) -> Finding:
        return Finding(code, "warning", text, numbers)

    variance = posterior.get("energy_variance")
    number = posterior.get("divergences")
    if _is_too_long(results, posterior):
        size = results["config"]["sampler"]["step_size"]
        # The variance grows with the sixth power of the step size.
        known = max(_SHORT_ENOUGH, np.nan_to_num(variance or 0, posinf=0))
        lower = size * min(0.5, (_SHORT_ENOUGH / known) ** (1 / 6))
        text = (
            "The step size is too long, and num_warmup=0 tunes none: lower "
            f"config.sampler.step_size={size:g} to {lower:.2g} in a new workdir."
        )
        yield warning("step_too_long", text, step_size=size, suggested=lower)
    elif number:
        remedy = _own(results, DIVERGENT) or "Raise config.sampler.target_accept to 0.95."
        if variance is not None:  # Every step is accepted, whatever acceptance is asked for.
            remedy = "Compare with method='adjusted_mclmc'."
        text = f"{plural(number, 'draw')} diverged where the posterior is narrow. {remedy}"
        yield warning("divergences", text, divergences=number)
    sizes = zip(results["active_members"], posterior.get("step_size") or (), strict=False)
    lost = [str(k) for k, size in sizes if not 0 < (size or 0) < np.inf]
    if lost and posterior.get("num_warmup"):
        text = (
            f"The warm-up found no step size for chains {', '.join(lost)}, which do not move. "
            "Raise config.sampler.num_warmup in a new workdir."
        )
        yield warning("step_not_found", text, chains=len(lost))
    rates = np.asarray(results.get("ladder", {}).get("swap_rates", 1.0))
    if rates.min() < _RARE_SWAPS and posterior["num_samples"] >= _MIN_SWAPPED:
        chain, place = np.unravel_index(np.argmin(rates), rates.shape)
        text = (
            f"Replicas {place} and {place + 1} of chain {chain} swapped in {rates.min():.1%} of "
            "attempts: raise config.parallel_tempering.num_replicas."
        )
        yield warning("swaps", text, swap_rate=float(rates.min()))


def _worth(posterior: Results, ladder: Results) -> Iterator[Finding]:
    """What a posterior is worth: predictions, bias, temperature and evidence."""
    predictive = posterior.get("predictive") or {}
    error = ladder.get("log_evidence_error")
    ends = predictive.get("nll_interval")
    temperature = posterior.get("temperature", 1)
    of_nll = f", and the Monte Carlo error of their NLL {np.ptp(ends) / 2:.4f}" if ends else ""
    within = "" if error is None else f" +- {error:.2f}"
    for code, value, text in (
        (
            "predictions_of_chains",
            predictive.get("rhat_max"),
            f"Predictions of single examples have an R-hat of up to {{:.3f}}{of_nll}.",
        ),
        (
            "unadjusted",
            posterior.get("sd_bias"),
            "The sampler is unadjusted: standard deviations are off by about {:.1%}.",
        ),
        (
            "temperature",
            None if temperature == 1 else temperature,
            "The likelihood has temperature {:g}: this is not the Bayes posterior.",
        ),
        ("evidence", ladder.get("log_evidence"), f"The log evidence is {{:.2f}}{within} nats."),
    ):
        if value is not None and np.isfinite(value):
            yield Finding(code, "info", text.format(value), {"value": value})
