"""Models of NumPyro, and log densities of a program, that samplers take as they are."""

from ensemble.applications import Application
from ensemble.entries import TaskEntry


def join() -> Application:
    """Describes the application."""
    return Application(
        tenants={
            "task": {
                "numpyro": TaskEntry(
                    "ensemble.numpyro_models.sample:create_task",
                    "ensemble.numpyro_models.model_keys:BLOCK",
                    models=("numpyro:FILE.py:NAME", "logdensity:NAME"),
                    methods=("hmc", "nuts", "mclmc", "adjusted_mclmc", "tempering"),
                    why_not_evaluated="has sampled a model, which predicts no test split; its "
                    "draws are in posterior.nc, for ArviZ",
                )
            }
        },
        public={"sample": "ensemble.numpyro_models.sample"},
        section="ensemble.numpyro_models.section:SECTION",
    )
