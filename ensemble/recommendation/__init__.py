"""Who watches what, or rates what how: a matrix factorisation, and what it recommends."""

import dataclasses

from ensemble.applications import Application, Command
from ensemble.entries import NetworkEntry, SourceEntry, TaskEntry

_FACTORISATION = TaskEntry(
    "ensemble.recommendation.watch_task:create",
    "ensemble.recommendation.keys:BLOCK",
    "ensemble.recommendation.watch_task:restore",
    models=("matrix_factorisation",),
    methods=("hmc", "nuts"),
    why_not_evaluated="has learned who watches what or rates it how, and evaluations are of "
    "predictions; its scores are in report.json, and `ensemble recommend` recommends",
    given="ensemble.recommendation.datasets:given_interactions",
)
_RATINGS = SourceEntry(
    "ensemble.recommendation.datasets:load_ratings", models=_FACTORISATION.models
)
_GENERATED = SourceEntry(
    "ensemble.recommendation.datasets:load_generated", models=_FACTORISATION.models
)


def _movielens(file: str) -> SourceEntry:
    return dataclasses.replace(
        _RATINGS,
        page=f"https://files.grouplens.org/datasets/movielens/{file}",
        instead="config.dataset=watches:1000x600",
    )


def join() -> Application:
    """Describes the application."""
    return Application(
        tenants={
            "task": {"factorisation": _FACTORISATION},
            "network": {
                "matrix_factorisation": NetworkEntry(
                    "ensemble.recommendation.matrix_factorisation:MatrixFactorisation"
                )
            },
            "source": {
                "ratings:FILE": _RATINGS,
                "movielens/1m-ratings": _movielens("ml-1m.zip"),
                "movielens/100k-ratings": _movielens("ml-100k.zip"),
                "watches:USERSxMOVIES": _GENERATED,
            },
        },
        public={"recommend": "ensemble.recommendation.answer"},
        commands={
            "recommend": Command(
                "recommends items, such as movies, to a user", "ensemble.recommendation.command"
            )
        },
        section="ensemble.recommendation.section:SECTION",
    )
