"""What tests of every method and task need of this application."""

UNUSED = {
    "ensemble.random_walk.walker": True,
    "ensemble.random_walk.densities": True,
}
"""Modules that a run on digits has no use for."""
