"""Labels as users have them, numbers, texts or one-hot rows, as classes 0..C-1 with names."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ensemble.errors import UserError
from ensemble.notes import note

_FEW = 20  # Classes that may have fewer than two examples each.
MAX_NAMED = 6
"""Classes that a line names."""
MOST_CLASSES = 10
"""Different whole numbers of a target that are classes; more are numbers."""


def are_classes(values: np.ndarray) -> bool:
    """Whether floats of any shape are few different whole numbers."""
    is_whole = bool((values == np.floor(values)).all())
    return is_whole and len(np.unique(values)) <= MOST_CLASSES


def classes(
    given: Mapping[str, Any], class_names: Any, name: str
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
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
        UserError: naming the labels that cannot be classes, and why.
    """
    labels = {what: _as_one(values, what) for what, values in given.items()}
    names = None if class_names is None else tuple(map(str, np.ravel(class_names)))
    if names is not None and len(set(names)) < len(names):
        raise UserError(f"{name}: class_names holds a name twice; each class needs its own")
    if any(values.dtype.kind == "U" for values in labels.values()):
        labels, names = _of_texts(labels, names, name)
    else:
        labels, names = _of_numbers(labels, names, name)
    if len(names) < 2:
        raise UserError(f"{name} has the one class {names[0]}; classification needs two or more")
    return {what: values.astype(np.int32) for what, values in labels.items()}, names


def _as_one(values: Any, what: str) -> np.ndarray:
    """Labels [N], of numbers or texts."""
    try:
        labels = np.asarray(values)
    except ValueError as error:
        raise UserError(f"{what} is ragged; labels are [N]: one class per example") from error
    if labels.dtype.kind == "O" and all(isinstance(one, str) for one in labels.ravel()):
        labels = labels.astype(str)
    if labels.dtype.kind == "S":
        labels = np.char.decode(labels, errors="replace")
    if labels.dtype.kind not in "buifU":
        raise UserError(
            f"{what} has dtype {labels.dtype}; labels are whole numbers or texts, one per example"
        )
    if labels.size == 0:
        raise UserError(f"{what} has shape {labels.shape}, which is empty; give at least one label")
    if labels.ndim == 2 and labels.shape[1] == 1:
        return labels[:, 0]
    if labels.ndim == 2 and labels.dtype.kind != "U":
        if not (((labels == 0) | (labels == 1)).all() and (labels.sum(axis=1) == 1).all()):
            raise UserError(
                f"{what} has shape {labels.shape}; labels are [N], one class per example, or "
                "one-hot rows [N, C], each with a single 1"
            )
        return labels.argmax(axis=1)
    if labels.ndim != 1:
        raise UserError(f"{what} has shape {labels.shape}; labels are [N]: one class per example")
    return labels


def _of_texts(
    labels: Mapping[str, np.ndarray], names: tuple[str, ...] | None, name: str
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    texts = {what: values.astype(str) for what, values in labels.items()}
    if names is None:
        names = tuple(np.unique(np.concatenate(list(texts.values()))).tolist())
        num_labels = sum(map(len, texts.values()))
        if len(names) > max(num_labels // 2, _FEW):
            raise UserError(
                f"{name}: {num_labels} labels have {len(names)} different texts; a class needs "
                "more than one example: are these labels?"
            )
    order = {text: k for k, text in enumerate(names)}
    for what, values in texts.items():
        unknown = next((one for one in values.tolist() if one not in order), None)
        if unknown is not None:
            raise UserError(
                f"{what} holds {unknown!r}, which is none of the {len(names)} class_names; name "
                "every class or correct the label"
            )
    return {
        what: np.array([order[one] for one in values.tolist()]) for what, values in texts.items()
    }, names


def _of_numbers(
    labels: Mapping[str, np.ndarray], names: tuple[str, ...] | None, name: str
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    for what, values in labels.items():
        bad = ~np.isfinite(values) | (values != np.floor(values))
        if bad.any():
            where = int(np.argmax(bad))
            raise UserError(
                f"{what} holds {values[where]} in example {where}; labels are whole numbers or "
                "texts: correct it, or call them targets to learn numbers"
            )
        if (np.abs(values) >= 2**31).any():
            raise UserError(
                f"{what} reaches {np.abs(values).max()}; labels that are numbers are below 2**31: "
                "give them as texts, as by astype(str), or call them targets to learn numbers"
            )
    whole = {what: values.astype(np.int64) for what, values in labels.items()}
    num_values = len(np.unique(np.concatenate(list(whole.values()))))
    for what, values in whole.items():
        if values.min() < 0 and (num_values != 2 or names):  # -1 and 1 are classes.
            raise UserError(
                f"{what} holds {values.min()} in example {values.argmin()}; labels are whole "
                "numbers 0..C-1 or texts: leave out what is not labelled, or call them targets to "
                "learn numbers"
            )
    low = min(int(values.min()) for values in whole.values())
    high = max(int(values.max()) for values in whole.values())
    if low == 0:
        return whole, _from_zero(whole, names, high, name)
    if names is None:
        return _of_values(whole, name)
    if low == 1 and high == len(names):
        note(f"{name}: labels are 1..{high}; they are taken as the {high} class_names in order.")
        return {what: values - 1 for what, values in whole.items()}, names
    return whole, _from_zero(whole, names, high, name)


def _from_zero(
    labels: Mapping[str, np.ndarray], names: tuple[str, ...] | None, high: int, name: str
) -> tuple[str, ...]:
    """The names of labels 0..C-1: those given, or '0', '1', ... up to the largest label."""
    if names is None:
        num_labels = sum(map(len, labels.values()))
        if high + 1 > max(num_labels, 2):
            raise UserError(
                f"{name}: labels reach {high} with only {num_labels} examples; labels are 0..C-1: "
                "renumber the classes from 0, or give class_names"
            )
        return tuple(map(str, range(high + 1)))
    for what, values in labels.items():
        if values.max() >= len(names):
            raise UserError(
                f"{what} holds {values.max()}, but there are {len(names)} class_names and labels "
                f"are 0..{len(names) - 1}; name every class or correct the label"
            )
    return names


def _of_values(
    labels: Mapping[str, np.ndarray], name: str
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Labels that do not begin at 0, each value of which is a class of that name."""
    found = np.unique(np.concatenate(list(labels.values())))
    num_labels = sum(map(len, labels.values()))
    if len(found) > max(num_labels // 2, _FEW):
        raise UserError(
            f"{name}: {num_labels} labels have {len(found)} different values; a class needs more "
            "than one example: call them targets to learn numbers"
        )
    shown = ", ".join(map(str, found[:MAX_NAMED].tolist()))
    shown += ", ..." if len(found) > MAX_NAMED else ""
    note(
        f"{name}: labels do not begin at 0, so each of their {len(found)} values is a class of "
        f"that name: {shown}. Predicted labels are positions in this list."
    )
    numbered = {what: np.searchsorted(found, values) for what, values in labels.items()}
    return numbered, tuple(map(str, found.tolist()))


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
        with np.errstate(over="ignore"):  # A weight that leaves float32 is refused.
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


_DRAWN = 10_000
_MOST_DRAWN = 10_000_000
"""Examples of each class, and of all, that `weights_in_batches` looks at."""


def weights_in_batches(
    weights: np.ndarray, labels: np.ndarray, own: np.ndarray | None, batch_size: int
) -> np.ndarray:
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
    every = -(-len(labels) // _MOST_DRAWN)
    labels, num_classes = labels[::every], len(weights)
    number = len(labels)
    own = np.ones(number) if own is None else own[::every].astype(np.float64)
    counts = np.bincount(labels, minlength=num_classes)
    rarest = int(counts[counts > 0].min())
    passes = min(-(-_DRAWN // rarest), max(1, _MOST_DRAWN // number))
    rng, found = np.random.default_rng(0), np.zeros(num_classes)
    starts = np.arange(0, number, batch_size)
    of_rows = own * weights[labels]
    for _ in range(passes):
        order = rng.permutation(number)
        sums = np.add.reduceat(of_rows[order], starts)
        shares = of_rows[order] / np.repeat(sums, np.diff([*starts, number]))
        found += np.bincount(labels[order], shares, num_classes)
    whole = passes * np.bincount(labels, own, num_classes)
    effects = np.divide(found, whole, out=np.ones(num_classes), where=counts > 0)
    effects[counts == 0] = weights[counts == 0] * np.median((effects / weights)[counts > 0])
    return effects / effects.min()
