"""Searches and comparisons go on with the data that they began with."""

from collections.abc import Mapping
from typing import Any

from ensemble.config import build
from ensemble.data import source
from ensemble.data.catalogue import complete
from ensemble.storage.workdir import Workdir
from ensemble.tasks.learning_data import load_source
from ensemble.tuning.budget import quiet

_REMEDY = "restore the data, or choose another --workdir"


def check_same_data(out: Workdir, config: Mapping[str, Any], fingerprint: str, data: Any) -> None:
    """Refuses to go on with other data, before any of them are learned.

    Args:
        out: Workdir of the search or comparison.
        config: Of its runs, flat.
        fingerprint: Of the data that it began with; empty if no run has ended yet.
        data: As of `ensemble.train`.

    Raises:
        InputError: The data are others, or cannot be had.
    """
    if fingerprint:
        given, values = complete(config, {}, data)
        with quiet():
            here = load_source(build(values).config, given)
        source.check_same_data(str(out.path), fingerprint, here.fingerprint, _REMEDY)


def fingerprint_of(report: Mapping[str, Any], folder: Workdir, known: str) -> str:
    """The fingerprint of the data of a run; a run on other data than before is removed.

    Args:
        report: Of the run.
        folder: Its workdir.
        known: Fingerprint of the runs before; empty if there are none.

    Raises:
        InputError: The data have changed.
    """
    learned = str(report["dataset"]["fingerprint"])
    if known not in ("", learned):
        folder.path.rmtree()
        source.check_same_data(str(folder.path), known, learned, _REMEDY)
    return learned
