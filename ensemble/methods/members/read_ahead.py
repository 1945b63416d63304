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


class _Coming(NamedTuple):
    step: int
    read: concurrent.futures.Future[list[Part]]
    place: int  # Of the step among those that are read with it.


class ReadAhead:
    """Reads steps in their order before they are asked for, several at once.

    To begin to read a shard costs as much as some records of it.

    Args:
        read: given a step and a number, reads so many steps from that one.
        depth: steps to have read, or to be reading, at least 1.
        end: the first step that is none any more.

    Attributes:
        seconds_waited: how long it was waited for steps that were not read yet.
    """

    def __init__(self, read: Callable[[int, int], list[Part]], depth: int, end: int):
        self._read, self._depth, self._end = read, depth, end
        self._at_once = max(1, depth // 4)
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "read_ahead")
        self._next: collections.deque[_Coming] = collections.deque()
        self.seconds_waited = 0.0

    def get(self, step: int) -> Part:
        """Returns a step, and has those after it read.

        Raises:
            UserError: it cannot be read, or one of those that are read with it.
        """
        while self._next and self._next[0].step != step:  # A run goes on elsewhere.
            self._next.popleft().read.cancel()
        first = self._next[-1].step + 1 if self._next else step
        while first < self._end and first + self._at_once <= step + 1 + self._depth:
            end = min(first + self._at_once, self._end)
            read = self._pool.submit(self._read, first, end - first)
            self._next.extend(_Coming(one, read, one - first) for one in range(first, end))
            first = end
        began = time.perf_counter()
        coming = self._next.popleft()
        found = coming.read.result()[coming.place]
        self.seconds_waited += time.perf_counter() - began
        return found
