"""What tests of every source, task and method need of this application; it imports no JAX."""

import numpy as np

RUN = {
    "model": "matrix_factorisation",
    "method": "hmc",
    "dataset": "watches:20x15",
    "num_factors": 2,
    "num_chains": 2,
}
TASKS = {"factorisation": RUN}
"""Configurations of its tasks, whose name is `RUN`'s."""
OF_TASKS = {
    "factorisation": {
        **{key: RUN[key] for key in ("model", "dataset", "num_factors")},
        "prior": None,
    }
}
"""What a task sets beside the line of its method; None: what it leaves out of that."""


def _ratings(config):
    def write(folder):
        from recommendation import movielens_sets  # It imports TFDS, and that JAX.

        movielens_sets.write_ratings(folder, movielens_sets.random_ratings(), config)
        return f"movielens/{config}"

    return write


def _own(folder):
    pairs = [f"{i},{(i + step) % 8}\n" for i in range(9) for step in range(1 + i % 5)]
    (folder / "r.csv").write_text("user,item\n" + "".join(pairs))
    return f"ratings:{folder / 'r.csv'}"


SOURCES = {
    "ratings:FILE": _own,
    "movielens/1m-ratings": _ratings("1m-ratings"),
    "movielens/100k-ratings": _ratings("100k-ratings"),
    "watches:USERSxMOVIES": lambda folder: "watches:20x30",
}
"""Writes what a source reads to a folder; returns the data set's name."""


def _watches(part, hmc):
    return {
        **hmc,
        "dataset": "watches:41x17",
        "model": "matrix_factorisation",
        "num_factors": 3,
        "num_chains": 2,
    }


NETWORKS = {"matrix_factorisation": "of pairs"}
"""Those that are not of images."""
RUNS_BY_PART = {"watches": _watches}
"""Runs of several processes, for `many_processes.py`."""
RESUMED = {"watches": True}
"""Those that go on, on other devices."""


def _golden(sampler):
    return {
        **sampler,
        "dataset": "watches:41x17",
        "model": "matrix_factorisation",
        "num_factors": 3,
        "num_chains": 2,
        "method": "hmc",
    }


GOLDEN = {"factorisation": _golden}
"""Runs whose results stay as they are."""
GOLDEN_WORKDIRS = {"factorisation": {"sampler.num_samples": 20}}
"""What differs in the workdirs of earlier versions."""
LONGER = {"factorisation": {"sampler.num_samples": 30}}
"""What lets these go on."""
INPUTS = {"factorisation": np.array([[0, 0], [3, 16], [40, 5]], np.int32)}
"""What their predictors are asked about."""
PRINTED = {"movielens_hmc": "docs/recommendation.md"}
"""Pages by the configuration whose table they print."""
BELONGS = (
    "recommend.py",
    "ensemble/configs/movielens_hmc.py",
    "docs/recommendation.md",
    "benchmarks/movielens_gradient.py",
    "benchmarks/results/movielens_gradient.json",
    "benchmarks/ratings_run.py",
    "benchmarks/results/ratings_run.json",
)
"""What else is of this application alone."""
UNUSED = {
    "ensemble.recommendation.matrix_factorisation": True,
    "ensemble.recommendation.plots": True,
    "ensemble.recommendation.watch_task": True,
}
"""Modules that a run on digits has no use for."""
