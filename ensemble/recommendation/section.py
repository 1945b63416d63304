"""Section of a report on a factorisation."""

from collections.abc import Mapping
from typing import Any

from ensemble.report.sections import Section, grid

_TITLES = {"log_likelihood": "nats", "auc": "AUC", "recall_at_20": "recall@20", "rmse": "RMSE"}


def _contents(report: Mapping[str, Any]) -> list[str]:
    """Shows the draws that were kept next to simpler models, by the pairs that were held out."""
    found = report["recommendation"]["held_out"]
    rows = [[model, *(f"{one:.4f}" for one in found[model].values())] for model in found]
    return ["", grid(["held out", *(_TITLES[name] for name in found["posterior"])], rows)]


SECTION = Section("recommendation", _contents)
