"""What every score refuses: arrays that are no log-probabilities, labels that do not fit them.

Log-probabilities are `[M, N, C]` for M members, N examples and C classes, or `[N, C]` for one
predictor. Members that failed (NaN) are for the caller to leave out.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_NORMALISATION_TOLERANCE = 1e-2  # wide enough for float16, far too narrow for logits


def as_log_probs(log_probs: ArrayLike, ndim: int) -> Floats:
    """Checks log-probabilities `[N, C]` (ndim 2) or `[M, N, C]` (ndim 3) and makes them float64."""
    array = np.asarray(log_probs)
    if not np.issubdtype(array.dtype, np.floating):
        raise ValueError(
            f"log_probs has dtype {array.dtype}, must be float16, float32 or float64; cast it"
        )
    if array.ndim != ndim or array.size == 0:
        axes = "[M, N, C]" if ndim == 3 else "[N, C]"
        raise ValueError(f"log_probs has shape {array.shape}, must be {axes} with no empty axis")
    array = array.astype(np.float64, copy=False)
    with np.errstate(over="ignore"):  # logits of a thousand: reported below
        sums = np.exp(array).sum(axis=-1)
    unnormalised = ~(np.abs(sums - 1.0) <= _NORMALISATION_TOLERANCE)  # NaN counts
    if unnormalised.any():
        raise ValueError(
            f"probabilities must sum to 1 over the classes, but log_probs give "
            f"{sums[unnormalised][0]:.4g} at index {np.argwhere(unnormalised)[0].tolist()}; "
            f"apply log_softmax, and leave out members that are not finite"
        )
    return array


def as_predictions(log_probs: ArrayLike, labels: ArrayLike) -> tuple[Floats, NDArray[np.intp]]:
    """Checks log-probabilities `[N, C]` and labels `[N]` against each other."""
    array = as_log_probs(log_probs, ndim=2)
    num_examples, num_classes = array.shape
    classes = np.asarray(labels)
    if not np.issubdtype(classes.dtype, np.integer):
        raise ValueError(f"labels has dtype {classes.dtype}, must be integer; use class indices")
    if classes.shape != (num_examples,):
        raise ValueError(
            f"labels has shape {classes.shape}, must be ({num_examples},) to match log_probs "
            f"{array.shape}"
        )
    if classes.min() < 0 or classes.max() >= num_classes:
        raise ValueError(
            f"labels span {classes.min()}..{classes.max()}, must be within 0..{num_classes - 1}, "
            f"the classes of log_probs"
        )
    return array, classes.astype(np.intp)
