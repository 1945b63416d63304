"""What the target of an example is: a class, one or several numbers, a number with annotations.

Most targets are arrays [N], of several numbers [N, D]. Where more is known of a number, targets are
a structured array [N] with the columns `VALUE` and `CENSORED` or `ERROR` or both. It is taken apart
by its first axis as any other, so that only who makes rows and who interprets them look inside:
own arrays, the files of predictions, and likelihoods. On the devices it is a dict of its columns.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

VALUE = "targets"
"""The number, float32."""
CENSORED = "censored"
"""Bool: of the target is known only that it is at least the value."""
ERROR = "target_errors"
"""The standard deviation of the value's measurement error, float32, in the target's units."""
ANNOTATIONS = (CENSORED, ERROR)


def joined(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Rows of columns [N] by name; where there is only `VALUE`, that array itself."""
    if columns.keys() == {VALUE}:
        return columns[VALUE]
    kinds = [(name, columns[name].dtype) for name in (VALUE, *ANNOTATIONS) if name in columns]
    rows = np.empty(len(columns[VALUE]), kinds)
    for name, _ in kinds:
        rows[name] = columns[name]
    return rows


def columns(targets: Any) -> dict[str, Any]:
    """The inverse of `joined`: columns by name, as they go into files."""
    if isinstance(targets, Mapping):
        return dict(targets)
    names = getattr(targets, "dtype", np.dtype(float)).names
    return {VALUE: targets} if names is None else {name: targets[name] for name in names}


def on_devices(targets: np.ndarray) -> Any:
    """Targets as devices can have them: an array, or a dict of columns."""
    found = columns(targets)
    return targets if found.keys() == {VALUE} else found


def values(targets: Any) -> Any:
    """The numbers, or classes, without what is known of them."""
    return columns(targets)[VALUE]


def annotation(targets: Any, name: str) -> Any:
    """`CENSORED` or `ERROR` [N]; None where the targets have no such column."""
    return columns(targets).get(name)


def scored(score: str, targets: Any, mask: Any) -> Any:
    """The mask [B] of the rows that a score is averaged over: all but the NLL are of known values.

    Args:
        score: by name.
        targets: [B].
        mask: [B], bool or 0 and 1.
    """
    censored = annotation(targets, CENSORED)
    return mask if censored is None or score == "nll" else mask * ~censored
