"""Arrays of strangers, of many shapes, dtypes, labels and names: used, or refused in one line."""

import types

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from PIL import Image
from strangers import MARKS, PICTURES, check, learn, numbers, pictures, vectors

pytestmark = MARKS


def with_value(value):
    return lambda x: np.where(np.arange(x.size).reshape(x.shape) == 16, value, x)


def row(change, says="", works=False, **sizes):
    return change, says, works, sizes


# fmt: off
VECTORS = {
    "float32": row(np.float32),
    "int64": row(lambda x: np.rint(10 * x).astype(np.int64)),
    "big endian": row(lambda x: x.astype(">f8")),
    "objects that are numbers": row(lambda x: x.astype(object), "object.*astype"),
    "bools": row(lambda x: x > 0, size=12),
    "complex": row(lambda x: x + 1j, "complex"),
    "a NaN": row(with_value(np.nan), "nan|finite"),
    "beyond float32": row(with_value(1e300), "1e\\+?300|float32"),
    "a constant column": row(lambda x: np.hstack([x, np.ones((len(x), 1))])),
    "columns from 1e-6 to 1e9": row(lambda x: x * 10.0 ** np.array([-6, -3, 0, 5, 9])),
    "years and a small offset": row(lambda x: x + 1e5),
    "one column": row(lambda x: x[:, :1] * 3),
    "flat": row(lambda x: x[:, 0], r"inputs.*(\(200,\)|\[200\]|shape|features)"),
    "a list of lists": row(lambda x: x.tolist()),
    "ragged lists": row(lambda x: [list(one[: 3 + i % 2]) for i, one in enumerate(x)], "shape"),
    "a sparse matrix": row(scipy.sparse.csr_matrix, "sparse|toarray|csr"),
    "a data frame with text": row(
        lambda x: pd.DataFrame(x).assign(b=np.where(x[:, 0] > 0, "red", "blue"))
    ),
    "a data frame with dates": row(
        lambda x: pd.DataFrame(x).assign(b=pd.date_range("2020-01-01", periods=len(x)))
    ),
    "sequences": row(lambda x: x.reshape(len(x), 6, 4), size=24),
}
IMAGES = {
    "[N, H, W] uint8": row(lambda x: x[..., 0]),
    "float 0..16": row(lambda x: np.floor(x / 16.0)),
    "float 0..1": row(lambda x: x / 255),
    "float -1..1": row(lambda x: x / 127.5 - 1),
    "int64": row(lambda x: x.astype(np.int64)),
    "bools": row(lambda x: x > 110),
    "a list of Pillow's": row(lambda x: [Image.fromarray(one[..., 0]) for one in x]),
    "channels first": row(lambda x: np.moveaxis(x, -1, 1), channels=3),
    "transparent": row(np.asarray, channels=4),
    "seven channels": row(np.asarray, channels=7),
    "3 by 3": row(np.asarray, side=3),
    "volumes": row(lambda x: np.repeat(x[:, :, :, None], 6, 3), r"6, 6, 6|\[N, H, W, C\]", side=6),
}
LABELS = {
    "1..3": row(lambda y: y + 1),
    "-1 and 1": row(lambda y: 2 * y - 1, classes=2),
    "strings": row(lambda y: np.array(["cat", "dog", "ox"])[y]),
    "strings that are numbers": row(lambda y: np.array(["10", "9", "1"])[y]),
    "objects": row(lambda y: np.array(["cat", "dog", "ox"], object)[y]),
    "bytes": row(lambda y: np.array([b"cat", b"dog", b"ox"])[y]),
    "bools": row(lambda y: y.astype(bool), classes=2),
    "uint8": row(np.uint8),
    "whole floats": row(np.float64),
    "a column": row(lambda y: y[:, None]),
    "a series": row(lambda y: pd.Series(y, index=np.arange(len(y))[::-1]).astype("category")),
    "fractions": row(lambda y: y + 0.25, "label.*(whole|fraction|0.25)|targets|gaussian"),
    "a NaN": row(lambda y: np.where(np.arange(len(y)) == 7, np.nan, y), "nan|finite"),
    "a None": row(lambda y: np.where(np.arange(len(y)) == 7, None, y), "none|label"),
    "a class is missing": row(lambda y: np.where(y == 1, 2, y), "class", True),
    "all the same": row(lambda y: 0 * y, "class"),
    "one per example": row(lambda y: np.arange(len(y)), "class|label"),
    "huge numbers": row(lambda y: y * 10**12, r"2\*\*31.*texts"),
    "shuffled": row(np.random.default_rng(5).permutation, "always answering"),
}
TARGETS = {
    "plain": row(np.asarray),
    "float32, a column": row(lambda y: y[:, None].astype(np.float32)),
    "of 1e12": row(lambda y: 1e12 * y),
    "small beside their mean": row(lambda y: y + 1e4, "float32.*subtract"),
    "a series": row(pd.Series),
    "objects": row(lambda y: y.astype(object), "object.*astype"),
    "constant": row(lambda y: 0 * y + 3, "standard deviation 0"),
    "strings": row(lambda y: y.astype(str), "targets.*(<U|str|text)"),
    "a NaN": row(lambda y: np.where(np.arange(len(y)) == 5, np.nan, y), "nan|finite"),
    "an infinity": row(lambda y: np.where(np.arange(len(y)) == 5, np.inf, y), "inf|finite"),
    "one of 1e6": row(lambda y: np.where(np.arange(len(y)) == 5, 1e6, y), "mean|outlier|deviation"),
    "two columns": row(lambda y: np.stack([y, y], 1)),
    "dates": row(lambda y: np.array(["2020-01-01"] * len(y), "datetime64[D]"), "date|dtype"),
}


class Tensor:
    """What a tensor of another library is to NumPy: something with `__array__`."""

    def __init__(self, values):
        self.values, self.shape = values, values.shape
        self.dtype = types.SimpleNamespace(name="torch.float32")

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)

    def __len__(self):
        return len(self.values)


class Loader:
    """Batches in some form, as often as they are asked for."""

    def __init__(self, inputs, labels, form=lambda a, b: (a, b)):
        starts = range(0, len(inputs), 32)
        self.batches = [(inputs[k : k + 32], labels[k : k + 32]) for k in starts]
        self.form = form

    def __iter__(self):
        return (self.form(Tensor(x), Tensor(y)) for x, y in self.batches)


FORMS = {
    "one-hot": row(lambda x, y: {"inputs": x, "labels": np.eye(3)[y]}),
    "probabilities": row(lambda x, y: {"X": x, "labels": 0.8 * np.eye(3)[y] + 0.1}, "one-hot"),
    "a list of pairs": row(lambda x, y: list(zip(x, y, strict=True))),
    "one example": row(lambda x, y: (x[:1], y[:1]), "one class|example"),
    "six examples": row(lambda x, y: (x[:6], y[:6]), "example|split|most frequent"),
    "no examples": row(lambda x, y: (x[:0], y[:0]), "empty|no example|0 example|at least"),
    "X_train, y_train": row(lambda x, y: {
        "X_train": x[:150], "y_train": y[:150], "X_test": x[150:], "y_test": y[150:]
    }),
    "train and val": row(lambda x, y: {"train": (x[:150], y[:150]), "val": (x[150:], y[150:])}),
    "four arrays": row(lambda x, y: (x[:150], x[150:], y[:150], y[150:]), "4 arrays.*train"),
    "weights": row(lambda x, y: {"inputs": x, "labels": y, "sample_weight": 0.5 + y}),
    "too few names": row(lambda x, y: {"X": x, "y": y, "class_names": ["a", "b"]}, "class_names"),
    "a typo": row(lambda x, y: {"inputs": x, "lables": y}, "lables"),
    "only an array": row(lambda x, y: x, "label|pair|mapping"),
    "lengths that differ": row(lambda x, y: {"inputs": x, "labels": y[:-1]}, "199"),
    "swapped": row(lambda x, y: (y, x), "label|inputs|target|shape"),
    "test is training": row(lambda x, y: {"train": (x, y), "test": (x, y)}, "cop(y|ies)"),
    "other width": row(lambda x, y: {"train": (x, y), "test": (x[:, :3], y)}, "test.*3|shape"),
    "a class only in the test split": row(
        lambda x, y: {"train": (x[y < 2], y[y < 2]), "test": (x, y)}, "class|label"
    ),
    "a typo in a split": row(lambda x, y: {"train": (x, y), "tset": (x, y)}, "tset"),
    "tensors": row(lambda x, y: (Tensor(x), Tensor(y))),
    "a loader of pairs": row(Loader),
    "a loader of dicts": row(lambda x, y: Loader(x, y, lambda a, b: {"image": a, "label": b})),
    "a loader of triples": row(lambda x, y: Loader(x, y, lambda a, b: (a, b, a)), "tuple"),
}
# fmt: on


@pytest.mark.parametrize(
    ("make", "config", "case"),
    [(vectors, None, case) for case in VECTORS] + [(pictures, PICTURES, case) for case in IMAGES],
)
def test_inputs(make, config, case):
    change, says, works, sizes = (VECTORS if make is vectors else IMAGES)[case]
    (inputs, labels), (new, truth) = make(0, **sizes), make(1, **sizes)
    data = {"inputs": change(inputs), "labels": labels}
    check(lambda: learn(data, change(new), truth, config), says, works)


@pytest.mark.parametrize("case", LABELS)
def test_labels(case):
    change, says, works, sizes = LABELS[case]
    (inputs, labels), (new, truth) = vectors(0, **sizes), vectors(1, **sizes)
    check(
        lambda: learn({"inputs": inputs, "labels": change(labels)}, new, change(truth)), says, works
    )


@pytest.mark.parametrize("case", TARGETS)
def test_targets(case):
    change, says, _, _ = TARGETS[case]
    (inputs, known), (new, truth) = numbers(0), numbers(1)
    data, config = {"inputs": inputs, "targets": change(known)}, {"likelihood": "gaussian"}
    check(lambda: learn(data, new, change(truth), config), says)


@pytest.mark.parametrize("case", FORMS)
def test_forms(case):
    change, says, _, _ = FORMS[case]
    check(lambda: learn(change(*vectors(0)), *vectors(1)), says)
