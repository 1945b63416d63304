"""`report.html` of an evaluation of several targets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ensemble.evaluation.page import drawable_records, fill
from ensemble.pictures import curves

if TYPE_CHECKING:
    from ensemble.evaluation.subject import Subject

_OWN = re.compile(r"""(\bid="|\bhref="#|url\(#)""")


def render(
    evaluation: Mapping[str, Any],
    subject: Subject,
    parts: Sequence[str],
    tables: Sequence[tuple[list[str], list[list[str]]]],
) -> str:
    """Returns the page as HTML.

    Args:
        evaluation: the content of evaluation.json.
        subject: of the evaluation.
        parts: HTML of each target.
        tables: titles and rows of the scores of each target, as `Evaluator.table` has them.
    """
    figures = {}
    if records := drawable_records(subject):
        figures["training"] = curves.training_curves(records, subject.likelihood.curves())
    return fill(
        "several.html",
        evaluation,
        figures,
        {"training": "How the members learned."},
        {},
        parts=[_OWN.sub(rf"\g<1>target-{d}-", part) for d, part in enumerate(parts)],
        scores=[[[one[0], one[1], one[2]] for one in rows] for _, rows in tables],
    )
