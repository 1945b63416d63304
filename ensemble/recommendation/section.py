"""What a report says of a factorisation."""

from collections.abc import Mapping
from typing import Any

from ensemble.applications import ReportSection
from ensemble.pictures import plot_style
from ensemble.report.text import Table


def _contents(report: Mapping[str, Any]) -> list[Table | str]:
    """The posterior beside simpler models, by the pairs that were held out."""
    recommendation = report["recommendation"]
    held_out = recommendation["held_out"]
    titles = {"log_likelihood": "nats a rating", "rmse": "RMSE"}
    if "auc" in held_out["posterior"]:  # Of watches, which are no numbers.
        titles = {"log_likelihood": "nats a pair", "auc": "AUC", "recall_at_20": "recall@20"}
        if "rmse" in held_out["posterior"]:
            titles["rmse"] = "RMSE of p"
    rows = [
        [model, *(f"{scores[name]:.4f}" for name in titles)] for model, scores in held_out.items()
    ]
    draws = plot_style.plural(recommendation["num_draws"], "draw")
    return [
        "",
        Table(["held out", *titles.values()], rows, 12),
        f"Here the posterior is the {draws} that were kept.",
    ]


def _figures(report: Mapping[str, Any]) -> dict[str, Any]:
    """What draws recommend first to the users who have watched most and fewest items."""
    from ensemble.recommendation.plots import first_choice_figures  # Seldom drawn.

    return first_choice_figures(report["recommendation"]["first_choices"])


SECTION = ReportSection("recommendation", _contents, figures=_figures)
