"""How the draws of chains go to disk."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ensemble.draws.store import Draws
from ensemble.methods.mcmc.state import Trace


def append_draws(
    draws: Draws,
    first: int,
    trace: Trace,
    positions: Any,
    numbers: np.ndarray,
    tracked: Sequence[str],
) -> None:
    """Appends draws to those on disk.

    Args:
        draws: on disk.
        first: number of the first draw.
        trace: [T, C], on the host.
        positions: parameters [K, C, ...] of the draws that are kept.
        numbers: [K] of these.
        tracked: names of the scalars `trace.log_probs`.
    """
    trace, positions = jax.tree.map(lambda leaf: np.moveaxis(leaf, 0, 1), (trace, positions))
    values = dict(zip(tracked, np.moveaxis(np.asarray(trace.log_probs), -1, 0), strict=True))
    scalars = {**trace.info._asdict(), **trace.scores, **values}
    end = first + trace.info.log_density.shape[1]
    draws.append(first, end, scalars, positions, numbers)
