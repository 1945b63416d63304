"""What a report says of a factorisation."""

from collections.abc import Mapping
from typing import Any

from ensemble.errors import plural
from ensemble.report import charts
from ensemble.report.sections import Section, grid


def _contents(report: Mapping[str, Any]) -> list[str]:
    """The posterior beside simpler models, by the pairs that were held out."""
    recommendation = report["recommendation"]
    held_out = recommendation["held_out"]
    names = {"log_likelihood": "nats", "auc": "AUC", "recall_at_20": "recall@20", "rmse": "RMSE"}
    titles = {name: names[name] for name in held_out["posterior"]}
    rows = [
        [model, *(f"{scores[name]:.4f}" for name in titles)] for model, scores in held_out.items()
    ]
    draws = plural(recommendation["num_draws"], "draw")
    return [
        "",
        grid(["held out", *titles.values()], rows),
        f"Here the posterior is the {draws} that were kept.",
    ]


def _figures(report: Mapping[str, Any]) -> dict[str, Any]:
    """What draws recommend first to the users who have watched most and fewest items."""
    recommendation = report["recommendation"]
    noun = "watches" if "auc" in recommendation["held_out"]["map"] else "ratings"
    return {
        f"recommended_{kind}": [
            charts.counts(f"{kind} for user {user['user']}, with {which} {noun}", user[kind])
            for which, user in recommendation["first_choices"].items()
        ]
        for kind in ("titles", "genres")
    }


SECTION = Section("recommendation", _contents, figures=_figures)
