"""scikit-learn's 1,797 images of handwritten digits, which come with it."""

import gzip
import importlib.util
from pathlib import Path

import numpy as np

from ensemble.errors import UserError
from ensemble.source import Examples, Request
from ensemble.sources.dataset import Dataset, divide, make_dataset

SIZES = {"train": 1_197, "validation": 150, "calibration": 150, "test": 300}
SEED = 0  # The digits' split is the same for every run.
CLASS_NAMES = tuple("0123456789")


def load_digits(name: str, request: Request) -> Dataset:
    """Makes a data set of the digits."""
    return make_dataset(name, split_digits(), CLASS_NAMES, 1 / 16, request.hold_out)


def split_digits() -> dict[str, Examples]:
    """Splits the images, uint8 0..16, `[8, 8, 1]`."""
    rows = read_digits()
    everything = Examples(rows[:, :-1].reshape(-1, 8, 8, 1), rows[:, -1].astype(np.int32))
    return divide(everything, SIZES, SEED)


def read_digits() -> np.ndarray:
    """Reads the file inside scikit-learn.

    Importing scikit-learn for it would add a second to the start of a run.

    Returns:
        uint8 `[1797, 65]`: 64 pixels of 0..16, and the label.

    Raises:
        UserError: scikit-learn is not there.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("dataset='digits' needs scikit-learn; pip install scikit-learn")
    file = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        with gzip.open(file, "rt") as lines:
            return np.loadtxt(lines, np.uint8, delimiter=",")
    from sklearn.datasets import load_digits  # Two seconds to import, and seldom needed.

    digits = load_digits()
    return np.column_stack([digits.data, digits.target]).astype(np.uint8)
