"""What tests of every source, task and method need of this application; it imports no JAX."""

RUN = {
    "model": "matrix_factorisation",
    "method": "hmc",
    "dataset": "watches:20x15",
    "num_factors": 2,
    "num_chains": 2,
}
UNUSED = {
    "ensemble.recommendation.factorisation": True,
    "ensemble.recommendation.dataset": True,
}
"""Modules that a run on digits has no use for."""
