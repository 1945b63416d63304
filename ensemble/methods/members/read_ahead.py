"""Reads the examples of coming steps in a thread, while devices work on those before."""

import collections
import concurrent.futures
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Part(NamedTuple):
    """What the members see in some steps, on the host.

    Attributes:
        examples: numbers of the training examples, [K, B], or [M, K, B] if batches are independent.
        mask: float32, the same shape: 0 where an example only fills up a batch.
        inputs: [..., *input_shape].
        targets: [...].
    """

    examples: np.ndarray
    mask: np.ndarray
    inputs: np.ndarray
    targets: np.ndarray


class ReadAhead:
    """Reads steps in their order before they are asked for.

    Args:
        read: reads one step.
        depth: steps to have read, or to be reading, at least 1.
        end: the first step that is none any more.

    Attributes:
        seconds_waited: how long it was waited for steps that were not read yet.
    """

    def __init__(self, read: Callable[[int], Part], depth: int, end: int):
        self._read, self._depth, self._end = read, depth, end
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "read_ahead")
        self._next: collections.deque[tuple[int, concurrent.futures.Future[Part]]]
        self._next = collections.deque()
        self.seconds_waited = 0.0

    def get(self, step: int) -> Part:
        """Returns a step, and has those after it read.

        Raises:
            UserError: it cannot be read.
        """
        while self._next and self._next[0][0] != step:  # A run goes on elsewhere.
            self._next.popleft()[1].cancel()
        last = self._next[-1][0] if self._next else step - 1
        for coming in range(last + 1, min(step + 1 + self._depth, self._end)):
            self._next.append((coming, self._pool.submit(self._read, coming)))
        began = time.perf_counter()
        found = self._next.popleft()[1].result()
        self.seconds_waited += time.perf_counter() - began
        return found
