"""The lines of a run's `metrics.jsonl`, of which a kill or a full disk may have spoiled some."""

import contextlib
import json
import math
from collections.abc import Iterable

from etils import epath

from ensemble.storage.manifest import Json

_LARGEST = 1e30
"""Near the largest number that Matplotlib can draw."""


def read_metrics(path: epath.Path) -> list[Json]:
    """Reads the records of a `metrics.jsonl`, without damaged ones; none if there is no file.

    Returns:
        Records with a step; null and numbers that no curve can have are NaN.
    """
    records = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with contextlib.suppress(Exception):  # A kill or a full disk may have spoiled a line.
            record = _drawable(json.loads(line), math.nan)
            records.append({**record, "step": int(record["step"])})
    return records


def as_lines(records: Iterable[Json]) -> str:
    """Records as the lines of a `metrics.jsonl`, with null for what `read_metrics` makes NaN."""
    return "".join(f"{json.dumps(_drawable(one, None))}\n" for one in records)


def _drawable(record: Json, instead: float | None) -> Json:
    """A record with another value for null and numbers that no curve can have."""
    return {
        name: instead
        if value is None or (isinstance(value, int | float) and not abs(value) < _LARGEST)
        else value
        for name, value in record.items()
    }
