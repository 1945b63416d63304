"""What tests of every method and task need of this application."""

TASKS = {"density": {"method": "rwm", "density": "correlated_gaussian"}}
OF_TASKS = {"density": {"density": "correlated_gaussian"}}
METHODS = {
    "rwm": {
        "method": "rwm",
        "num_chains": 64,
        "num_devices": 2,
        "log_every_steps": 64,
        "rwm.num_warmup": 64,
        "rwm.num_samples": 128,
    }
}
"""A few steps of a method that learns no targets."""
SMALL = {
    "density": {
        "log_every_steps": 64,
        "num_chains": 64,
        "rwm.num_warmup": 96,
        "rwm.num_samples": 256,
    }
}
"""Runs of several processes, by task."""


def _walk(part, hmc):
    return {
        "method": "rwm",
        "num_chains": 200,
        "log_every_steps": 100,
        "rwm.num_warmup": 96,
        "rwm.num_samples": 200 * part,
    }


RUNS_BY_PART = {"rwm": _walk}
"""The same, for `many_processes.py`."""
