"""Part of a report on a model that was sampled."""

from collections.abc import Mapping
from typing import Any

from ensemble.errors import plural
from ensemble.report.findings import Finding
from ensemble.report.sections import DIVERGENT, MODES, Section, grid

_MAX_SITES = 40
_COLUMNS = {
    "mean": ("mean", ".5g"), "mcse": ("+-", ".2g"), "sd": ("sd", ".5g"), "q05": ("5%", ".5g"),
    "q95": ("95%", ".5g"), "rhat": ("R-hat", ".3f"), "ess_bulk": ("bulk ESS", ".0f"),
    "ess_tail": ("tail ESS", ".0f"),
}  # fmt: skip


def _contents(report: Mapping[str, Any]) -> list[str]:
    """Returns the table of a model's variables, and the LOO of its observations."""
    sites = report["sites"]
    rows = [
        [site, *(f"{row[n]:{form}}".replace("nan", "") for n, (_, form) in _COLUMNS.items())]
        for site, row in [*sites.items()][:_MAX_SITES]
    ]
    lines = [grid(["variable", *(title for title, _ in _COLUMNS.values())], rows)]
    if report["num_values"] > len(rows):
        lines.append(
            f"These are {len(rows)} of {report['num_values']:,} values; results.json has "
            f"{len(sites):,}, posterior.nc has all."
        )
    for site, one in report["loo"].items():
        lines.append(
            f"LOO of {site}: {one['elpd_loo']:.1f} nats +- {one['se_loo']:.1f}, with "
            f"{one['p_loo']:.1f} effective parameters."
        )
    return lines


def _findings(results: Mapping[str, Any]) -> list[Finding]:
    """Returns observations that LOO cannot judge."""
    return [
        Finding(
            "loo",
            "warning",
            f"LOO of {site} is unreliable: Pareto k exceeds {one['good_k']:.2g} for "
            f"{plural(one['num_bad_k'], 'observation')}.",
            {"num_bad_k": one["num_bad_k"]},
        )
        for site, one in results["loo"].items()
        if one["num_bad_k"]
    ]


def _remedy(results: Mapping[str, Any], fault: str) -> str:
    """Returns what helps a model where a network needs something else."""
    if fault == MODES:
        return (
            "Set config.method='parallel_tempering', or order parameters of mirror images in the "
            "model."
        )
    if fault == DIVERGENT:
        return "Raise config.sampler.target_accept to 0.95, or write the model without centring."
    mass = results.get("config", {}).get("sampler", {}).get("mass_matrix")
    remedy = "set config.sampler.mass_matrix='low_rank', or reparametrise"
    # A ladder has a diagonal mass.
    if mass in ("low_rank", "dense") or len(results["sites"]) == 1 or "ladder" in results:
        remedy = "write the model with another centring of its groups"
    return f"The worst is {results['posterior']['rhat_worst']}: {remedy}."


SECTION = Section("sites", _contents, stands_alone=True, findings=_findings, remedy=_remedy)
