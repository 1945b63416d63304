"""scikit-learn's diabetes study: ten measurements of 442 patients, and the disease a year later.

Efron, Hastie, Johnstone and Tibshirani (2004), "Least Angle Regression", Annals of Statistics. The
target is a quantitative measure of the disease's progression, 25 to 346.
"""

import importlib.util
from pathlib import Path

import numpy as np

from ensemble.errors import UserError
from ensemble.source import Request
from ensemble.sources.dataset import Dataset, own_dataset

SEED = 0  # The split is the same for every run.
_FILES = ("diabetes_data_raw.csv.gz", "diabetes_target.csv.gz")


def load_diabetes(name: str, request: Request) -> Dataset:
    """Makes a data set of the patients, split 70 / 10 / 10 / 10.

    Raises:
        UserError: scikit-learn is not there.
    """
    measured, progression = (_read(file) for file in _FILES)
    whole = {"inputs": measured, "targets": progression}
    splits = own_dataset(whole, name, Request(seed=SEED)).splits
    if request.hold_out:
        arrays = {f"{split}_inputs": one.inputs for split, one in splits.items()}
        arrays |= {f"{split}_targets": one.targets for split, one in splits.items()}
    else:
        *parts, test = splits.values()
        arrays = {
            "train_inputs": np.concatenate([part.inputs for part in parts]),
            "train_targets": np.concatenate([part.targets for part in parts]),
            "test_inputs": test.inputs,
            "test_targets": test.targets,
        }
    return own_dataset(arrays, name, Request(hold_out=False))


def _read(name: str) -> np.ndarray:
    """Reads a file inside scikit-learn, whose import would add a second to the start of a run."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("dataset='diabetes' needs scikit-learn; pip install scikit-learn")
    file = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / name
    if not file.is_file():
        raise UserError(f"dataset='diabetes': scikit-learn has no {file}; reinstall it")
    return np.loadtxt(file)
