"""Real members: small networks that this program trained alike, once for all simulations.

They lie in the system's temporary folder. Members of an ensemble are drawn from them without
replacement, examples with replacement: the examples that did not train them are the population.
"""

import functools
import os
import pathlib
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ensemble

NUM_MEMBERS, NUM_TRAINED, NUM_EPOCHS = 64, 400, 10
Arrays = dict[str, NDArray]


@functools.cache
def digits() -> Arrays:
    """Classes of scikit-learn's digits: `log_probs` [64, N, 10] and `targets` [N]."""
    return _kept("digits", {}, _digits)


@functools.cache
def friedman() -> Arrays:
    """Numbers of Friedman's first function of ten inputs: `loc` and `scale` [64, N], `targets`."""
    return _kept("friedman", {"likelihood": "gaussian"}, _friedman)


def _kept(name: str, config: Mapping[str, Any], data: Callable[[], tuple]) -> Arrays:
    path = pathlib.Path(tempfile.gettempdir()) / f"ensemble-{name}-{NUM_MEMBERS}.npz"
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}.npz")  # Another process may write it, too.
        np.savez(part, **_train(config, *data()))  # type: ignore[arg-type]
        part.replace(path)
    with np.load(path) as stored:
        return dict(stored)


def _train(config: Mapping[str, Any], inputs: NDArray, targets: NDArray) -> Arrays:
    name = "labels" if targets.dtype == np.int32 else "targets"
    data = {
        f"{split}_{what}": one[rows]
        for split, rows in (("train", slice(NUM_TRAINED)), ("test", slice(NUM_TRAINED, None)))
        for what, one in (("inputs", inputs), (name, targets))
    }
    chosen = {
        "model": "mlp",
        "ensemble_size": NUM_MEMBERS,
        "num_epochs": NUM_EPOCHS,
        "early_stopping_epochs": 0,
        **config,
    }
    trained = ensemble.train(chosen, data, show_progress=False)
    arrays = trained.predictor.member_arrays(data["test_inputs"])
    return {
        **{key: np.asarray(one, np.float64) for key, one in arrays.items()},
        "targets": data[f"test_{name}"],
    }


def _digits() -> tuple[NDArray, NDArray]:
    from sklearn.datasets import load_digits  # Two seconds to import, and seldom needed.

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    return (found.data[order] / 16).astype(np.float32), found.target[order].astype(np.int32)


def _friedman() -> tuple[NDArray, NDArray]:
    from sklearn.datasets import make_friedman1  # As above.

    inputs, targets = make_friedman1(NUM_TRAINED + 2000, noise=1.0, random_state=0)
    return inputs.astype(np.float32), targets.astype(np.float32)


def draw_pair(rng: np.random.Generator, members: tuple[int, int]) -> list[NDArray]:
    """Numbers of the members of two ensembles, all different."""
    chosen = rng.choice(NUM_MEMBERS, sum(members), replace=False)
    return np.split(chosen, [members[0]])


def predicted(
    rng: np.random.Generator, pool: Arrays, pair: list[NDArray], num_examples: int | None
) -> list[Arrays]:
    """What two ensembles predict of the same examples, or of all that there are, with targets."""
    rows: Any = slice(None)
    if num_examples is not None:
        rows = rng.integers(len(pool["targets"]), size=num_examples)
    return [
        {
            name: one[rows] if name == "targets" else one[chosen][:, rows]
            for name, one in pool.items()
        }
        for chosen in pair
    ]
