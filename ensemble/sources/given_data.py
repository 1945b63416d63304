"""A user's own examples, checked, before splits are carved: in memory or on disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ensemble.source import Stored
from ensemble.sources.copies import digest_examples


class Summary(NamedTuple):
    """What is known of the inputs of a part without reading them.

    Attributes:
        digests: uint64 [N], by `copies.digest_examples`.
        low: [N], the least value of each example.
        high: [N], the largest.
    """

    digests: NDArray[np.uint64]
    low: np.ndarray
    high: np.ndarray

    def at(self, rows: np.ndarray | None) -> Summary:
        """Those of some rows; None: of all."""
        return self if rows is None else Summary(*(column[rows] for column in self))


class OwnData(NamedTuple):
    """Checked arrays.

    Attributes:
        inputs: of each given split, or of `POOL` alone where no split is given: `[N, F]` or
            `[N, H, W, C]`, of the type in which they were given.
        targets: of the same, int32 `[N]` of classes, else float32 `[N]` or `[N, D]`, or rows of
            `ensemble.target_rows`.
        input_dtype: uint8 or float32, which `convert` brings inputs to.
        class_names: one name per class; None where targets are real numbers.
        weights: float32 `[N]`, how much each example of the pool or of `train` counts in the loss;
            None: all the same.
        known: of the parts, where it is known without reading inputs.
    """

    inputs: Mapping[str, Stored]
    targets: dict[str, np.ndarray]
    input_dtype: np.dtype
    class_names: tuple[str, ...] | None
    weights: np.ndarray | None = None
    known: Mapping[str, Summary] | None = None

    def convert(self, inputs: np.ndarray) -> np.ndarray:
        """Brings inputs to the type in which they are kept."""
        return inputs.astype(self.input_dtype, copy=False)

    def train_weights(self, rows: np.ndarray | None) -> np.ndarray | None:
        """Weights of the training examples, which are these rows of `weights`, None: all."""
        return self.weights if self.weights is None or rows is None else self.weights[rows]

    def digests(self, part: str) -> NDArray[np.uint64]:
        """Digests [N] of a part's inputs: equal ones are of equal inputs."""
        if self.known is not None:
            return self.known[part].digests
        return digest_examples(self.inputs[part], self.input_dtype)
