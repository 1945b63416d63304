"""A posterior beside the ensemble that it starts from, of numbers: the NLL decides.

Every chain keeps a share of what its start does wrong, so that members are alike in pairs.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.evaluation import recipe
from ensemble.evaluation.questions import others
from ensemble.metrics import regression
from ensemble.scoring.view import NumberView
from simulations.comparisons import World, setting
from simulations.number_comparisons import LIKELIHOOD, Kind
from simulations.statement import VERDICT, Statement


def draw(
    rng: np.random.Generator,
    pair: tuple[int, tuple[Kind, Kind]],
    num_examples: int,
    kept: float,
    freedom: float = np.inf,
) -> list[NDArray]:
    """Log densities [M, N] of the same targets, by chains and by the members they start from.

    Args:
        rng: of the draws.
        pair: M of either, and the kinds of the chains and of their starts.
        num_examples: N.
        kept: correlation of a chain's own errors with those of its start.
        freedom: degrees of freedom of the targets' errors, which have Student's t distribution.
    """
    num_members, kinds = pair
    shape = num_members, num_examples
    start, moved = (
        (rng.normal(size=(num_members, kinds[0].num_inputs)), rng.normal(size=shape))
        for _ in range(2)
    )
    own = [kept * one + np.sqrt(1 - kept**2) * two for one, two in zip(start, moved, strict=True)]
    inputs = rng.normal(size=(kinds[0].num_inputs, num_examples))
    noise = (
        rng.standard_t(freedom, size=num_examples)
        if np.isfinite(freedom)
        else rng.normal(size=num_examples)
    )
    targets = inputs.sum(axis=0) / 2 + noise
    found = []
    for kind, (slopes, wiggle) in zip(kinds, (own, start), strict=True):
        smooth = kind.smooth / np.sqrt(kind.num_inputs) * slopes @ inputs
        loc = inputs.sum(axis=0) / 2 * 0.9 + smooth + kind.wiggle * wiggle
        arrays = {"loc": loc, "scale": np.full(shape, kind.scale)}
        found.append(LIKELIHOOD.distribution(arrays).log_densities(targets))
    return found


def _difference(pair: list[NDArray]) -> float:
    ours, theirs = map(regression.mixture_log_density, pair)
    return float((ours - theirs).mean())


def _section(pair: list[NDArray]) -> dict[str, Any]:
    def left_out(log_densities: NDArray) -> Any:
        return recipe.leave_one_out(
            lambda some: -regression.mixture_log_density(log_densities[list(some)]),
            len(log_densities),
        )

    return recipe.score_recipes(
        "NLL", "chains and members", *map(left_out, pair), margin=NumberView.small_gain
    )


def is_wrong(section: Mapping[str, Any], truth: float) -> bool | None:
    """Whether the sentence on a posterior and its start is wrong, as `comparisons.is_wrong`."""
    one = {"is_start": True, "recipe_by_nll": section, "workdir": "it"}
    code = others.comparison(one).code
    if code == "start.better":
        return truth <= 0
    return truth >= 0 if code == "start.worse" else None


_WORLD = World(
    "nll",
    lambda rng, members, kinds: (members[0], kinds),
    draw,
    _difference,
    _section,
    is_wrong=is_wrong,
    steady=(("kept", 0.9),),  # Less noise.
)


def _setting(number: int, num_examples: int, kept: float, *kinds: Kind, **rest: Any) -> dict:
    return setting((number, number), num_examples, *kinds, kept=kept, **rest)


_PLAIN, _UNEQUAL, _ALIKE = Kind(0.6, 0.2), Kind(0.3, 0.6), Kind(0.3, 0.1)
_SURE = Kind(0.6, 0.2, 0.6)

STATEMENTS = (
    Statement(
        name="posterior.beside_its_start",
        claim="The NLL of another posterior is lower than that of its start by [low, high]",
        over="chains, members and examples",
        made_by=("ensemble.metrics.jackknife.two_way_interval",),
        settings={
            "M = 4, N = 200, half is kept": _setting(4, 200, 0.5, _PLAIN, _PLAIN),
            "M = 4, N = 200, nothing is kept": _setting(4, 200, 0.0, _UNEQUAL, _UNEQUAL),
            "M = 4, N = 1000, most is kept": _setting(4, 1000, 0.9, _UNEQUAL, _UNEQUAL),
            "M = 8, N = 300, better, half is kept": _setting(8, 300, 0.5, _ALIKE, _PLAIN),
            "M = 10, N = 100, start too sure, most is kept": _setting(10, 100, 0.9, _PLAIN, _SURE),
            "M = 8, N = 300, heavy tails, half is kept": _setting(
                8, 300, 0.5, _PLAIN, _PLAIN, freedom=3.0
            ),
            "M = 3, N = 300, worse, half is kept": _setting(3, 300, 0.5, _UNEQUAL, _ALIKE),
        },
        prepare=_WORLD.recipes,
        at_least=True,
    ),
    Statement(
        name="posterior.beside_its_start_verdict",
        claim="The posterior is better, or worse, than the ensemble that it starts from",
        over="chains, members and examples",
        made_by=(),
        settings={
            "M = 4, N = 200, half is kept, equal": _setting(4, 200, 0.5, _PLAIN, _PLAIN),
            "M = 4, N = 200, nothing is kept, equal": _setting(4, 200, 0.0, _UNEQUAL, _UNEQUAL),
            "M = 8, N = 1000, nothing is kept, equal": _setting(8, 1000, 0.0, _PLAIN, _PLAIN),
            "M = 8, N = 1000, most is kept, equal": _setting(8, 1000, 0.9, _UNEQUAL, _UNEQUAL),
            "M = 8, N = 300, heavy tails, half is kept, equal": _setting(
                8, 300, 0.5, _PLAIN, _PLAIN, freedom=3.0
            ),
            "M = 8, N = 300, better, half is kept": _setting(8, 300, 0.5, _ALIKE, _PLAIN),
            "M = 3, N = 50, worse, half is kept": _setting(3, 50, 0.5, _UNEQUAL, _ALIKE),
        },
        prepare=_WORLD.verdicts,
        kind=VERDICT,
    ),
)
