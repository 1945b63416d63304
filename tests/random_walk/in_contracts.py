"""What tests of every method and task need of this application."""

UNUSED = {
    "ensemble.walks.walker": True,
    "ensemble.walks.densities": True,
}
"""Modules that a run on digits has no use for."""
