"""What a posterior starts from, which stands beside it in every evaluation."""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ensemble.errors import UserError
from ensemble.evaluation.subject import Subject
from ensemble.methods.common_keys import NAMED, PRIOR, is_file


class Beside(NamedTuple):
    """What is laid beside a run.

    Attributes:
        comparisons: as `Evaluator.compare` returns them; that with the start says `is_start`.
        notes: why the start is not among them, where it is not.
    """

    comparisons: list[dict[str, Any]]
    notes: list[str]


def lay_beside(
    subject: Subject, workdirs: Sequence[str], compare: Callable[[str], dict[str, Any]]
) -> Beside:
    """Compares a run with others, and a posterior first of all with what its chains start from.

    Args:
        subject: of the evaluation.
        workdirs: that were asked for.
        compare: with a workdir.

    Raises:
        UserError: one that was asked for cannot be compared.
    """
    start = str(subject.config.get("init_from", PRIOR))
    is_posterior = "num_chains" in subject.config and "selection" not in subject.report
    if not is_posterior or start in NAMED or is_file(start):
        return Beside([compare(one) for one in workdirs], [])
    asked = [one for one in workdirs if os.path.abspath(one) != os.path.abspath(start)]
    comparisons, notes = [], []
    try:
        comparisons.append({**compare(start), "is_start": True})
    except UserError as error:
        if len(asked) < len(workdirs):
            raise
        notes.append(f"What it starts from is not beside it: {error}")
    return Beside([*comparisons, *map(compare, asked)], notes)
