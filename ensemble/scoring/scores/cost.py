"""What decisions cost that are made by predicted classes."""

import csv
import io
from collections.abc import Sequence

import numpy as np
from etils import epath

from ensemble.errors import UserError, shown
from ensemble.scoring.combine import Mean
from ensemble.scoring.score import score
from ensemble.scoring.view import ClassView

_MOST_BYTES = 1 << 26

Costs = Sequence[Sequence[float]]
"""[C, D], of decision d where the class is c."""


def read_costs(path: str, class_names: Sequence[str]) -> Costs:
    """Reads a matrix of costs from a CSV file.

    Args:
        path: of the file: a row for each class, a column for each decision. A first line that holds
            the names of the classes, in any order, says which row is whose.
        class_names: of the run.

    Raises:
        UserError: there is no such file, or no such matrix in it.
    """
    where = f"--scores=cost:{shown(path)}"
    try:
        file = epath.Path(path).expanduser()
        if file.stat().length > _MOST_BYTES:
            raise UserError(f"{where}: it is too large for a matrix of costs")
        text = file.read_text().removeprefix("\ufeff")  # As spreadsheets begin their files.
        rows = [row for row in csv.reader(io.StringIO(text)) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{where}: it cannot be read ({error}); give a CSV file") from None
    number, order = len(class_names), np.arange(len(class_names))
    header = [one.strip() for one in rows[0]] if rows else []
    # Numbers in the first of as many lines as classes are costs, even if classes are so named.
    if len(rows) > number and sorted(header) == sorted(class_names):
        order, rows = np.array([header.index(name) for name in class_names]), rows[1:]
    try:
        costs = np.array([[float(one) for one in row] for row in rows], np.float64)
    except ValueError as error:  # No number, or rows of unlike lengths.
        line = f"{where}: costs must be numbers, in rows of one length: {error}"
        if len(rows) > number:
            names = ", ".join(map(shown, class_names[:6]))
            line += f"; a first line of names must have those of the classes: {names}"
        raise UserError(line) from None
    if costs.ndim != 2 or costs.shape[0] != number or not costs.shape[1]:
        raise UserError(
            f"{where}: it has the shape {costs.shape}; give a row for each of the {number} classes "
            f"({', '.join(map(shown, class_names[:3]))}, ...), and a column for each decision"
        )
    if not np.isfinite(costs).all() or np.ptp(costs) == 0:
        raise UserError(f"{where}: costs must be finite, and not all the same")
    of_classes = costs[order]
    if len(order) == costs.shape[1]:  # Decisions are classes, too, and named by the same line.
        of_classes = of_classes[:, order]
    found: Costs = of_classes.tolist()
    return found


@score(
    of=ClassView,
    title="mean cost",
    combine=lambda costs: Mean(float(np.min(costs)), float(np.max(costs)), over_groups="signed"),
    settings=read_costs,
    takes="FILE",
)
def cost(view, costs):
    """The cost of the decision that is the cheapest in expectation (Elkan 2001, section 1)."""
    costs = np.asarray(costs)
    decisions = (np.exp(view.log_probs) @ costs).argmin(axis=1)
    return costs[view.labels, decisions]
