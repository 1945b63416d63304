"""scikit-learn's own data: 1,797 images of handwritten digits, and measurements of 442 patients.

The diabetes study is that of Efron, Hastie, Johnstone and Tibshirani (2004), "Least Angle
Regression", Annals of Statistics: ten measurements; the target is a quantitative measure of the
disease's progression a year later, 25 to 346. Both are split alike in every run.
"""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.data.dataset import dataset_from_arrays, join_for_training, make_dataset
from ensemble.data.source import Examples, Request, Source, Splits
from ensemble.data.splitting import stratified_split

SIZES = {"train": 1_197, "validation": 150, "calibration": 150, "test": 300}
SEED = 0
CLASS_NAMES = tuple("0123456789")


def load_digits(name: str, request: Request) -> Source:
    """Makes a data set of the digits."""
    return make_dataset(name, split_digits(), CLASS_NAMES, 1 / 16, request.hold_out)


def split_digits() -> Splits:
    """Splits the digits, every split with its share of every class."""
    images, labels = read_digits()
    parts = stratified_split(labels, [*SIZES.values()], SEED)
    return {
        split: Examples(images[part], labels[part])
        for split, part in zip(SIZES, parts, strict=True)
    }


def read_digits() -> Examples:
    """Reads the images, uint8 0..16, `[1797, 8, 8, 1]`, and their labels."""
    rows = _read("digits.csv.gz", dtype=np.uint8, delimiter=",")
    return Examples(rows[:, :-1].reshape(-1, 8, 8, 1), rows[:, -1].astype(np.int32))


def load_diabetes(name: str, request: Request) -> Source:
    """Makes a data set of the patients, split 70 / 10 / 10 / 10."""
    measured = _read("diabetes_data_raw.csv.gz")
    whole = {"inputs": measured, "targets": _read("diabetes_target.csv.gz")}
    dataset = dataset_from_arrays(whole, name, SEED)
    if request.hold_out:
        return dataset
    joined = join_for_training(dataset.splits)
    return dataset_from_arrays(joined, name, hold_out=False)


def _read(name: str, **options) -> NDArray:
    """Reads a table inside scikit-learn, whose import would add a second to the start of a run."""
    spec: Any = importlib.util.find_spec("sklearn")
    return np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / name, **options)
