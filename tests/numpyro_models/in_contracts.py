"""What tests of every method need of this application."""

import pathlib

MODEL = f"numpyro:{pathlib.Path(__file__).with_name('small_model.py')}:schools"
OF_TASKS = {"numpyro": {"model": MODEL, "init_from": "uniform", "prior": None}}
RUNS = {
    "numpyro_model": {
        "method": "hmc",
        "model": MODEL,
        "init_from": "uniform",
        "num_chains": 4,
        "log_every_steps": 4,
        "eval_every_epochs": 1,
        "sampler.mass": "low_rank",
        "sampler.step_size": 0.1,
        "sampler.num_leapfrog_steps": 4,
        "sampler.thin": 1,
        "sampler.num_warmup": 20,
        "sampler.num_samples": 20,
    }
}
"""Runs of several processes, beside those of the methods."""
BELONGS = (
    "requirements-numpyro.txt",
    "ensemble/configs/numpyro_nuts.py",
    "docs/distributed_inference.md",
    "docs/numpyro.md",
    "docs/worked_models.md",
    "benchmarks/numpyro_nuts.py",
    "benchmarks/posteriordb.py",
    "benchmarks/posteriordb_page.py",
    "benchmarks/results/numpyro_nuts.json",
    "benchmarks/results/posteriordb.csv",
    "benchmarks/results/posteriordb.json",
)
"""What else is of this application alone."""
UNUSED = {
    "ensemble.numpyro_models.model_task": True,
}
"""Modules that a run on digits has no use for."""
