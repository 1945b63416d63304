"""Whether all processes of a run see one and the same folder."""

import contextlib
import secrets

import jax
import numpy as np
from etils import epath

from ensemble.sharding import processes
from ensemble.storage.paths import is_remote

_PREFIX = ".seen_by_all_"


def is_shared(folder: epath.Path) -> bool:
    """Whether what each process writes in a folder is what all others read there.

    All processes call it. Each writes a token that only this run knows, and looks for everyone's.

    Args:
        folder: a path, which may be of another disk in every process.
    """
    if processes.count() == 1:
        return False
    token = processes.from_main(lambda: _begin(folder))
    ours = folder / f"{_PREFIX}{token}"
    own = ours / str(jax.process_index())
    with contextlib.suppress(OSError):
        # A folder that only process 0 has is not made here, nor anything in it.
        if is_remote(folder) or ours.exists():
            own.write_text(token)
    processes.wait_for_all("tokens written")
    sees = all(_reads(ours / str(k), token) for k in range(processes.count()))
    found = processes.join_rows(np.array([sees]))
    processes.from_main(lambda: _remove(ours))
    return bool(found.all())


def _begin(folder: epath.Path) -> str:
    for left in folder.glob(f"{_PREFIX}*"):  # By a run that was killed here.
        _remove(left)
    token = secrets.token_hex(16)
    with contextlib.suppress(OSError):
        (folder / f"{_PREFIX}{token}").mkdir()
    return token


def _reads(path: epath.Path, token: str) -> bool:
    try:
        return path.read_text() == token
    except OSError:
        return False


def _remove(folder: epath.Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmtree()
