"""Worker of bde.py, for its peers: trains one on a split's training rows, prints a line of JSON.

    python benchmarks/bde_work.py METHOD SPLIT.npz SEED

The file has `train_inputs` [N, F], `train_targets` [N], `test_inputs` [T, F] and `test_targets`
[T], standardised on the training rows. `bde_N` is the library bde with the settings of its
published table (`paper/scripts/benchmark.py` of its repository) but for the steps: N - 1,000 of
tuning and 1,000 of sampling, of which every tenth is kept. It runs in an environment of its own,
with one XLA device for each core, as its table did.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping

import numpy as np
from tables_data import Split, fit_line

HELD_OUT = 0.1
NUM_SAMPLES = 1000


def mixture_scores(means: np.ndarray, sds: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Scores of equally weighted mixtures of normal distributions.

    Args:
        means: [K, T].
        sds: [K, T].
        targets: [T].

    Returns:
        RMSE of the mixture's mean; NLL of a normal distribution with its two moments, and its own.
    """
    mean = means.mean(axis=0)
    variance = (sds**2).mean(axis=0) + means.var(axis=0)
    log_densities = -0.5 * np.log(2 * np.pi * sds**2) - (targets - means) ** 2 / (2 * sds**2)
    log_mixture = np.logaddexp.reduce(log_densities, axis=0) - np.log(len(means))
    by_moments = 0.5 * np.log(2 * np.pi * variance) + (targets - mean) ** 2 / (2 * variance)
    return {
        "rmse": float(np.sqrt(np.mean((targets - mean) ** 2))),
        "nll_by_moments": float(by_moments.mean()),
        "nll": float(-log_mixture.mean()),
    }


def least_squares(data: Split, _: int) -> dict[str, float]:
    """A line, and the standard deviation of the training rows around it."""
    mean, sd = fit_line(data)
    return mixture_scores(mean[None], sd[None], data.test_targets)


def hist_gradient_boosting(data: Split, seed: int) -> dict[str, float]:
    """scikit-learn's at its default settings, with one standard deviation for all rows.

    That is the root mean square error on a tenth of the training rows, of trees that have not
    learned from them. The mean is that of trees that have learned from all.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.model_selection import train_test_split

    def fitted(inputs: np.ndarray, targets: np.ndarray) -> HistGradientBoostingRegressor:
        return HistGradientBoostingRegressor(random_state=seed).fit(inputs, targets)

    inputs, targets = data.train_inputs, data.train_targets
    train, held_out, train_targets, held_out_targets = train_test_split(
        inputs, targets, test_size=HELD_OUT, random_state=seed
    )
    errors = held_out_targets - fitted(train, train_targets).predict(held_out)
    mean = fitted(inputs, targets).predict(data.test_inputs)
    sd = np.full_like(mean, np.sqrt(np.mean(errors**2)))
    return mixture_scores(mean[None], sd[None], data.test_targets)


def bde(data: Split, seed: int, num_steps: int) -> dict[str, float]:
    """The library bde after so many steps of each of ten chains."""
    num_cores = len(os.sched_getaffinity(0))
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={num_cores}"
    del sys.path[0]  # This folder's own bde.py would hide the library.
    from bde import BdeRegressor  # type: ignore[attr-defined]
    from bde.loss import GaussianNLL

    regressor = BdeRegressor(
        n_members=10,
        hidden_layers=[16, 16, 16, 16],
        loss=GaussianNLL(),
        epochs=1200,
        validation_split=0.15,
        lr=1e-3,
        weight_decay=1e-4,
        warmup_steps=num_steps - NUM_SAMPLES,
        n_samples=NUM_SAMPLES,
        n_thinning=10,
        patience=20,
        seed=seed,
    )
    start = time.perf_counter()
    regressor.fit(x=data.train_inputs, y=data.train_targets)
    seconds = time.perf_counter() - start
    raw = np.asarray(regressor.predict(data.test_inputs, raw=True), np.float64)  # [E, T, N, 2]
    raw = raw.reshape(-1, *raw.shape[2:])
    sds = np.logaddexp(0, raw[..., 1]) + 1e-6  # As bde makes them of its second output.
    scores = mixture_scores(raw[..., 0], sds, data.test_targets)
    return scores | {"fit_seconds": seconds}


METHODS: Mapping[str, Callable[[Split, int], dict[str, float]]] = {
    "least_squares": least_squares,
    "hist_gradient_boosting": hist_gradient_boosting,
    "bde_5000": lambda data, seed: bde(data, seed, 5_000),
    "bde_51000": lambda data, seed: bde(data, seed, 51_000),
}


if __name__ == "__main__":
    method, path, seed = sys.argv[1:]
    with np.load(path) as file:
        data = Split(**file)
    print(json.dumps(METHODS[method](data, int(seed))))
