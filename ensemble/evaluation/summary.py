"""An evaluation in a few lines, for a terminal, a notebook and the top of its page."""

from collections.abc import Mapping
from typing import Any

from ensemble.evaluation.several_evaluator import MAX_SHOWN
from ensemble.evaluation.words import SILENT


def lines_of(evaluation: Mapping[str, Any]) -> list[str]:
    """What is found, what intervals are over, and notes of the run.

    Args:
        evaluation: the content of evaluation.json.
    """
    lines = []
    for one in evaluation["findings"]:
        part, _, rest = one["about"].partition("/")
        number = rest.partition("/")[0] if part == "targets" else ""
        if one["code"] in SILENT or (number and int(number) >= MAX_SHOWN):
            continue
        lines.append(f"Target {number}: {one['text']}" if number else one["text"])
    over = evaluation["test"]["interval_over"]
    notes = [f"Note: {line}" for line in evaluation.get("notes", ())]
    return [*lines, f"Intervals are 95% unless stated otherwise, over {over}.", *notes]


def texts_of(evaluation: Mapping[str, Any], *questions: str) -> str:
    """The answers to some questions, as far as they are told unasked."""
    told = [
        str(one["text"])
        for question in questions
        for one in evaluation["findings"]
        if one["code"].partition(".")[0] == question and one["code"] not in SILENT
    ]
    return " ".join(told)


def text_of(evaluation: Mapping[str, Any], question: str) -> str:
    """The words of the answer to a question; empty where it was not asked."""
    found = (one for one in evaluation["findings"] if one["code"].partition(".")[0] == question)
    return next((str(one["text"]) for one in found), "")
