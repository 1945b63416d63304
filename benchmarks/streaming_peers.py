"""Worker of streaming: tf.data, or PyTorch's DataLoader. Both get a reader of whole batches.

python benchmarks/streaming_peers.py tf|torch FOLDER
"""

import itertools
import json
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import rates
from array_record.python.array_record_data_source import ArrayRecordDataSource

BATCH_SIZE = 128
SECONDS = 6.0
SHAPE = (64, 64, 3)


class Records:
    """The pictures of a folder, by their indices; each process opens the files itself.

    Args:
        folder: of records.
    """

    def __init__(self, folder: str):
        self._files = sorted(map(str, pathlib.Path(folder).glob("*.array_record")))
        self._source: Any = None
        self._length = len(ArrayRecordDataSource(self._files))

    def __len__(self) -> int:
        return self._length

    def __getitems__(self, indices: Sequence[int]) -> np.ndarray:
        """Pictures uint8 [n, 64, 64, 3]."""
        # As it reads at random by default.
        self._source = self._source or ArrayRecordDataSource(self._files)
        whole = b"".join(self._source.__getitems__([int(index) for index in indices]))
        return np.frombuffer(bytearray(whole), np.uint8).reshape(-1, *SHAPE)


def read_by_tf(records: Records) -> Iterable[Any]:
    """Shuffled batches, without end."""
    import tensorflow as tf

    def read(indices: Any) -> Any:
        batch = tf.numpy_function(records.__getitems__, [indices], tf.uint8, stateful=False)
        return tf.ensure_shape(batch, (None, *SHAPE))

    dataset = (
        tf.data.Dataset.range(len(records))
        .shuffle(len(records), seed=0)
        .repeat()
        .batch(BATCH_SIZE, drop_remainder=True)
        .map(read, num_parallel_calls=tf.data.AUTOTUNE)
        .prefetch(tf.data.AUTOTUNE)
    )
    return dataset.as_numpy_iterator()


def read_by_torch(records: Records) -> Iterable[Any]:
    """Shuffled batches, without end."""
    import torch

    loader = torch.utils.data.DataLoader(
        records,  # type: ignore[arg-type]  # Batches are asked for.
        BATCH_SIZE,
        shuffle=True,
        num_workers=2,
        prefetch_factor=8,
        collate_fn=torch.from_numpy,
        persistent_workers=True,
    )
    return itertools.chain.from_iterable(itertools.repeat(loader))


if __name__ == "__main__":
    name, folder = sys.argv[1:]
    batches = iter({"tf": read_by_tf, "torch": read_by_torch}[name](Records(folder)))
    next(batches)  # Workers have started.
    print(json.dumps(rates.measure(lambda: len(next(batches)), SECONDS)))
