"""Searches and comparisons go on with the data that they began with."""

from collections.abc import Mapping
from typing import Any

from ensemble.config_rules import validate
from ensemble.errors import UserError
from ensemble.search.budget import quiet
from ensemble.sources.catalogue import complete
from ensemble.storage.workdir import Workdir
from ensemble.tasks.learning_data import load_source


def check_same_data(
    what: str, out: Workdir, config: Mapping[str, Any], fingerprint: str, data: Any
) -> None:
    """Refuses to go on with other data, before any of them are learned.

    Args:
        what: is in the workdir: "search" or "comparison".
        out: the workdir.
        config: of its runs, flat.
        fingerprint: of the data that it began with; empty if no run has ended yet.
        data: as of `ensemble.train`.

    Raises:
        UserError: as said, or the data cannot be had.
    """
    if not fingerprint:
        return
    given, said = complete(config, data)
    with quiet():
        source = load_source(validate(said), given)
    if source.fingerprint != fingerprint:
        raise UserError(
            f"{out.path} holds a {what} on other data than {source.name} has now; restore the "
            "data, or choose another --workdir"
        )
