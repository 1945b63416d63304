"""The lines of a run's `metrics.jsonl`, read as if a stranger had written them."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from etils import epath

_MAX_DRAWN = 1e30


def parse_record(line: bytes) -> dict[str, Any] | None:
    """A line of the file as a dict; None where it is damaged."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _drawable(value: Any) -> Any:
    """NaN for what no curve can have: null, and numbers near the end of Matplotlib's."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return math.nan if value is None or (is_number and abs(value) > _MAX_DRAWN) else value


def _is_whole(record: Mapping[str, Any]) -> bool:
    """Whether a line has its step, and numbers, or null, where curves have them."""
    numbers = [value for key, value in record.items() if "/" in key or key in ("step", "epoch")]
    return "step" in record and all(isinstance(value, int | float | None) for value in numbers)


def read_metrics(path: epath.Path) -> list[dict[str, Any]]:
    """Returns the records of a `metrics.jsonl`; what cannot be drawn comes back as NaN."""
    records = [parse_record(line) for line in path.read_bytes().splitlines()]
    return [
        {key: _drawable(value) for key, value in record.items()}
        for record in records
        if record is not None and _is_whole(record)
    ]


def last_losses(path: epath.Path) -> dict[int, float]:
    """The last training loss of each member that has one, nats, of a `metrics.jsonl`."""
    losses: dict[int, float] = {}
    for record in map(parse_record, path.read_bytes().splitlines() if path.exists() else ()):
        for name, value in (record or {}).items():
            found = re.fullmatch("train/member_([0-9]+)/loss", name)
            if found and isinstance(value, int | float):
                losses[int(found[1])] = float(value)
    return losses
