"""What a user's own data say of single targets: that they are censored, how well measured."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ensemble import target_rows
from ensemble.errors import UserError
from ensemble.notes import note
from ensemble.target_rows import CENSORED, ERROR, annotation


def with_annotations(values: np.ndarray, given: Mapping[str, Any], what: str) -> np.ndarray:
    """Puts annotations beside targets.

    Args:
        values: float32 [N].
        given: some of `target_rows.ANNOTATIONS` by name, [N] each.
        what: the data are, and the prefix of their keys, for messages.

    Returns:
        Rows as of `target_rows.joined`.

    Raises:
        UserError: naming the annotations that cannot be used, and why.
    """
    if given and values.ndim > 1:
        raise UserError(
            f"{what}targets has shape {values.shape}; {' and '.join(given)} are for a single "
            "target [N]: train on one column at a time"
        )
    found = {target_rows.VALUE: values}
    for name, one in given.items():
        try:
            array = np.asarray(one)
        except ValueError:
            raise UserError(f"{what}{name} is ragged; it is [N], one for each target") from None
        if array.dtype.kind not in "buif" or array.shape != values.shape:
            raise UserError(
                f"{what}{name} has shape {array.shape} and dtype {array.dtype}; it is [N], one "
                f"{'bool' if name == CENSORED else 'number'} for each of the "
                f"{len(values)} targets"
            )
        check = _flags if name == CENSORED else _deviations
        found[name] = check(array, f"{what}{name}")
    return target_rows.joined(found)


def tell(targets: Mapping[str, np.ndarray], name: str) -> None:
    """Notes what annotations on the targets of some parts do to scores and predictions."""
    flags = [annotation(one, CENSORED) for one in targets.values()]
    found = [one for one in flags if one is not None]
    if found:
        note(
            f"{name}: {sum(int(one.sum()) for one in found)} of {sum(map(len, found))} targets are "
            "censored. The NLL scores them by the probability of their value or more; RMSE, CRPS, "
            "coverage and pictures are of the others."
        )
    if any(annotation(one, ERROR) is not None for one in targets.values()):
        note(
            f"{name}: targets have errors of measurement. Scores are of the targets as measured; "
            "predictions, and their aleatoric variance, are of the targets without these errors."
        )


def _flags(array: np.ndarray, what: str) -> np.ndarray:
    """Bool [N]."""
    is_bad = (array != 0) & (array != 1)
    if is_bad.any():
        raise UserError(
            f"{what} holds {array[is_bad][0]} in example {is_bad.argmax()}; give True where the "
            "target is at least the given value, False where it is that value"
        )
    return array.astype(bool)


def _deviations(array: np.ndarray, what: str) -> np.ndarray:
    """Standard deviations [N], float32."""
    with np.errstate(over="ignore"):
        errors = array.astype(np.float32)
    is_bad = ~(np.isfinite(errors) & (errors >= 0))
    if is_bad.any():
        raise UserError(
            f"{what} holds {array[is_bad][0]} in example {is_bad.argmax()}; give the standard "
            "deviation of each measurement, finite and not negative"
        )
    return errors
