"""A stream: examples are made when they are read, of any number, and none is kept."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from ensemble.sources import Examples, Source


@dataclasses.dataclass(frozen=True, eq=False)
class Waves(Source):
    """Noisy values of a sine; example k of a split is a function of k."""

    count: int
    name: str = "waves"
    class_names: tuple[str, ...] | None = None
    shift: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((), np.float32))
    scale: np.ndarray = dataclasses.field(default_factory=lambda: np.ones((), np.float32))
    input_shape = (1,)
    input_dtype = np.dtype(np.float32)
    target_dtype = np.dtype(np.float32)

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"train": self.count, "test": self.count // 10}

    def read(self, split: str, indices: np.ndarray | slice) -> Examples:
        if isinstance(indices, slice):
            indices = np.arange(*indices.indices(self.sizes[split]))
        places = (indices * 0.618034 + (split == "test") * 0.5) % 1
        inputs = (6.0 * places - 3.0).astype(np.float32)
        noise = np.sin(1e4 * places).astype(np.float32)
        return Examples(inputs[..., None], np.sin(inputs) + 0.1 * noise)

    def targets(self, split: str) -> np.ndarray:
        return self.read(split, slice(None)).targets
