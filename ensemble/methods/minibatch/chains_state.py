"""The state of chains that an engine moves, and what a chunk of their steps tells."""

from typing import NamedTuple

import numpy as np

from ensemble.methods.members.engine import ChunkInfo as StepsInfo
from ensemble.methods.members.engine import EngineState
from ensemble.methods.minibatch.draw_record import Draw


class ChainsState(NamedTuple):
    """Everything the next chunk needs.

    Attributes:
        members: the chains, as the engine has them.
        energy: [2, C] float64, sum and number of the losses of the steps since the last draw.
        counted: [2, C], the part of the engine's own sums that is in `energy` already.
        pending: draws that have not been reported.
    """

    members: EngineState
    energy: np.ndarray
    counted: np.ndarray
    pending: tuple[Draw, ...] = ()

    @property
    def step(self) -> int:
        """Steps that the chains have taken."""
        return self.members.step


class ChunkInfo(NamedTuple):
    """The diagnostics of one chunk.

    Attributes:
        steps: the engine's, of its last steps, with the metrics of all since the last report.
        first: step before the chunk.
        compiles: whether it has the first draw of this process.
        draws: since the last report; none where the chunk is cut.
    """

    steps: StepsInfo
    first: int
    compiles: bool
    draws: tuple[Draw, ...]

    @property
    def step(self) -> int:
        """The step after the chunk."""
        return self.steps.step

    @property
    def is_cut(self) -> bool:
        """Whether a limit ended it."""
        return self.steps.is_cut
