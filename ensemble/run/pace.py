"""How many steps a chunk may have, so that the loop can stop, and tell how far it is, in time."""

import time

CHUNK_SECONDS = 8.0
"""That a chunk should take at most: a second one may be in line when a run is asked to stop."""


class Pace:
    """Chooses a limit for the next chunk from how long the last ones took.

    The first chunk is of one step, and so is the one after it, since the first compiles. From then
    on the limit may double with each chunk, so that a few quick steps do not vouch for many.

    Attributes:
        limit: steps that the next chunk may have.
        seconds_per_step: of the last chunk; None before one was measured.
    """

    def __init__(self) -> None:
        self.limit = 1
        self.seconds_per_step: float | None = None
        self._since = time.monotonic()

    def resume(self) -> None:
        """Starts or restarts the measurement after other work, with nothing left on the devices."""
        self._since = time.monotonic()

    def chunk_done(self, num_steps: int, compiles: bool) -> None:
        """Notes that a chunk has just ended.

        Args:
            num_steps: that it had.
            compiles: whether its time says nothing of steps.
        """
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        if compiles or not num_steps:
            return
        self.seconds_per_step = max(seconds, 1e-9) / num_steps
        self.limit = max(1, min(2 * self.limit, int(CHUNK_SECONDS / self.seconds_per_step)))
