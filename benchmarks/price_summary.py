"""What price.py makes of its rows: by how much the posterior's NLL is below those of the others.

Of one split the interval is that of the evaluation, over chains, members and test examples. That
over several splits is over their differences: each has other rows, and the seed is the same. Their
training rows overlap, so the variance over splits is multiplied by 1 / S + test rows / training
rows (Nadeau and Bengio 2003, "Inference for the generalization error"), and t has S - 1 degrees of
freedom.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.stats
from side_by_side import as_table

OTHERS = ("start", "equal_seconds", "best_network")

Row = Mapping[str, Any]


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """By problem: splits, R-hat, mean scores, and differences of the NLL with their intervals."""
    problems: dict[str, list[Row]] = {}
    for row in rows:
        if row["stage"] == "evaluation":
            problems.setdefault(row["problem"], []).append(row)
    return {problem: _summarise(group) for problem, group in problems.items()}


def _summarise(group: Sequence[Row]) -> dict[str, Any]:
    score = "rmse" if "rmse" in group[0]["scores"] else "accuracy"
    share = float(np.mean([row["sizes"]["test_inputs"] for row in group]))
    share /= float(np.mean([row["sizes"]["train_inputs"] for row in group]))
    found: dict[str, Any] = {
        "splits": [row["split"] for row in group],
        "rhat_max": [row["rhat_max"] for row in group],
        "share_of_seconds": {
            other: [row["share_of_seconds"][other] for row in group] for other in OTHERS
        },
        "difference": {},
    }
    for name in ("nll", score):
        found[name] = {"posterior": float(np.mean([row["scores"][name] for row in group]))}
        for other in OTHERS:
            values = [row["against"][other]["ensemble"][name] for row in group]
            found[name][other] = float(np.mean(values))
    for other in OTHERS:
        differences = [-row["against"][other]["difference"]["nll"] for row in group]
        if len(group) > 1:
            interval = over_splits(differences, share)
        else:  # Over chains, members and test examples, as the evaluation says.
            against = group[0]["against"][other]
            by = "recipe_by_nll" if "recipe_by_nll" in against else "recipe"  # Of classes.
            low, high = against[by]["interval"]
            interval = (-high, -low)
        found["difference"][other] = {"mean": float(np.mean(differences)), "interval": interval}
    best = min(OTHERS, key=lambda other: found["nll"][other])
    interval = found["difference"][best]["interval"]
    return {**found, "best_other": best, "is_below_best": interval[1] < 0}


def over_splits(differences: Sequence[float], share: float) -> tuple[float, float]:
    """95% interval of a mean over splits.

    Args:
        differences: [S], of at least two splits.
        share: test rows over training rows.
    """
    number = len(differences)
    error = float(np.std(differences, ddof=1)) * math.sqrt(1 / number + share)
    half_width = float(scipy.stats.t.ppf(0.975, number - 1)) * error
    mean = float(np.mean(differences))
    return mean - half_width, mean + half_width


def format_all(rows: Sequence[Row]) -> str:
    """The summary as Markdown."""
    head = (
        "| data | splits | R-hat of predictions up to | NLL: posterior | its start "
        "| same network, at most 100 | best network | posterior less the best of the three "
        "| seconds of the last two |"
    )
    lines = []
    for problem, one in summarise(rows).items():
        difference = one["difference"][one["best_other"]]
        low, high = difference["interval"]
        nll = [f"{one['nll'][name]:.3f}" for name in ("posterior", *OTHERS)]
        shares = [np.mean(one["share_of_seconds"][name]) for name in OTHERS[1:]]
        cells = [problem, len(one["splits"]), f"{max(one['rhat_max']):.2f}", *nll]
        cells.append(f"{difference['mean']:+.3f} [{low:+.3f}, {high:+.3f}]")
        lines.append([*cells, ", ".join(f"{share:.0%}" for share in shares)])
    return as_table(head, lines)
