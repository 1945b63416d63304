"""Methods beside the best one: how far they are behind it, and what is said of that."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ensemble.scoring.sections import values_of
from ensemble.search import verdicts
from simulations.comparisons import Kind, draw_of, pair_of, views_of
from simulations.statement import VERDICT, Outcome, Replicate, Statement, holds

_SCORES = ("nll", "accuracy")
_GOOD, _SAME, _NOISY = Kind(1.0, 0.1, 3.0), Kind(1.0, 0.3, 3.0), Kind(1.5, 0.1, 3.0)
_BAD = Kind(1.0, 0.1, 2.0)


def setting(num_examples: int, *methods: tuple[int, Kind], rarer: float = 1.0) -> dict[str, Any]:
    """Methods, each with its number of networks and their kind; the first was chosen as the best.

    The last is the plain network, whose score the margins are shares of.
    """
    return {"num_examples": num_examples, "methods": methods, "rarer": rarer}


def _prepared(
    outcome: Callable[[str, dict[str, dict[str, Any]], dict[str, float]], bool | None],
) -> Callable[..., Replicate]:
    """Makes a `prepare` of replications that draw test rows for networks that stay as they are.

    Args:
        outcome: of a score, of what is said of the methods, and of how far they are behind.
    """

    def prepare(num_examples: int, methods: Any, rarer: float) -> Replicate:
        numbers, kinds = zip(*methods, strict=True)
        fixed = np.random.default_rng(0)
        networks = pair_of(fixed, numbers, kinds)

        def views(rng: np.random.Generator, number: int | None) -> dict[str, Any]:
            drawn = views_of(draw_of(rng, networks, number, rarer))
            return {str(k): one for k, one in enumerate(drawn)}

        values = {name: values_of(one, _SCORES) for name, one in views(fixed, None).items()}
        behind = {
            score: {
                name: (value[score] - values["0"][score]) * (-1 if score == "accuracy" else 1)
                for name, value in values.items()
                if name != "0"
            }
            for score in _SCORES
        }
        plain = values[str(len(kinds) - 1)]

        def replicate(rng: np.random.Generator) -> Outcome:
            seen = views(rng, num_examples)
            return {
                score: outcome(
                    score,
                    verdicts.compare_with_best(seen, "0", score, plain[score]),
                    behind[score],
                )
                for score in _SCORES
            }

        return replicate

    return prepare


def _all_hold(_: str, said: dict[str, dict[str, Any]], behind: dict[str, float]) -> bool:
    return all(holds(tuple(said[name]["interval"]), value) for name, value in behind.items())


def _is_wrong(_: str, said: dict[str, dict[str, Any]], behind: dict[str, float]) -> bool | None:
    """Whether a verdict is: a method that is as good may be behind by the margin at most."""
    wrong, stated = False, False
    for name, value in behind.items():
        verdict = said[name]["verdict"]
        stated |= verdict != verdicts.INCONCLUSIVE
        wrong |= verdict == verdicts.AS_GOOD and value > said[name]["margin"]
        wrong |= verdict == verdicts.WORSE and value <= 0
    return wrong if stated else None


_SETTINGS = {
    "N = 200, 3 methods": setting(200, (4, _GOOD), (4, _SAME), (1, _GOOD)),
    "N = 50, 3 methods": setting(50, (4, _GOOD), (2, _GOOD), (1, _GOOD)),
    "N = 300, 6 methods": setting(
        300, (8, _GOOD), (4, _SAME), (4, _GOOD), (2, _NOISY), (1, _SAME), (1, _GOOD)
    ),
    "N = 1000, 6 methods, unequal classes": setting(
        1000, (8, _GOOD), (8, _SAME), (4, _SAME), (2, _GOOD), (1, _NOISY), (1, _GOOD), rarer=2.0
    ),
    "N = 300, 10 methods": setting(
        300, (8, _GOOD), *[(4, _SAME)] * 4, *[(2, _GOOD)] * 4, (1, _GOOD)
    ),
    "N = 1000, 3 methods, one is bad": setting(1000, (4, _GOOD), (4, _BAD), (1, _GOOD)),
}

STATEMENTS = (
    Statement(
        name="methods.behind_the_best",
        claim="The methods are behind the best by [low, high], all intervals together",
        over="examples",
        made_by=("ensemble.search.verdicts.compare_with_best",),
        settings=_SETTINGS,
        prepare=_prepared(_all_hold),
        at_least=True,
    ),
    Statement(
        name="methods.verdict",
        claim="The methods are as good as the best, or worse",
        over="examples",
        made_by=(),
        settings=_SETTINGS,
        prepare=_prepared(_is_wrong),
        kind=VERDICT,
    ),
)
