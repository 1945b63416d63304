"""The file `predictions/held_out.npz`: losses of training rows by members that hold them out."""

import io

import numpy as np
from etils import epath

from ensemble.errors import UserError, in_one_line
from ensemble.storage.files import write_by
from ensemble.storage.memory import max_bytes
from ensemble.storage.npz import read_arrays
from ensemble.storage.workdir import Workdir, check_size


def write_held_out(work: Workdir, losses: np.ndarray) -> None:
    """Writes the loss [N] of each training row, float64 nats; NaN of rows that nobody holds out."""
    work.predictions.mkdir(parents=True, exist_ok=True)
    identity = work.identity()
    write_by(_file(work), lambda file: np.savez_compressed(file, identity=identity, losses=losses))


def read_held_out(work: Workdir, num_rows: int) -> np.ndarray:
    """Reads what `write_held_out` wrote.

    Args:
        work: of the run.
        num_rows: N.

    Raises:
        UserError: the file is absent, damaged, or of another run.
    """
    path = _file(work)
    if not path.exists():
        raise UserError(
            f"{path} is missing: only members of config.method='cross_fitted' hold out training "
            "rows, and runs of earlier versions did not keep what these said"
        )
    check_size(path)
    try:
        arrays = read_arrays(io.BytesIO(path.read_bytes()), max_bytes())
        identity, losses = str(arrays["identity"]), arrays["losses"]
        if losses.shape != (num_rows,) or losses.dtype != np.float64:
            raise ValueError(f"losses {losses.shape} must be one for each of {num_rows} rows")
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{path} is damaged or not of this program ({in_one_line(error)}); remove it and train "
            "again with the same --workdir"
        ) from None
    work.check_belongs(path, identity)
    return losses


def _file(work: Workdir) -> epath.Path:
    return work.predictions / "held_out.npz"
