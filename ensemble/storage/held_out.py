"""The file `predictions/held_out.npz`: losses of training rows by members that hold them out."""

import numpy as np
from etils import epath

from ensemble.errors import InputError
from ensemble.storage.files import write_by
from ensemble.storage.manifest import damaged
from ensemble.storage.workdir import Workdir


def write_held_out(work: Workdir, losses: np.ndarray) -> None:
    """Writes the loss [N] of each training row, float64 nats; NaN of rows that nobody holds out."""
    work.predictions.mkdir(parents=True, exist_ok=True)
    write_by(_file(work), lambda file: np.savez_compressed(file, losses=losses))
    work.manifest.add(_file(work))


def read_held_out(work: Workdir, num_rows: int) -> np.ndarray:
    """Reads what `write_held_out` wrote.

    Args:
        work: of the run.
        num_rows: N.

    Raises:
        InputError: the file is absent, damaged, or of another run.
    """
    path = _file(work)
    if not (arrays := work.manifest.read_npz(path)):
        raise InputError(
            f"{path} is missing: only members of config.method='kfold_bagging' hold out training "
            "rows"
        )
    if arrays["losses"].shape != (num_rows,):
        raise damaged(path)
    return arrays["losses"]


def _file(work: Workdir) -> epath.Path:
    return work.predictions / "held_out.npz"
