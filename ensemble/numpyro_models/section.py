"""What a report says of a model that was sampled."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ensemble.applications import DIVERGENT, MODES, SLOW, ReportSection
from ensemble.pictures.plot_style import plural
from ensemble.report.text import Table

_MAX_SITES = 40


def _contents(report: Mapping[str, Any]) -> list[Table | str]:
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
    width = max(len("variable"), *(len(site) for site, _ in shown)) + 1
    others = max(9, *(len(cell) for row in rows for cell in row[1:])) + 1
    found: list[Table | str] = [Table(["variable", *titles.values()], rows, width, others)]
    if report["num_values"] > len(shown):
        found.append(
            f"These are {len(shown)} of {report['num_values']:,} values; report.json has "
            f"{len(report['sites']):,}, posterior.nc has all."
        )
    for site, one in report["information_criteria"].items():
        found.append(
            f"LOO of {site}: {one['elpd_loo']:.1f} nats +- {one['se_loo']:.1f}, with "
            f"{one['p_loo']:.1f} effective parameters. WAIC: {one['elpd_waic']:.1f}."
        )
    return found


def _findings(report: Mapping[str, Any]) -> list[str]:
    """An R-hat that cannot be had, observations of which LOO says nothing."""
    posterior, found = report["posterior"], []
    if posterior["rhat_max"] is None or not np.isfinite(posterior["rhat_max"]):
        found.append(
            f"R-hat of {posterior['rhat_worst']} is no finite number: its draws are too few, not "
            "finite, or each chain stays at a value of its own. Whether the chains agree cannot be "
            "said."
        )
    for site, one in report["information_criteria"].items():
        if one["num_bad_k"]:
            found.append(
                f"LOO of {site} is unreliable: the Pareto k is above {one['good_k']:.2g} for "
                f"{plural(one['num_bad_k'], 'observation')}."
            )
    return found


def _remedy(report: Mapping[str, Any], fault: str) -> str:
    """What helps a model where a network needs something else."""
    if fault == MODES:
        return (
            "set config.method='tempering', which moves between modes, or, if they are mirror "
            "images, order the parameters in the model"
        )
    if fault == DIVERGENT:
        return ", or write the model without centring"
    assert fault == SLOW
    mass = report.get("config", {}).get("sampler", {}).get("mass")
    # A ladder has a diagonal mass.
    is_one = len(report["sites"]) == 1
    may_help = not (mass in ("low_rank", "dense") or is_one or "ladder" in report)
    return ("with hmc and nuts set config.sampler.mass='low_rank', " if may_help else "") + (
        "or write the model in another form: groups of few rows without centring, of many rows "
        "with it (numpyro.infer.reparam.LocScaleReparam)"
    )


SECTION = ReportSection("sites", _contents, stands_alone=True, findings=_findings, remedy=_remedy)
