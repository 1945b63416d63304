"""Predictions as a table, for a terminal and for a notebook's cell.

Texts may be a stranger's, such as names of classes: none of them steers a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ensemble.errors import plural, shown
from ensemble.likelihoods.predictive import Predictive

Columns = Mapping[str, Sequence[Any]]
"""Texts, numbers or truth values [N] by the titles of columns."""
_ROWS = 10
_MOST_CLASSES = 4
_LONGEST = 80
_LEVELS = ("quantile_0.05", "quantile_0.95")


def short(p: Any) -> dict[str, Any]:
    """The columns [N] that a table shows: of many classes the largest probability alone, and of a
    distribution's quantiles the ends of its 90% interval."""
    flat = p.flat_columns()
    hidden = {"label"} if "class" in flat else set()
    if any(name.endswith("mean") for name in flat):
        hidden = {name for name in flat if "quantile_" in name and not name.endswith(_LEVELS)}
    probs = [name for name in flat if name.startswith("prob_")]
    if len(probs) > _MOST_CLASSES:
        hidden |= {*probs}
        flat = {"class": flat["class"], "prob": p.confidence, **flat}
    return {name: one for name, one in flat.items() if name not in hidden}


def as_text(columns: Columns) -> str:
    """An aligned table."""
    import pandas as pd  # Slow: of tables alone.

    def cell(one: Any) -> Any:
        return shown(one) if isinstance(one, str) else one

    frame = pd.DataFrame(columns).map(cell).rename(columns=cell)
    text = frame.to_string(index=False, max_colwidth=_LONGEST, float_format="{:.4g}".format)
    titles, *rows = text.splitlines()
    return "\n".join([titles, "-" * len(titles), *rows])


def preview(p: Predictive) -> str:
    """The first rows of predictions, for a program or a notebook."""
    lines = [f"{plural(len(p), 'prediction')} of {plural(p.num_members, 'member')}"]
    lines.append(as_text(short(p.rows(slice(_ROWS)))))
    if len(p) > _ROWS:
        lines.append(f"and {len(p) - _ROWS:,} more")
    return "\n".join(lines)
