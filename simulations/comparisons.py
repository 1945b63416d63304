"""Two ensembles: the difference of these two, and of their recipes; those of classes."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from ensemble.evaluation import comparison, recipe
from ensemble.evaluation.questions import others
from ensemble.likelihoods.class_view import LOG_PROBS, MeanOfSoftmax
from ensemble.scoring.score import scores_of
from ensemble.scoring.sections import values_of
from simulations import real_members
from simulations.statement import VERDICT, Outcome, Replicate, Statement, holds

NUM_CLASSES = 5
POPULATION = 40_000
_MEANS, _SHARES = ("nll", "brier"), ("accuracy", "accuracy_at_80")


def is_wrong(section: Mapping[str, Any], truth: float) -> bool | None:
    """Whether the sentence on a recipe is wrong; None where it says that nothing can be told.

    Args:
        section: as `recipe.score_recipes` returns it.
        truth: the score of the other recipe's ensembles less that of ours.
    """
    code = others.comparison({"recipe": section, "workdir": "it"}).code
    if code == "comparison.better":
        return truth >= 0
    if code == "comparison.worse":
        return truth <= 0
    return truth > section["margin"] if code == "comparison.no_worse" else None


class World(NamedTuple):
    """Recipes whose ensembles are compared.

    Attributes:
        part: the name of the score.
        pair: draws the members of two ensembles, `(rng, members, kinds)`, whose numbers are known.
        draw: `(rng, pair, num_examples, **rest)`: draws what they predict of the same examples; of
            all that there are, or of many, where `num_examples` is None.
        difference: the score of the second less that of the first, of what was drawn.
        section: as `recipe.score_recipes` returns it, of what was drawn.
        scores: of each of the two, of those that are asked for and what was drawn.
        intervals: of their differences, likewise.
        is_wrong: whether the sentence on a section is wrong, by the section and the truth.
        steady: what `draw` is given in place of a setting's own to know the truth.
    """

    part: str
    pair: Callable[..., Any]
    draw: Callable[..., Any]
    difference: Callable[[Any], float]
    section: Callable[[Any], dict[str, Any]]
    scores: Callable[[Any, Any], list[dict[str, float]]] = lambda *_: [{}, {}]
    intervals: Callable[[Any, Any], Mapping[str, Any]] = lambda *_: {}
    is_wrong: Callable[[Mapping[str, Any], float], bool | None] = is_wrong
    steady: tuple[tuple[str, float], ...] = ()

    def drawn(
        self, rng: np.random.Generator, members: Any, num_examples: int, kinds: Any, **rest: Any
    ) -> dict[str, Any]:
        """The section of members and examples that are drawn anew."""
        return self.section(self.draw(rng, self.pair(rng, members, kinds), num_examples, **rest))

    def truth(self, members: Any, num_examples: int, kinds: Any, **rest: Any) -> float:
        """The score that the second's ensembles have on average above the first's."""
        return _truth(self, members, kinds, tuple((rest | dict(self.steady)).items()))

    def recipes(self, **setting: Any) -> Replicate:
        """Whether the interval holds the difference of ensembles with other members, on average."""
        truth = self.truth(**setting)
        return lambda rng: {self.part: holds(self.drawn(rng, **setting).get("interval"), truth)}

    def verdicts(self, **setting: Any) -> Replicate:
        """Whether the sentence on the recipe is wrong."""
        truth = self.truth(**setting)
        return lambda rng: {"sentence": self.is_wrong(self.drawn(rng, **setting), truth)}

    def power(self, **setting: Any) -> Replicate:
        """Whether the difference that could have been seen would have been, of equal recipes.

        Their scores are as if the second's were worse by just that difference.
        """

        def replicate(rng: np.random.Generator) -> Outcome:
            found = self.drawn(rng, **setting)
            return {self.part: bool(found["interval"][0] + found["could_see"] > 0)}

        return replicate

    def these(
        self, asked: Any, members: Any, num_examples: int, kinds: Any, **rest: Any
    ) -> Replicate:
        """Whether paired intervals hold the difference of two ensembles that stay as they are."""
        fixed = np.random.default_rng(0)
        pair = self.pair(fixed, members, kinds)
        before, after = self.scores(asked, self.draw(fixed, pair, None, **rest))

        def replicate(rng: np.random.Generator) -> Outcome:
            found = self.intervals(asked, self.draw(rng, pair, num_examples, **rest))
            return {name: holds(found[name], after[name] - before[name]) for name in found}

        return replicate


@functools.cache
def _truth(world: World, members: Any, kinds: Any, rest: tuple[tuple[str, Any], ...]) -> float:
    if members[0] == members[1] and (kinds is None or kinds[0] == kinds[1]):
        return 0.0
    rng, found = np.random.default_rng(1), []
    for _ in range(400):
        drawn = world.draw(rng, world.pair(rng, members, kinds), 1000, **dict(rest))
        found.append(world.difference(drawn))
    return float(np.mean(found))


def setting(
    members: tuple[int, int], num_examples: int, ours: Any = None, theirs: Any = None, **rest: float
) -> dict[str, Any]:
    """Two kinds of members, the same unless it is said; none: real members."""
    kinds = None if ours is None else (ours, theirs or ours)
    return {"members": members, "num_examples": num_examples, "kinds": kinds, **rest}


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


def pair_of(rng: np.random.Generator, members: Any, kinds: Any) -> Any:
    """Ensembles of so many members of these kinds, two or more, or two of real members."""
    if kinds is None:
        return real_members.draw_pair(rng, members)
    return [(kind, kind.scales(rng, number)) for kind, number in zip(kinds, members, strict=True)]


def draw_of(
    rng: np.random.Generator, pair: Any, num_examples: int | None, rarer: float = 1.0
) -> tuple[list[NDArray], NDArray]:
    """Log-probabilities [M, N, C] of each ensemble for the same examples, and the labels [N].

    Args:
        rng: of the draws.
        pair: of `pair_of`.
        num_examples: N.
        rarer: how many times as frequent as the next one each class is.
    """
    if isinstance(pair[0], np.ndarray):
        found = real_members.predicted(rng, real_members.digits(), pair, num_examples)
        return [one["log_probs"] for one in found], found[0]["targets"]
    num_examples = num_examples or POPULATION
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


def _difference(drawn: tuple[list[NDArray], NDArray]) -> float:
    log_probs, labels = drawn
    first, second = (
        logsumexp(one[:, np.arange(len(labels)), labels], axis=0).mean() - np.log(len(one))
        for one in log_probs
    )
    return first - second


_SCORES = ("accuracy", "nll", "brier", "accuracy_at_80")


def views_of(drawn: tuple[list[NDArray], NDArray]) -> list[MeanOfSoftmax]:
    """What is scored of each ensemble that `draw_of` has drawn."""
    return [MeanOfSoftmax(arrays={LOG_PROBS: one}, targets=drawn[1]) for one in drawn[0]]


def _section(drawn: tuple[list[NDArray], NDArray]) -> dict[str, Any]:
    parts = (comparison.leave_one_out(one, "nll") for one in views_of(drawn))
    return recipe.score_recipes("NLL", "members", *parts)


def _scores(_: Any, drawn: tuple[list[NDArray], NDArray]) -> list[dict[str, float]]:
    return [values_of(one, _SCORES) for one in views_of(drawn)]


def _intervals(names: tuple[str, ...], drawn: tuple[list[NDArray], NDArray]) -> dict[str, Any]:
    ours, theirs = views_of(drawn)
    scores = scores_of(ours)
    return {name: scores[name].difference(ours, theirs) for name in names}


_WORLD = World("nll", pair_of, draw_of, _difference, _section, _scores, _intervals)


_PLAIN, _UNEQUAL, _HARD = Kind(1.0, 0.0, 3.0), Kind(1.0, 0.3, 3.0), Kind(1.0, 0.1, 2.0)
_ALIKE = Kind(0.3, 0.1, 2.0)

_PAIRS = {
    "M = 4, N = 200, unequal members": setting((4, 4), 200, _UNEQUAL),
    "M = 2, N = 50": setting((2, 2), 50, _PLAIN),
    "M = 2 and 8, N = 300, one is better": setting((2, 8), 300, _PLAIN, _HARD),
    "M = 8, N = 300, unequal classes": setting((8, 8), 300, _UNEQUAL, rarer=2.0),
    "M = 4, N = 300, digits": setting((4, 4), 300),
    "M = 8, N = 1000, digits": setting((8, 8), 1000),
    "M = 4, N = 1000, hard": setting((4, 4), 1000, _HARD, Kind(1.0, 0.1, 1.9)),
}

STATEMENTS = (
    Statement(
        name="comparison.these_ensembles",
        claim="Of these two ensembles, the other's NLL, or Brier score, is higher by [low, high]",
        over="examples",
        made_by=(
            "ensemble.scoring.combine.Mean",
            "ensemble.metrics.jackknife.mean_difference_interval",
        ),
        settings=_PAIRS,
        prepare=functools.partial(_WORLD.these, _MEANS),
    ),
    Statement(
        name="comparison.shares_of_these_ensembles",
        claim="Of these two ensembles, the other's accuracy is higher by [low, high]",
        over="examples",
        made_by=("ensemble.metrics.jackknife.share_difference_interval",),
        settings=_PAIRS,
        prepare=functools.partial(_WORLD.these, _SHARES),
        at_least=True,
    ),
    Statement(
        name="comparison.recipes",
        claim="Ensembles of the other recipe have an NLL that is higher by [low, high]",
        over="members and examples",
        made_by=("ensemble.metrics.jackknife.two_way_interval",),
        settings={
            "M = 4, N = 300, unequal members": setting((4, 4), 300, _UNEQUAL),
            "M = 2, N = 300": setting((2, 2), 300, _PLAIN),
            "M = 3, N = 300, unequal members": setting((3, 3), 300, _UNEQUAL),
            "M = 4, N = 100, digits": setting((4, 4), 100),
            "M = 8, N = 300, digits": setting((8, 8), 300),
            "M = 4, N = 1000, digits": setting((4, 4), 1000),
            "M = 16 and 4, N = 300, digits": setting((16, 4), 300),
            "M = 4, N = 300, one is worse": setting((4, 4), 300, _HARD, Kind(1.3, 0.1, 2.0)),
            "M = 8 and 3, N = 1000, unequal classes": setting((8, 3), 1000, _UNEQUAL, rarer=2.0),
            "M = 16, N = 1000, hard": setting((16, 16), 1000, _HARD),
            "M = 8, N = 50, one is better": setting((8, 8), 50, Kind(1.2, 0.3, 3.0), _UNEQUAL),
        },
        prepare=_WORLD.recipes,
    ),
    Statement(
        name="comparison.verdict",
        claim="The other recipe is better, worse, or no worse than by 1% of the NLL",
        over="members and examples",
        made_by=(),
        settings={
            "M = 4, N = 200, equal": setting((4, 4), 200, _UNEQUAL),
            "M = 2, N = 300, equal": setting((2, 2), 300, _PLAIN),
            "M = 4, N = 300, digits, equal": setting((4, 4), 300),
            "M = 8, N = 1000, digits, equal": setting((8, 8), 1000),
            "M = 16, N = 300, digits, equal": setting((16, 16), 300),
            "M = 8, N = 1000, alike, worse by 1%": setting(
                (8, 8), 1000, _ALIKE, Kind(0.3, 0.1, 1.985)
            ),
            "M = 3, N = 300, unequal classes, equal": setting((3, 3), 300, _UNEQUAL, rarer=2.0),
        },
        prepare=_WORLD.verdicts,
        kind=VERDICT,
    ),
    Statement(
        name="comparison.could_see",
        claim="A difference of this size would have been seen in 80% of cases",
        over="members and examples",
        made_by=("ensemble.metrics.jackknife._quantile", "ensemble.metrics.jackknife.needed"),
        settings={
            "M = 8, N = 200": setting((8, 8), 200, _UNEQUAL),
            "M = 4, N = 300, unequal members": setting((4, 4), 300, _UNEQUAL),
            "M = 16, N = 1000, hard": setting((16, 16), 1000, _HARD),
            "M = 4, N = 100, digits": setting((4, 4), 100),
            "M = 8, N = 300, digits": setting((8, 8), 300),
            "M = 16, N = 1000, digits": setting((16, 16), 1000),
        },
        prepare=_WORLD.power,
        level=0.8,
    ),
)
