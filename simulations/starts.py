"""A posterior beside the ensemble that it starts from, of numbers: the NLL decides.

Every chain keeps a share of what its start does wrong, so that members are alike in pairs.
"""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.evaluation import recipe
from ensemble.evaluation.next_member import SMALL_GAIN
from ensemble.metrics import regression
from simulations.number_comparisons import LIKELIHOOD, Kind
from simulations.statement import VERDICT, Replicate, Statement


def draw(
    rng: np.random.Generator,
    num_members: int,
    num_examples: int,
    kinds: tuple[Kind, Kind],
    kept: float,
    freedom: float = np.inf,
) -> list[NDArray]:
    """Log densities [M, N] of the same targets, by chains and by the members they start from.

    Args:
        rng: of the draws.
        num_members: M, of either.
        num_examples: N.
        kinds: of the chains, and of their starts.
        kept: correlation of a chain's own errors with those of its start.
        freedom: degrees of freedom of the targets' errors, which have Student's t distribution.
    """
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


@functools.cache
def _truth(num_members: int, kinds: tuple[Kind, Kind], freedom: float) -> float:
    """The NLL that the starts' ensembles have on average above the posteriors'."""
    if kinds[0] == kinds[1]:
        return 0.0
    rng, found = np.random.default_rng(1), []
    for _ in range(400):
        ours, theirs = draw(rng, num_members, 1000, kinds, 0.9, freedom)  # Kept: less noise.
        change = regression.mixture_log_density(ours) - regression.mixture_log_density(theirs)
        found.append(change.mean())
    return float(np.mean(found))


def _section(pair: list[NDArray]) -> dict[str, Any]:
    def left_out(log_densities: NDArray) -> Any:
        return recipe.leave_one_out(
            lambda some: -regression.mixture_log_density(log_densities[list(some)]),
            len(log_densities),
        )

    return recipe.score_recipes(
        "NLL", "chains and members", *map(left_out, pair), margin=SMALL_GAIN
    )


def intervals(**setting: Any) -> Replicate:
    """Whether the interval holds the difference of other posteriors and their starts."""
    truth = _truth(setting["num_members"], setting["kinds"], setting.get("freedom", np.inf))

    def replicate(rng: np.random.Generator) -> Mapping[str, bool | None]:
        interval = _section(draw(rng, **setting)).get("interval")
        return {"nll": None if interval is None else bool(interval[0] <= truth <= interval[1])}

    return replicate


def verdicts(**setting: Any) -> Replicate:
    """Whether the sentence on a posterior and its start is wrong."""
    truth = _truth(setting["num_members"], setting["kinds"], setting.get("freedom", np.inf))

    def replicate(rng: np.random.Generator) -> Mapping[str, bool | None]:
        section = _section(draw(rng, **setting))
        sentence = recipe.sentence({"is_start": True, "recipe_by_nll": section, "workdir": "it"})
        if sentence.startswith("The posterior is better"):
            return {"sentence": truth <= 0}
        return {"sentence": truth >= 0 if sentence.startswith("The posterior is worse") else None}

    return replicate


def _setting(
    num_members: int, num_examples: int, kept: float, ours: Kind, theirs: Kind, **rest: float
) -> dict[str, Any]:
    sizes = {"num_members": num_members, "num_examples": num_examples}
    return {**sizes, "kept": kept, "kinds": (ours, theirs), **rest}


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
        prepare=intervals,
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
        prepare=verdicts,
        kind=VERDICT,
    ),
)
