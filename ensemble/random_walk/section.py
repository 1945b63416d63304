"""What a report says of random walks."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ensemble.errors import plural
from ensemble.report.sections import Section, grid

_INTERVALS = (
    "The 95% intervals are over chains, drawn anew from their starts. None is told of a single "
    "start, or while chains have not left their starts."
)


def _contents(report: Mapping[str, Any]) -> list[str]:
    """The moments of the density with their intervals, a dimension per line, and their worth."""
    posterior = report["posterior"]
    rows = []
    for d, ess in enumerate(posterior["ess"]):
        row = [str(d)]
        for name in ("mean", "variance"):
            ends = posterior[f"{name}_interval"][d]
            told = "[{:.6g}, {:.6g}]".format(*ends) if ends else "not known"
            row += [f"{posterior[name][d]:.6g}", told]
        rows.append([*row, f"{ess:.6g}"])
    worth = "too few chains or samples to say what they are worth"
    if np.isfinite(posterior["ess_min"] + posterior["rhat_max"]):
        worth = f"worth {posterior['ess_min']:,.0f}: R-hat up to {posterior['rhat_max']:.4f}"
    text = (
        f"{plural(posterior['num_total_samples'], 'sample')} of "
        f"{plural(posterior['num_chains'], 'chain')}, {worth}, {posterior['accept']:.0%} accepted."
    )
    if posterior["num_invalid"]:
        text += f" {posterior['num_invalid']:,} proposals without a log density were rejected."
    table = grid(["dimension", "mean", "95%", "variance", "95%", "ESS"], rows)
    return [table, "", _INTERVALS, "", text]


SECTION = Section("num_total_samples", _contents, stands_alone=True)
