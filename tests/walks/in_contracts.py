"""What tests of every method and task need of this application."""

import numpy as np

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


def _golden(sampler):
    return {
        "num_chains": 200,
        "log_every_steps": 50,
        "rwm.num_warmup": 96,
        "rwm.num_samples": 50,
        "method": "rwm",
    }


def _moments(report):
    names = "mean", "variance", "mcse_mean", "mcse_variance", "ess"
    return {name: np.asarray(report["posterior"][name]) for name in names}


GOLDEN = {"rwm": _golden}
"""Runs whose results stay as they are."""
OUTCOMES = {"rwm": _moments}
"""What stays as it is, by method."""
LONGER = {"rwm": {"rwm.num_samples": 100}}
"""What lets workdirs of earlier versions go on."""
PRINTED = {"mixture_rwm": "docs/random_walks.md"}
"""Pages by the configuration whose table they print."""
BELONGS = (
    "ensemble/configs/mixture_rwm.py",
    "docs/random_walks.md",
    "benchmarks/rwm.py",
    "simulations/walks.py",
    "benchmarks/rwm_peers.py",
    "benchmarks/results/rwm.json",
)
"""What else is of this application alone."""
UNUSED = {
    "ensemble.walks.walker": True,
    "ensemble.walks.densities": True,
}
"""Modules that a run on digits has no use for."""
