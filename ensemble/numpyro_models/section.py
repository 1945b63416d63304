"""What a report says of a model that was sampled."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ensemble.errors import plural
from ensemble.report.findings import Finding
from ensemble.report.sections import DIVERGENT, MODES, SLOW, Section, grid

_MAX_SITES = 40


def _contents(report: Mapping[str, Any]) -> list[str]:
    """The variables of a model, a line each, and what LOO says of its observations."""
    titles = {
        "mean": "mean", "mcse": "+-", "sd": "sd", "q05": "5%", "q95": "95%", "rhat": "R-hat",
        "ess_bulk": "bulk ESS", "ess_tail": "tail ESS",
    }  # fmt: skip
    digits = {"rhat": ".3f", "ess_bulk": ".0f", "ess_tail": ".0f", "mcse": ".2g"}

    def cell(name: str, value: float) -> str:
        return "" if np.isnan(value) else f"{value:{digits.get(name, '.5g')}}"

    shown = list(report["sites"].items())[:_MAX_SITES]
    rows = [[site, *(cell(name, row[name]) for name in titles)] for site, row in shown]
    found: list[str] = [grid(["variable", *titles.values()], rows)]
    if report["num_values"] > len(shown):
        found.append(
            f"These are {len(shown)} of {report['num_values']:,} values; results.json has "
            f"{len(report['sites']):,}, posterior.nc has all."
        )
    for site, one in report["loo"].items():
        found.append(
            f"LOO of {site}: {one['elpd_loo']:.1f} nats +- {one['se_loo']:.1f}, with "
            f"{one['p_loo']:.1f} effective parameters."
        )
    return found


def _findings(results: Mapping[str, Any]) -> list[Finding]:
    """Latents that the data do not determine, and observations that LOO cannot judge."""
    found = []
    for site, one in results["loo"].items():
        if number := one["num_bad_k"]:
            text = (
                f"LOO of {site} is unreliable: Pareto k exceeds {one['good_k']:.2g} for "
                f"{plural(number, 'observation')}."
            )
            found.append(Finding("loo", "warning", text, {"num_bad_k": number}))
    return found


def _remedy(results: Mapping[str, Any], fault: str) -> str:
    """What helps a model where a network needs something else."""
    if fault == MODES:
        return (
            "Set config.method='parallel_tempering', or order parameters of mirror images in the "
            "model."
        )
    if fault == DIVERGENT:
        return "Raise config.sampler.target_accept to 0.95, or write the model without centring."
    assert fault == SLOW
    sites, worst = results["sites"], results["posterior"]["rhat_worst"]
    mass = results.get("config", {}).get("sampler", {}).get("mass_matrix")
    # A ladder has a diagonal mass.
    if mass in ("low_rank", "dense") or len(sites) == 1 or "ladder" in results:
        return f"The worst is {worst}: write the model with another centring of its groups."
    return f"The worst is {worst}: set config.sampler.mass_matrix='low_rank', or reparametrise."


SECTION = Section("sites", _contents, stands_alone=True, findings=_findings, remedy=_remedy)
