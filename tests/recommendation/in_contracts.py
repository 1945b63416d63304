"""What tests of every source, task and method need of this application."""

from recommendation import movielens_sets

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
        movielens_sets.write_ratings(folder, movielens_sets.random_ratings(), config)
        return f"movielens/{config}"

    return write


SOURCES = {
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
