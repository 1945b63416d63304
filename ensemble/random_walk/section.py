"""What a report says of random walks."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy

from ensemble.errors import plural
from ensemble.random_walk.method import MAX_RHAT
from ensemble.report.sections import Section, grid


def _contents(report: Mapping[str, Any]) -> list[str]:
    """The moments of the density with their intervals, a dimension per line, and their worth."""
    posterior = report["posterior"]
    rhat = np.maximum(posterior["rhat_max"], posterior["nested_rhat_max"])
    # An error that few groups of chains tell is itself uncertain.
    width = (
        scipy.stats.t.ppf(0.975, posterior["num_superchains"] - 1) if rhat < MAX_RHAT else np.nan
    )
    rows = []
    for d, ess in enumerate(posterior["ess"]):
        row = [str(d)]
        for name in ("mean", "variance"):
            value, margin = posterior[name][d], width * posterior[f"mcse_{name}"][d]
            ends = f"[{value - margin:.6g}, {value + margin:.6g}]"
            row += [f"{value:.6g}", ends.replace("[nan, nan]", "not known")]
        rows.append([*row, f"{ess:.6g}"])
    worth = "too few chains or samples to say what they are worth"
    if np.isfinite(posterior["ess_min"] + rhat):
        worth = f"worth {posterior['ess_min']:,.0f}: R-hat up to {rhat:.4f}"
    text = (
        f"{plural(posterior['num_total_samples'], 'sample')} of "
        f"{plural(posterior['num_chains'], 'chain')}, {worth}, {posterior['accept']:.0%} accepted."
    )
    if posterior["num_invalid"]:
        text += f" {posterior['num_invalid']:,} proposals without a log density were rejected."
    if posterior["num_stuck"]:
        text += f" {posterior['num_stuck']:,} chains never came to where the density is."
    table = grid(["dimension", "mean", "95%", "variance", "95%", "ESS"], rows)
    return [table, "", text]


SECTION = Section("num_total_samples", _contents, stands_alone=True)
