"""Cases: arrays of many shapes, dtypes, labels and names, in Python."""

import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
import sklearn.datasets
from PIL import Image
from strangers import Score, case
from strangers_data import PICTURES, learn, pictures, vectors

Change = Callable[[Any], Any]


def of_inputs(name: str, change: Change, make: Any = vectors, says: str = "", **sizes: int) -> None:
    """Adds a case of inputs that are unusual; new ones come in the same form."""
    config = PICTURES if make is pictures else None

    @case(name, says=says)
    def _(folder) -> Score:
        (inputs, labels), (new, truth) = make(0, **sizes), make(1, **sizes)
        return learn({"inputs": change(inputs), "labels": labels}, change(new), truth, config)


def of_labels(
    name: str, change: Change, says: str = "", works: bool | None = None, classes: int = 3
) -> None:
    """Adds a case of labels that are unusual; the truth comes in the same form."""

    @case(name, says=says, works=works)
    def _(folder) -> Score:
        (inputs, labels), (new, truth) = vectors(0, classes=classes), vectors(1, classes=classes)
        return learn({"inputs": inputs, "labels": change(labels)}, new, change(truth))


def of_names(name: str, change: Callable[[Any, Any], Any], says: str = "") -> None:
    """Adds a case of data in another form."""

    @case(name, says=says)
    def _(folder) -> Score:
        return learn(change(*vectors(0)), *vectors(1))


def with_value(value: Any) -> Change:
    """Puts a value into one place of the inputs."""

    def change(inputs: Any) -> Any:
        inputs = np.array(inputs)
        inputs[3, 1] = value
        return inputs

    return change


of_inputs("vectors, float32", np.float32)
of_inputs("vectors, float64 in Fortran's order", np.asfortranarray)
of_inputs("vectors, float16", np.float16)
of_inputs("vectors, int64", lambda x: np.rint(10 * x).astype(np.int64))
of_inputs("vectors, int64 beyond int32", lambda x: np.rint(1e12 * x).astype(np.int64))
of_inputs("vectors, big endian", lambda x: x.astype(">f8"))
of_inputs("vectors, objects that are numbers", lambda x: x.astype(object), says="object.*astype")
of_inputs("vectors, bools", lambda x: x > 0, size=12)
of_inputs("vectors, complex", lambda x: x + 1j, says="complex")
of_inputs("vectors, numbers as strings", lambda x: x.astype(str), says="inputs.*(<U|str|text)")
of_inputs("vectors, a NaN", with_value(np.nan), says="nan|finite")
of_inputs("vectors, an infinity", with_value(np.inf), says="inf|finite")
of_inputs("vectors, beyond float32", with_value(1e300), says="1e\\+?300|float32")
of_inputs("vectors, a constant column", lambda x: np.hstack([x, np.ones((len(x), 1))]))
of_inputs("vectors, columns from 1e-6 to 1e9", lambda x: x * 10.0 ** np.array([-6, -3, 0, 5, 9]))
of_inputs("vectors, years and a small offset", lambda x: x + 1e5)
of_inputs("vectors, wide", np.float32, size=3000, count=60)
of_inputs("vectors, one column", lambda x: x[:, :1] * 3, says="")
of_inputs("vectors, flat [N]", lambda x: x[:, 0], says=r"inputs.*(\(200,\)|\[200\]|shape|features)")
of_inputs("vectors, no column", lambda x: x[:, :0], says="empty|no |at least|shape")
of_inputs("vectors, a masked array", np.ma.masked_array)
of_inputs("vectors, a list of lists", lambda x: x.tolist())
of_inputs(
    "vectors, ragged lists",
    lambda x: [row[: 3 + (i % 2)].tolist() for i, row in enumerate(x)],
    says="length|ragged|shape|array",
)
of_inputs("vectors, a sparse matrix", scipy.sparse.csr_matrix, says="sparse|toarray|csr")
of_inputs("vectors, a data frame", lambda x: pd.DataFrame(x, columns=list("abcde")))
of_inputs(
    "vectors, a data frame with text",
    lambda x: pd.DataFrame(x).assign(b=np.where(x[:, 0] > 0, "red", "blue")),
)
of_inputs(
    "vectors, a data frame with dates",
    lambda x: pd.DataFrame(x).assign(b=pd.date_range("2020-01-01", periods=len(x))),
)
of_inputs("sequences [N, 6, 4]", lambda x: x.reshape(len(x), 6, 4), size=24)
of_inputs("pictures, [N, H, W] uint8", lambda x: x[..., 0], pictures)
of_inputs("pictures, float 0..255", np.float32, pictures)
of_inputs("pictures, float 0..16", lambda x: np.floor(x / 16.0), pictures)
of_inputs("pictures, float 0..1", lambda x: x / 255, pictures)
of_inputs(
    "pictures, a list of Pillow's", lambda x: [Image.fromarray(one[..., 0]) for one in x], pictures
)
of_inputs("pictures, float -1..1", lambda x: x / 127.5 - 1, pictures)
of_inputs("pictures, uint16", lambda x: x.astype(np.uint16) * 257, pictures)
of_inputs("pictures, int64", lambda x: x.astype(np.int64), pictures)
of_inputs("pictures, bools", lambda x: x > 110, pictures)
of_inputs("pictures, channels first", lambda x: np.moveaxis(x, -1, 1), pictures, channels=3)
of_inputs("pictures, transparent", np.asarray, pictures, channels=4)
of_inputs("pictures, seven channels", np.asarray, pictures, channels=7)
of_inputs("pictures, 3 by 3", np.asarray, pictures, side=3)
of_inputs("pictures, 12 by 40", lambda x: np.pad(x, ((0, 0), (0, 0), (0, 28), (0, 0))), pictures)
of_inputs(
    "volumes [N, 6, 6, 6, 1]",
    lambda x: np.repeat(x[:, :, :, None], 6, 3),
    pictures,
    side=6,
    says=r"6, 6, 6|volume|\[N, H, W, C\]",
)

of_labels("labels 1..3", lambda y: y + 1)
of_labels("labels -1 and 1", lambda y: 2 * y - 1, classes=2)
of_labels("labels as strings", lambda y: np.array(["cat", "dog", "ox"])[y])
of_labels("labels as strings that are numbers", lambda y: np.array(["10", "9", "1"])[y])
of_labels("labels as objects", lambda y: np.array(["cat", "dog", "ox"], object)[y])
of_labels("labels as bytes", lambda y: np.array([b"cat", b"dog", b"ox"])[y])
of_labels("labels as bools", lambda y: y.astype(bool), classes=2)
of_labels("labels as uint8", np.uint8)
of_labels("labels, whole floats", np.float64)
of_labels("labels, a column", lambda y: y[:, None])
of_labels("labels, fractions", lambda y: y + 0.25, "label.*(whole|fraction|0.25)|targets|gaussian")
of_labels("labels, a NaN", lambda y: np.where(np.arange(len(y)) == 7, np.nan, y), "nan|finite")
of_labels("labels, a None", lambda y: np.where(np.arange(len(y)) == 7, None, y), "none|label")
of_labels("labels, a class is missing", lambda y: np.where(y == 1, 2, y), "class", True)
of_labels("labels, all the same", lambda y: 0 * y, "one class|same class|all|two classes|class")
of_labels("labels, one per example", lambda y: np.arange(len(y)), "class|label")
of_labels("labels, huge numbers", lambda y: y * 10**12, says=r"2\*\*31.*texts")


@case("labels, one-hot")
def _(folder) -> Score:
    (inputs, labels), (new, truth) = vectors(0), vectors(1)
    return learn({"inputs": inputs, "labels": np.eye(3)[labels]}, new, truth)


@case("labels, probabilities", says="one-hot|label")
def _(folder) -> Score:
    inputs, labels = vectors(0)
    return learn({"inputs": inputs, "labels": 0.8 * np.eye(3)[labels] + 0.2 / 3}, *vectors(1))


@case("labels, shuffled", says="always answering")
def _(folder) -> Score:
    inputs, labels = vectors(0)
    labels = np.random.default_rng(5).permutation(labels)
    return learn({"inputs": inputs, "labels": labels}, *vectors(1))


@case("labels, 95 to 5 and weak features", says="always answering")
def _(folder) -> Score:
    rng = np.random.default_rng(0)
    labels = (rng.random(400) < 0.05).astype(int)
    inputs = rng.normal(size=(400, 4)) + 0.3 * labels[:, None]
    return learn({"inputs": inputs, "labels": labels}, inputs, labels, {"num_epochs": 3})


@case("labels, a class of one example", says="class|example", works=True)
def _(folder) -> Score:
    inputs, labels = vectors(0)
    labels[0] = 3
    return learn({"inputs": inputs, "labels": labels}, *vectors(1))


@case("labels, a series with another index")
def _(folder) -> Score:
    inputs, labels = vectors(0)
    frame = pd.DataFrame(inputs)
    series = pd.Series(labels, index=np.arange(len(labels))[::-1]).astype("category")
    return learn({"inputs": frame, "labels": series}, *vectors(1))


@case("one example", says="one class|example")
def _(folder) -> Score:
    inputs, labels = vectors(0)
    return learn({"inputs": inputs[:1], "labels": labels[:1]}, *vectors(1))


@case("six examples", says="example|split|most frequent")
def _(folder) -> Score:
    inputs, labels = vectors(0)
    return learn({"inputs": inputs[:6], "labels": labels[:6]}, *vectors(1))


@case("no examples", says="empty|no example|0 example|at least")
def _(folder) -> Score:
    inputs, labels = vectors(0)
    return learn({"inputs": inputs[:0], "labels": labels[:0]}, *vectors(1))


of_names("names X and y", lambda x, y: {"X": x, "y": y})
of_names(
    "names data and target", lambda x, y: sklearn.datasets.load_iris() and {"data": x, "target": y}
)
of_names("a pair", lambda x, y: (x, y))
of_names("a list of pairs", lambda x, y: list(zip(x, y, strict=True)))
of_names("a zip of examples", lambda x, y: zip(x, y, strict=True))
of_names(
    "X_train, y_train",
    lambda x, y: {"X_train": x[:150], "y_train": y[:150], "X_test": x[150:], "y_test": y[150:]},
)
of_names("train and val", lambda x, y: {"train": (x[:150], y[:150]), "val": (x[150:], y[150:])})
of_names(
    "train and validation with dicts",
    lambda x, y: {"train": {"x": x[:150], "y": y[:150]}, "test": {"x": x[150:], "y": y[150:]}},
)
of_names(
    "as train_test_split gives them",
    lambda x, y: (x[:150], x[150:], y[:150], y[150:]),
    says="4 arrays.*train",
)
of_names("weights", lambda x, y: {"inputs": x, "labels": y, "sample_weight": 0.5 + y})
of_names(
    "names for too few classes",
    lambda x, y: {"inputs": x, "labels": y, "class_names": ["a", "b"]},
    says="class_names",
)
of_names("a typo: lables", lambda x, y: {"inputs": x, "lables": y}, says="lables")
of_names("only inputs", lambda x, y: {"inputs": x}, says="labels")
of_names("only an array", lambda x, y: x, says="label|pair|mapping")
of_names("lengths that differ", lambda x, y: {"inputs": x, "labels": y[:-1]}, says="199")
of_names("inputs and labels swapped", lambda x, y: (y, x), says="label|inputs|target|shape")
of_names(
    "the test split is the training split",
    lambda x, y: {"train": (x, y), "test": (x, y)},
    says="cop(y|ies)",
)
of_names(
    "splits of different width",
    lambda x, y: {"train": (x, y), "test": (x[:, :3], y)},
    says="test.*3|shape",
)
of_names(
    "a class only in the test split",
    lambda x, y: {"train": (x[y < 2], y[y < 2]), "test": (x, y)},
    says="class|label",
)
of_names(
    "splits with strings",
    lambda x, y: {"train": (x[:150], y[:150]), "tset": (x[150:], y[150:])},
    says="tset",
)


class Tensor:
    """What a tensor of another library is to NumPy: something with `__array__`."""

    def __init__(self, values: Any):
        self.values = values
        self.shape, self.dtype = values.shape, types.SimpleNamespace(name="torch.float32")

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.values, dtype)

    def numpy(self) -> Any:
        return self.values

    def __len__(self) -> int:
        return len(self.values)


class Loader:
    """A loader of batches."""

    def __init__(self, inputs: Any, labels: Any, form: Callable[[Any, Any], Any]):
        self.inputs, self.labels, self.form = inputs, labels, form

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self.inputs), 32):
            rows = slice(start, start + 32)
            yield self.form(Tensor(self.inputs[rows]), Tensor(self.labels[rows]))


class Dataset:
    """A dataset of examples: a length, and a pair by index."""

    def __init__(self, inputs: Any, labels: Any):
        self.inputs, self.labels = inputs, labels

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        return Tensor(self.inputs[index]), int(self.labels[index])


of_names("tensors", lambda x, y: (Tensor(x), Tensor(y)))
of_names("a loader of pairs", lambda x, y: Loader(x, y, lambda a, b: (a, b)))
of_names("a loader of lists", lambda x, y: Loader(x, y, lambda a, b: [a, b]))
of_names("a loader of dicts", lambda x, y: Loader(x, y, lambda a, b: {"image": a, "label": b}))
of_names(
    "a loader of triples",
    lambda x, y: Loader(x, y, lambda a, b: (a, b, a)),
    says="tuple.*3|pair|(X, y)",
)
of_names(
    "loaders by split",
    lambda x, y: {
        "train": Loader(x[:150], y[:150], lambda a, b: (a, b)),
        "test": Loader(x[150:], y[150:], lambda a, b: (a, b)),
    },
)
of_names("a dataset of examples", Dataset, says="pair|batch|example")
