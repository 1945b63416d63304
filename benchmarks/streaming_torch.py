"""Worker of streaming.py: PyTorch's DataLoader.

python benchmarks/streaming_torch.py FOLDER
"""

import json
import sys
import time

import torch
from streaming_records import BATCH_SIZE, SECONDS, Records


class Pictures(torch.utils.data.Dataset):
    """Batches of pictures; a worker opens the files itself."""

    def __init__(self, folder: str):
        self._folder = folder
        self._records: Records | None = None
        self._length = len(Records(folder))

    def __len__(self) -> int:
        return self._length

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        self._records = self._records or Records(self._folder)
        return torch.from_numpy(self._records.batch(indices))


def measure(folder: str) -> dict[str, float]:
    """Reads shuffled batches for some seconds."""
    loader = torch.utils.data.DataLoader(
        Pictures(folder),
        BATCH_SIZE,
        shuffle=True,
        num_workers=2,
        prefetch_factor=8,
        collate_fn=lambda batch: batch,
        persistent_workers=True,
    )
    count, began = 0, None
    while True:
        for batch in loader:
            if began is None:  # Workers have started.
                began = time.perf_counter()
                continue
            count += len(batch)
            elapsed = time.perf_counter() - began
            if elapsed > SECONDS:
                return {"rate": count / elapsed}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
