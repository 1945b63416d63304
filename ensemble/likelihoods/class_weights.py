"""How much each class counts in the training loss: what `config.class_weights` says."""

import numpy as np

from ensemble.errors import UserError


def class_weights(spec: str, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """How much each class counts in the training loss.

    Args:
        spec: `none` (all 1); `balanced` (N / (C * count), as in scikit-learn, so that the mean over
            the training examples is 1); or C positive numbers separated by commas.
        labels: of the training examples, int `[N]`.
        num_classes: C.

    Returns:
        float32 `[C]`; the weight of a class without examples, never used, is that of one example.

    Raises:
        UserError: if the specification is none of these.
    """
    if spec == "none":
        return np.ones(num_classes, np.float32)
    if spec == "balanced":
        counts = np.bincount(labels, minlength=num_classes)
        return (len(labels) / (num_classes * np.maximum(counts, 1))).astype(np.float32)
    try:
        weights = np.array([float(number) for number in spec.split(",")], np.float32)
    except ValueError as error:
        raise UserError(
            f"class_weights={spec!r} must be none, balanced, or {num_classes} positive numbers "
            f"separated by commas"
        ) from error
    if len(weights) != num_classes:
        raise UserError(
            f"class_weights={spec!r} has {len(weights)} numbers; give one for each of the "
            f"{num_classes} classes"
        )
    if not (np.isfinite(weights) & (weights > 0)).all():
        raise UserError(f"class_weights={spec!r} must all be positive and finite")
    return weights
