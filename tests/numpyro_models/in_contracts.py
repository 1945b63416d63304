"""What tests of every method need of this application."""

UNUSED = {
    "ensemble.numpyro_models.model_task": True,
}
"""Modules that a run on digits has no use for."""
