"""Animals in so many pools, by height above low water and area; some pools are dry."""

import numpy as np

from ensemble.sources.dataset import dataset_from_arrays


def load_pools(name, request):
    rng, number = np.random.default_rng(0), int(name.removeprefix("pools:"))
    inputs = rng.uniform(-1, 1, (number, 2)).astype(np.float32)
    counts = rng.poisson(np.exp(1 + np.sin(3 * inputs[:, 0]) + inputs[:, 1]))
    is_dry = rng.uniform(size=number) < 0.3
    arrays = {"inputs": inputs, "targets": np.where(is_dry, 0, counts).astype(np.float32)}
    return dataset_from_arrays(arrays, name, request.seed, request.hold_out)
