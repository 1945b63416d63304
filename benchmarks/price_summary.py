"""What price.py makes of its rows: by how much the posterior's NLL is below those of the others.

The interval over splits has new chains, new members and other rows in every split. Their training
rows overlap, so the variance over splits is multiplied by 1 / S + test rows / training rows (Nadeau
and Bengio 2003, "Inference for the generalization error"), and t has S - 1 degrees of freedom.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.stats

OTHERS = ("start", "equal_seconds", "best_network")

Row = Mapping[str, Any]


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """By table: splits, largest R-hat, mean NLLs, and the differences with their intervals."""
    tables: dict[str, list[Row]] = {}
    for row in rows:
        if row["stage"] == "evaluation":
            tables.setdefault(row["table"], []).append(row)
    return {table: _summarise_table(group) for table, group in tables.items()}


def _summarise_table(group: Sequence[Row]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "splits": sorted(row["split"] for row in group),
        "rhat_max": [row["rhat_max"] for row in group],
        "nll": {"posterior": float(np.mean([row["scores"]["nll"] for row in group]))},
        "rmse": {"posterior": float(np.mean([row["scores"]["rmse"] for row in group]))},
        "difference": {},
    }
    share = float(np.mean([row["sizes"]["test_inputs"] for row in group]))
    share /= float(np.mean([row["sizes"]["train_inputs"] for row in group]))
    for name in OTHERS:
        for score in ("nll", "rmse"):
            values = [row["against"][name][score] for row in group]
            found[score][name] = float(np.mean(values))
        differences = [row["scores"]["nll"] - row["against"][name]["nll"] for row in group]
        found["difference"][name] = {
            "mean": float(np.mean(differences)),
            "interval": over_splits(differences, share),
        }
    best = min(OTHERS, key=lambda name: found["nll"][name])
    interval = found["difference"][best]["interval"]
    found["best_other"] = best
    found["is_below_best"] = interval is not None and interval[1] < 0
    return found


def over_splits(differences: Sequence[float], share: float) -> tuple[float, float] | None:
    """95% interval of a mean over splits; None of a single one.

    Args:
        differences: [S].
        share: test rows over training rows.
    """
    number = len(differences)
    if number < 2:
        return None
    error = float(np.std(differences, ddof=1)) * math.sqrt(1 / number + share)
    half_width = float(scipy.stats.t.ppf(0.975, number - 1)) * error
    mean = float(np.mean(differences))
    return mean - half_width, mean + half_width


def format_all(rows: Sequence[Row]) -> str:
    """The summary as Markdown."""
    lines = [
        "| table | splits | R-hat up to | NLL: posterior | its start | equal seconds "
        "| best network | posterior less the best of the three |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for table, one in summarise(rows).items():
        difference = one["difference"][one["best_other"]]
        text = f"{difference['mean']:+.3f}"
        if difference["interval"] is not None:
            low, high = difference["interval"]
            text += f" [{low:+.3f}, {high:+.3f}]"
        nll = [f"{one['nll'][name]:.3f}" for name in ("posterior", *OTHERS)]
        cells = [table, str(len(one["splits"])), f"{max(one['rhat_max']):.2f}", *nll, text]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
