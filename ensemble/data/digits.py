"""scikit-learn's 1,797 images of handwritten digits, which come with it."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.data.dataset import make_dataset
from ensemble.data.source import Examples, Request, Source
from ensemble.data.splitting import stratified_split

SIZES = {"train": 1_197, "validation": 150, "calibration": 150, "test": 300}
SEED = 0  # The digits' split is the same for every run.
CLASS_NAMES = tuple("0123456789")


def load_digits(name: str, request: Request) -> Source:
    """Makes a data set of the digits."""
    return make_dataset(name, split_digits(), CLASS_NAMES, 1 / 16, request.hold_out)


def split_digits() -> dict[str, Examples]:
    """Splits the images, uint8 0..16, `[8, 8, 1]`, every split with its share of every class."""
    rows = read_digits()
    images = rows[:, :-1].reshape(-1, 8, 8, 1)
    labels = rows[:, -1].astype(np.int32)
    parts = stratified_split(labels, [*SIZES.values()], SEED)
    return {
        split: Examples(images[part], labels[part])
        for split, part in zip(SIZES, parts, strict=True)
    }


def read_digits() -> NDArray:
    """Reads the digits, uint8 `[1797, 65]`: 64 pixels of 0..16, and the label."""
    return read_bundled("digits.csv.gz", dtype=np.uint8, delimiter=",")


def read_bundled(name: str, **options: Any) -> NDArray:
    """Reads a table inside scikit-learn, whose import would add a second to the start of a run."""
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None  # The package requires it.
    assert spec.origin is not None
    return np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / name, **options)
