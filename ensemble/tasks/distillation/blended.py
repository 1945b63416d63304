"""Training examples, and blends of two of them: where else a teacher is asked what it predicts.

A blend is a weighted mean of the inputs of two examples (Beyer et al. 2022, arXiv:2106.05237, after
Zhang et al. 2018, arXiv:1710.09412). It lies off the points that a teacher has learned from, where
its members differ, and needs no label.
"""

import functools
from collections.abc import Mapping

import numpy as np

from ensemble.source import Examples, Source
from ensemble.sources.batches import BLEND_STREAM, seeded_generator


class Blended(Source):
    """A source with more training examples; the other splits are as they were.

    Args:
        source: of N training examples, which come first.
        num_blends: for each of them, with a partner and a weight that the seed gives.
        seed: of the run.
    """

    def __init__(self, source: Source, num_blends: int, seed: int):
        self.name, self.class_names = source.name, source.class_names
        self.shift, self.scale, self.squash = source.shift, source.scale, source.squash
        self.quantiles, self.table = source.quantiles, source.table
        self.reads_ahead = source.reads_ahead
        self._source, num_examples = source, source.sizes["train"]
        generator = seeded_generator(BLEND_STREAM, seed)
        whole = [np.arange(num_examples)]
        partners = [generator.permutation(num_examples) for _ in range(num_blends)]
        self._partners = np.concatenate(whole + partners)
        weights = generator.uniform(size=num_blends * num_examples)
        self._weights = np.concatenate([np.ones(num_examples), weights]).astype(np.float32)
        if source.train_weights is not None:
            self.train_weights = np.resize(source.train_weights, len(self._weights))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example's inputs."""
        return self._source.input_shape

    @property
    def input_dtype(self) -> np.dtype:
        """The type of inputs: blends of whole numbers are rounded."""
        return self._source.input_dtype

    @property
    def target_dtype(self) -> np.dtype:
        """The type of targets."""
        return self._source.target_dtype

    @functools.cached_property
    def sizes(self) -> Mapping[str, int]:
        """Examples of each split, blends among them."""
        return {**self._source.sizes, "train": len(self._weights)}

    def read(self, split: str, indices: np.ndarray | slice) -> Examples:
        """Reads examples; the target of a blend is that of its first part."""
        if split != "train":
            return self._source.read(split, indices)
        if isinstance(indices, slice):
            indices = np.arange(self.sizes["train"])[indices]
        first, targets = self._source.read(split, indices % self._source.sizes["train"])
        second = self._source.read(split, self._partners[indices]).inputs
        weights = self._weights[indices].reshape(indices.shape + (1,) * len(self.input_shape))
        blends = weights * first + (1 - weights) * second
        if self.input_dtype.kind in "ui":
            blends = np.round(blends)
        return Examples(blends.astype(self.input_dtype), targets)

    def targets(self, split: str) -> np.ndarray:
        """All targets [N] of a split."""
        targets = self._source.targets(split)
        return targets[np.arange(self.sizes[split]) % len(targets)]

    @functools.cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the examples which are blended."""
        return self._source.fingerprint

    @functools.cached_property
    def test_fingerprint(self) -> str | None:
        """The fingerprint of the test split."""
        return self._source.test_fingerprint
