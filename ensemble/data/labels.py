"""Labels as users have them, numbers, texts or one-hot rows, as classes 0..C-1 with names."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.errors import InputError, listed
from ensemble.notes import note
from ensemble.pytrees import ByName

_FEW = 20  # Classes that may have fewer than two examples each.
_CORRECT = "correct it, leave out what is not labelled, or call them targets to learn numbers"
MOST_CLASSES = 10
"""Different whole numbers of a target that are classes; more are numbers."""


def are_classes(values: NDArray) -> bool:
    """Whether floats of any shape are few different whole numbers."""
    is_whole = bool((values == np.floor(values)).all())
    return is_whole and len(np.unique(values)) <= MOST_CLASSES


def as_plain(values: Any, what: str) -> NDArray:
    """Labels or targets of any library as an array of truth values, numbers or texts.

    pandas has nullable types and categories, and lists and columns of objects hold any of these.

    Args:
        values: [N] or [N, C].
        what: Their name in messages.

    Raises:
        InputError: They are ragged, or one is missing.
    """
    try:
        array = np.asarray(values)
        if array.dtype.kind != "O" or not array.ndim:
            return array
        flat = array.ravel().tolist()
        # Nothing but NaN and pandas' NA differ from themselves, and NA says so of nothing.
        missing = [i for i, one in enumerate(flat) if one is None or (one != one) is not False]
        if not missing:
            return np.array(flat).reshape(array.shape)
    except ValueError as error:
        raise InputError(f"{what} is ragged; give one for each example") from error
    raise InputError(
        f"{what} is {flat[missing[0]]} for example {missing[0] * len(array) // len(flat)}, and "
        f"{len(missing)} of {len(flat)} are missing: leave such examples out"
    )


def classes(
    given: ByName, class_names: Any, name: str
) -> tuple[dict[str, NDArray], tuple[str, ...]]:
    """Numbers the classes of labels.

    Whole numbers from 0 are numbers of classes. Of other whole numbers, and of texts, each value is
    a class, in sorted order; but texts that are class names are the numbers of these.

    Args:
        given: labels of each part by what a message calls them: [N] whole numbers or texts, or
            one-hot [N, C].
        class_names: one per class, in the order of their numbers; None where there are none.
        name: of the data, for messages.

    Returns:
        The labels, int32 [N] of each part, and one name per class.

    Raises:
        InputError: naming the labels that cannot be classes, and why.
    """
    parts = {what: _as_one(values, what) for what, values in given.items()}
    every = np.concatenate([*parts.values()])  # Beside texts numbers become texts.
    keys: Any = np.unique(every).tolist()
    is_text = every.dtype.kind == "U"
    rule = f"labels are texts, or whole numbers 0..C-1 of fewer classes than examples: {_CORRECT}"
    names = None
    if class_names is not None:
        names = [*map(str, np.ravel(class_names))]
        keys = names if is_text else range(len(names))
        rule = f"there are {len(names)} class_names: use these, or their numbers from 0"
    elif not is_text and keys[0] == 0:
        keys = range(1 + int(max(one for one in keys if one < len(every))))
    elif not is_text:  # -1 and 1 are classes.
        keys = [int(one) for one in keys if one % 1 == 0 and (one >= 0 or len(keys) == 2)]
        note(
            f"{name}: labels do not begin at 0, so each of their {len(keys)} values is a class of "
            f"that name: {listed([*map(str, keys)])}. Predicted labels are positions in this list."
        )
    names = names or [*map(str, keys)]
    order = {key: k for k, key in enumerate(keys)}
    labels = {}
    for what, values in parts.items():
        numbers = [order.get(one, -1) for one in values.astype(every.dtype).tolist()]
        if -1 in numbers:
            row = numbers.index(-1)
            raise InputError(f"{what} holds {values[row]} in example {row}; {rule}")
        labels[what] = np.array(numbers, np.int32)
    if class_names is None and len(names) > max(len(every) // 2, _FEW):
        raise InputError(
            f"{name}: {len(every)} labels have {len(names)} different values; a class needs "
            f"more than one example: {_CORRECT}"
        )
    if len({*names}) < max(len(names), 2):
        raise InputError(
            f"{name} has the classes {listed(names)}; give more than one class, each with a name "
            "of its own"
        )
    return labels, tuple(names)


def _as_one(values, what: str) -> NDArray:
    """Labels [N], of numbers or texts."""
    labels = as_plain(values, what)
    if labels.dtype.kind in "buifU" and labels.size:
        if labels.size == len(labels):
            return labels.ravel()
        is_one_hot = labels.ndim == 2 and labels.dtype.kind != "U"
        if is_one_hot and (np.sort(labels, axis=1) == np.eye(labels.shape[1])[-1]).all():
            return labels.argmax(axis=1)
    raise InputError(
        f"{what} has dtype {labels.dtype} and shape {labels.shape}; labels are whole numbers or "
        "texts [N], or one-hot rows [N, C], each with a single 1"
    )


def class_weights(spec: str, labels: NDArray, num_classes: int) -> NDArray:
    """How much each class counts in the training loss.

    Args:
        spec: `none` (all 1); `balanced` (N / (C * count), as in scikit-learn, so that the mean over
            the training examples is 1); or C positive numbers separated by commas.
        labels: of the training examples, int `[N]`.
        num_classes: C.

    Returns:
        float32 `[C]`; the weight of a class without examples, never used, is that of one example.

    Raises:
        InputError: There are other than C numbers.
    """
    if spec == "none":
        return np.ones(num_classes, np.float32)
    if spec == "balanced":
        counts = np.bincount(labels, minlength=num_classes)
        return (len(labels) / (num_classes * np.maximum(counts, 1))).astype(np.float32)
    weights = np.array(spec.split(","), np.float32)
    if len(weights) != num_classes:
        raise InputError(
            f"class_weights={spec!r} has {len(weights)} numbers; give one for each of the "
            f"{num_classes} classes"
        )
    return weights


_DRAWN = 10_000
_MOST_DRAWN = 10_000_000
"""Examples of each class that `weights_in_batches` looks at, and the most of all of its passes."""


def weights_in_batches(
    weights: NDArray, labels: NDArray, own: NDArray | None, batch_size: int
) -> NDArray:
    """How much each class counts in training that divides the loss of a batch by its weights.

    Where a heavy class is rare, batches that have it divide by more, so that it counts less than
    its weight says. This is the mean over orders of the examples, to about a percent.

    Args:
        weights: [C] of `class_weights`.
        labels: of the training examples, int [N].
        own: [N], how much these count beside; None: all the same.
        batch_size: B.

    Returns:
        float64 [C], up to a factor.
    """
    num_classes = len(weights)
    number = len(labels)
    own = np.ones(number) if own is None else own.astype(np.float64)
    counts = np.bincount(labels, minlength=num_classes)
    there = counts > 0
    rarest = int(counts[there].min())
    passes = min(-(-_DRAWN // rarest), max(1, _MOST_DRAWN // number))
    rng = np.random.default_rng(0)
    found = np.zeros(num_classes)
    starts = np.arange(0, number, batch_size)
    batches = np.arange(number) // batch_size
    of_rows = own * weights[labels]
    for _ in range(passes):
        order = rng.permutation(number)
        sums = np.add.reduceat(of_rows[order], starts)
        found += np.bincount(labels[order], of_rows[order] / sums[batches], num_classes)
    whole = passes * np.bincount(labels, own, num_classes)
    effects = np.divide(found, whole, out=np.ones(num_classes), where=there)
    effects[~there] = weights[~there] * np.median((effects / weights)[there])
    return effects / effects.min()
