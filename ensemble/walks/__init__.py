"""Random walks: very many chains on a density, of which only sums are kept."""

from ensemble.applications import Application
from ensemble.entries import MethodEntry, TaskEntry


def join() -> Application:
    """Describes the application."""
    return Application(
        tenants={
            "method": {
                "rwm": MethodEntry(
                    "ensemble.walks.random_walk:RandomWalk",
                    "ensemble.walks.walk_keys:BLOCK",
                    tasks=("density",),
                )
            },
            "task": {
                "density": TaskEntry(
                    "ensemble.walks.target:create",
                    "ensemble.walks.density_keys:BLOCK",
                    why_not_evaluated="has sampled a density, which predicts nothing; its moments "
                    "are in report.json",
                )
            },
        },
        modules={"densities": "ensemble.walks.densities"},
        section="ensemble.walks.section:SECTION",
    )
