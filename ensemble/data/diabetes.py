"""scikit-learn's diabetes study: ten measurements of 442 patients, and the disease a year later.

Efron, Hastie, Johnstone and Tibshirani (2004), "Least Angle Regression", Annals of Statistics. The
target is a quantitative measure of the disease's progression, 25 to 346.
"""

from ensemble.data.dataset import dataset_from_arrays, join_for_training
from ensemble.data.digits import read_bundled
from ensemble.data.source import Request, Source

SEED = 0  # The split is the same for every run.


def load_diabetes(name: str, request: Request) -> Source:
    """Makes a data set of the patients, split 70 / 10 / 10 / 10."""
    measured = read_bundled("diabetes_data_raw.csv.gz")
    whole = {"inputs": measured, "targets": read_bundled("diabetes_target.csv.gz")}
    dataset = dataset_from_arrays(whole, name, SEED)
    if request.hold_out:
        return dataset
    joined = join_for_training(dataset.splits)
    return dataset_from_arrays(joined, name, hold_out=False, kind="targets")
