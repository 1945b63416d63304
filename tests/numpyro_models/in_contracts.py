"""What tests of every method need of this application."""

UNUSED = {
    "ensemble.numpyro_models.model": True,
}
"""Modules that a run on digits has no use for."""
