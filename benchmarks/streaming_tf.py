"""Worker of streaming.py: tf.data.

python benchmarks/streaming_tf.py FOLDER
"""

import json
import sys
import time

import tensorflow as tf
from streaming_records import BATCH_SIZE, SECONDS, SHAPE, Records


def measure(folder: str) -> dict[str, float]:
    """Reads shuffled batches for some seconds."""
    records = Records(folder)

    def read(indices: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(
            tf.numpy_function(records.batch, [indices], tf.uint8, stateful=False), (None, *SHAPE)
        )

    dataset = (
        tf.data.Dataset.range(len(records))
        .shuffle(len(records), seed=0)
        .repeat()
        .batch(BATCH_SIZE, drop_remainder=True)
        .map(read, num_parallel_calls=tf.data.AUTOTUNE)
        .prefetch(tf.data.AUTOTUNE)
    )
    count, began = 0, None
    for batch in dataset.as_numpy_iterator():
        if began is None:
            began = time.perf_counter()
            continue
        count += len(batch)
        elapsed = time.perf_counter() - began
        if elapsed > SECONDS:
            break
    return {"rate": count / elapsed}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
