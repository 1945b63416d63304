"""Two ensembles of classes: the difference of these two, and of their recipes."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from ensemble import metrics
from ensemble.evaluation import comparison, recipe
from simulations import real_members
from simulations.statement import VERDICT, Replicate, Statement

NUM_CLASSES = 5
POPULATION = 40_000
_MEANS, _SHARES = ("nll", "brier"), ("accuracy", "accuracy_at_80")


class Kind(NamedTuple):
    """How members of a recipe are drawn.

    Attributes:
        noise: standard deviation of a member's own errors in its logits.
        quality: standard deviation of the logarithm of that, from member to member.
        signal: what the logit of the right class is above the others.
    """

    noise: float
    quality: float
    signal: float

    def scales(self, rng: np.random.Generator, num_members: int) -> NDArray:
        """The members' noises [M]."""
        return self.noise * np.exp(self.quality * rng.normal(size=num_members))


def draw(
    rng: np.random.Generator,
    pair: tuple[tuple[Kind, NDArray], tuple[Kind, NDArray]],
    num_examples: int,
    rarer: float = 1.0,
) -> tuple[list[NDArray], NDArray]:
    """Two ensembles' log-probabilities [M, N, C] of the same examples, and the labels [N].

    Args:
        rng: of the draws.
        pair: the kinds of the two, and the noises of their members.
        num_examples: N.
        rarer: how many times as frequent as the next one each class is.
    """
    shares = rarer ** -np.arange(NUM_CLASSES, dtype=float)
    labels = rng.choice(NUM_CLASSES, size=num_examples, p=shares / shares.sum())
    easy = rng.normal(size=(num_examples, NUM_CLASSES))
    log_probs = []
    for kind, scales in pair:
        scores = easy.copy()
        scores[np.arange(num_examples), labels] += kind.signal
        noises = scales[:, None, None] * rng.normal(size=(len(scales), *scores.shape))
        log_probs.append(log_softmax(scores + noises, axis=-1))
    return log_probs, labels


def these_ensembles(
    scores: tuple[str, ...],
    members: tuple[int, int],
    num_examples: int,
    kinds: tuple[Kind, Kind] | None,
    rarer: float = 1.0,
) -> Replicate:
    """Whether paired intervals hold the difference of two ensembles that stay as they are."""
    fixed = np.random.default_rng(0)
    if kinds is None:
        chosen = fixed.choice(real_members.NUM_MEMBERS, sum(members), replace=False)
        pool = real_members.digits()
        parts = [pool["log_probs"][one] for one in np.split(chosen, [members[0]])]
        everything = parts, pool["targets"]
        pair = None
    else:
        one, other = (
            (kind, kind.scales(fixed, num)) for kind, num in zip(kinds, members, strict=True)
        )
        pair = (one, other)
        everything = draw(fixed, pair, POPULATION, rarer)
    before, after = (
        metrics.scores(metrics.ensemble_log_probs(each), everything[1]) for each in everything[0]
    )
    truth = {name: after[name] - before[name] for name in scores}

    def replicate(rng: np.random.Generator) -> Mapping[str, bool | None]:
        if pair is None:
            rows = rng.integers(len(everything[1]), size=num_examples)
            log_probs, labels = [one[:, rows] for one in everything[0]], everything[1][rows]
        else:
            log_probs, labels = draw(rng, pair, num_examples, rarer)
        terms = [metrics.terms(metrics.ensemble_log_probs(one), labels) for one in log_probs]
        found = comparison.paired_intervals(*terms)
        return {name: _holds(found[name], truth[name]) for name in scores}

    return replicate


def _holds(interval: tuple[float, float] | None, truth: float) -> bool | None:
    return None if interval is None else bool(interval[0] <= truth <= interval[1])


def _recipes(
    rng: np.random.Generator,
    members: tuple[int, int],
    num_examples: int,
    kinds: tuple[Kind, Kind] | None,
    rarer: float = 1.0,
) -> tuple[list[NDArray], NDArray]:
    """Two ensembles, members and examples drawn anew."""
    if kinds is None:
        _, found = real_members.draw(rng, real_members.digits(), sum(members), num_examples)
        return np.split(found["log_probs"], [members[0]]), found["targets"]
    one, other = ((kind, kind.scales(rng, num)) for kind, num in zip(kinds, members, strict=True))
    return draw(rng, (one, other), num_examples, rarer)


@functools.cache
def _truth(members: tuple[int, int], kinds: tuple[Kind, Kind] | None, rarer: float = 1.0) -> float:
    """The NLL that the second's ensembles have on average above the first's."""
    if members[0] == members[1] and (kinds is None or kinds[0] == kinds[1]):
        return 0.0
    rng, found = np.random.default_rng(1), []
    for _ in range(400):
        log_probs, labels = _recipes(rng, members, 1000, kinds, rarer)
        first, second = (
            logsumexp(one[:, np.arange(len(labels)), labels], axis=0).mean() - np.log(len(one))
            for one in log_probs
        )
        found.append(first - second)
    return float(np.mean(found))


def _section(log_probs: list[NDArray], labels: NDArray) -> dict[str, Any]:
    parts = (comparison.leave_one_out(one, labels) for one in log_probs)
    return recipe.score_recipes("NLL", "members", *parts)


def recipes(**setting: Any) -> Replicate:
    """Whether the interval holds the difference of ensembles with other members, on average."""
    truth = _truth(*_of_truth(setting))

    def replicate(rng: np.random.Generator) -> Mapping[str, bool | None]:
        found = _section(*_recipes(rng, **setting))
        return {"nll": _holds(found.get("interval"), truth)}

    return replicate


def verdicts(**setting: Any) -> Replicate:
    """Whether the sentence on the recipe is wrong."""
    truth = _truth(*_of_truth(setting))

    def replicate(rng: np.random.Generator) -> Mapping[str, bool | None]:
        return {"sentence": is_wrong(_section(*_recipes(rng, **setting)), truth)}

    return replicate


def is_wrong(section: Mapping[str, Any], truth: float) -> bool | None:
    """Whether the sentence on a recipe is wrong; None where it says that nothing can be told.

    Args:
        section: as `recipe.score_recipes` returns it.
        truth: the score of the other recipe's ensembles less that of ours.
    """
    sentence = recipe.sentence(
        {"recipe": section, "workdir": "it", "interval": {}, "difference": {}}
    )
    if "is better:" in sentence:
        return truth >= 0
    if "is worse:" in sentence:
        return truth <= 0
    return truth > section["margin"] if "no worse than by" in sentence else None


def power(**setting: Any) -> Replicate:
    """Whether the difference that could have been seen would have been, of equal recipes.

    Their scores are as if the second's were worse by just that difference.
    """

    def replicate(rng: np.random.Generator) -> Mapping[str, bool | None]:
        found = _section(*_recipes(rng, **setting))
        low, _ = found["interval"]
        return {"nll": bool(low + found["could_see"] > 0)}

    return replicate


def _of_truth(setting: Mapping[str, Any]) -> tuple:
    return setting["members"], setting["kinds"], setting.get("rarer", 1.0)


def _setting(
    members: tuple[int, int],
    num_examples: int,
    ours: Kind | None = None,
    theirs: Kind | None = None,
    **rest: float,
) -> dict[str, Any]:
    kinds = None if ours is None else (ours, theirs or ours)
    return {"members": members, "num_examples": num_examples, "kinds": kinds, **rest}


_PLAIN, _UNEQUAL, _HARD = Kind(1.0, 0.0, 3.0), Kind(1.0, 0.3, 3.0), Kind(1.0, 0.1, 2.0)
_ALIKE = Kind(0.3, 0.1, 2.0)

_PAIRS = {
    "M = 4, N = 200, unequal members": _setting((4, 4), 200, _UNEQUAL),
    "M = 2, N = 50": _setting((2, 2), 50, _PLAIN),
    "M = 2 and 8, N = 300, one is better": _setting((2, 8), 300, _PLAIN, _HARD),
    "M = 8, N = 300, unequal classes": _setting((8, 8), 300, _UNEQUAL, rarer=2.0),
    "M = 4, N = 300, digits": _setting((4, 4), 300),
    "M = 8, N = 1000, digits": _setting((8, 8), 1000),
    "M = 4, N = 1000, hard": _setting((4, 4), 1000, _HARD, Kind(1.0, 0.1, 1.9)),
}

STATEMENTS = (
    Statement(
        name="comparison.these_ensembles",
        claim="Of these two ensembles, the other's NLL, or Brier score, is higher by [low, high]",
        over="examples",
        made_by=(
            "ensemble.evaluation.comparison.paired_intervals",
            "ensemble.metrics.jackknife.mean_difference_interval",
        ),
        settings=_PAIRS,
        prepare=functools.partial(these_ensembles, _MEANS),
    ),
    Statement(
        name="comparison.shares_of_these_ensembles",
        claim="Of these two ensembles, the other's accuracy is higher by [low, high]",
        over="examples",
        made_by=("ensemble.metrics.jackknife.share_difference_interval",),
        settings=_PAIRS,
        prepare=functools.partial(these_ensembles, _SHARES),
        at_least=True,
    ),
    Statement(
        name="comparison.recipes",
        claim="Ensembles of the other recipe have an NLL that is higher by [low, high]",
        over="members and examples",
        made_by=("ensemble.metrics.jackknife.two_way_interval",),
        settings={
            "M = 4, N = 300, unequal members": _setting((4, 4), 300, _UNEQUAL),
            "M = 2, N = 300": _setting((2, 2), 300, _PLAIN),
            "M = 3, N = 300, unequal members": _setting((3, 3), 300, _UNEQUAL),
            "M = 4, N = 100, digits": _setting((4, 4), 100),
            "M = 8, N = 300, digits": _setting((8, 8), 300),
            "M = 4, N = 1000, digits": _setting((4, 4), 1000),
            "M = 16 and 4, N = 300, digits": _setting((16, 4), 300),
            "M = 4, N = 300, one is worse": _setting((4, 4), 300, _HARD, Kind(1.3, 0.1, 2.0)),
            "M = 8 and 3, N = 1000, unequal classes": _setting((8, 3), 1000, _UNEQUAL, rarer=2.0),
            "M = 16, N = 1000, hard": _setting((16, 16), 1000, _HARD),
            "M = 8, N = 50, one is better": _setting((8, 8), 50, Kind(1.2, 0.3, 3.0), _UNEQUAL),
        },
        prepare=recipes,
    ),
    Statement(
        name="comparison.verdict",
        claim="The other recipe is better, worse, or no worse than by 1% of the NLL",
        over="members and examples",
        made_by=(),
        settings={
            "M = 4, N = 200, equal": _setting((4, 4), 200, _UNEQUAL),
            "M = 2, N = 300, equal": _setting((2, 2), 300, _PLAIN),
            "M = 4, N = 300, digits, equal": _setting((4, 4), 300),
            "M = 8, N = 1000, digits, equal": _setting((8, 8), 1000),
            "M = 16, N = 300, digits, equal": _setting((16, 16), 300),
            "M = 8, N = 1000, alike, worse by 1%": _setting(
                (8, 8), 1000, _ALIKE, Kind(0.3, 0.1, 1.985)
            ),
            "M = 3, N = 300, unequal classes, equal": _setting((3, 3), 300, _UNEQUAL, rarer=2.0),
        },
        prepare=verdicts,
        kind=VERDICT,
    ),
    Statement(
        name="comparison.could_see",
        claim="A difference of this size would have been seen in 80% of cases",
        over="members and examples",
        made_by=("ensemble.metrics.jackknife._quantile", "ensemble.metrics.jackknife.needed"),
        settings={
            "M = 8, N = 200": _setting((8, 8), 200, _UNEQUAL),
            "M = 4, N = 300, unequal members": _setting((4, 4), 300, _UNEQUAL),
            "M = 16, N = 1000, hard": _setting((16, 16), 1000, _HARD),
            "M = 4, N = 100, digits": _setting((4, 4), 100),
            "M = 8, N = 300, digits": _setting((8, 8), 300),
            "M = 16, N = 1000, digits": _setting((16, 16), 1000),
        },
        prepare=power,
        level=0.8,
    ),
)
