"""The lines of a run's `metrics.jsonl`, of which a kill or a full disk may have spoiled some."""

import json
import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any

from etils import epath

logger = logging.getLogger("ensemble")

_LARGEST = 1e30
"""Near the largest number that Matplotlib can draw."""


def read_metrics(path: epath.Path) -> list[dict[str, Any]]:
    """Reads the records of a `metrics.jsonl`, without damaged ones; none if there is no file.

    Returns:
        Records with a step; null and numbers that no curve can have are NaN.
    """
    records = []
    num_bad = 0
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        try:
            record = _drawable(json.loads(line), math.nan)
            records.append({**record, "step": int(record["step"])})
        except (ValueError, RecursionError, AttributeError, LookupError, TypeError):
            num_bad += line.endswith(b"\n")  # Else it is being written.
    if num_bad:
        logger.warning("%s is damaged: some of what was measured before is lost.", path)
    return records


def as_lines(records: Iterable[Mapping[str, Any]]) -> str:
    """Records as the lines of a `metrics.jsonl`, with null for what `read_metrics` makes NaN."""
    return "".join(f"{json.dumps(_drawable(one, None))}\n" for one in records)


def _drawable(record: Mapping[str, Any], instead: float | None) -> dict[str, Any]:
    """A record with another value for null and numbers that no curve can have."""
    return {
        name: instead
        if value is None or (isinstance(value, int | float) and not abs(value) < _LARGEST)
        else value
        for name, value in record.items()
    }
