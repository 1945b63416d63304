"""Test rows in groups of which those of one are alike: intervals of scores, and sentences."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from ensemble.evaluation import recipe
from ensemble.evaluation.comparison import leave_one_out
from ensemble.evaluation.questions import calibration
from ensemble.likelihoods.class_view import LOG_PROBS, MeanOfSoftmax
from ensemble.metrics import grouped
from ensemble.scoring.combine import Combine, Mean, RootMean, Share, over_groups
from ensemble.scoring.folds import change_on_folds
from simulations import number_comparisons, number_sentences, quantile_sentences
from simulations.comparisons import is_wrong
from simulations.number_comparisons import Kind
from simulations.numbers import LIKELIHOOD
from simulations.settings import named
from simulations.statement import VERDICT, Outcome, Statement, holds, replication

_BANDS = {"50": 0.6745, "90": 1.6449, "95": 1.96}


def _groups(rng: np.random.Generator, num_groups: int, size: int, unequal: bool) -> NDArray:
    """The group of each row; some unequal groups have many times as many rows as others."""
    sizes = np.full(num_groups, size)
    if unequal:
        sizes = np.maximum(rng.lognormal(np.log(size) - 0.5, 1.0, num_groups).astype(int), 1)
    return np.repeat(np.arange(num_groups), sizes)


def _normal(rng: np.random.Generator, groups: NDArray, alike: float) -> NDArray:
    """Standard normal [N], whose correlation within groups is `alike`."""
    shared = rng.normal(size=groups.max() + 1)[groups]
    return np.sqrt(alike) * shared + np.sqrt(1 - alike) * rng.normal(size=len(groups))


@replication
def scores(
    rng: np.random.Generator, num_groups: int, size: int, shared: float, unequal: bool = False
) -> Outcome:
    """Whether the intervals of RMSE, MAE and coverage hold those of all groups.

    Args:
        rng: of the draws.
        num_groups: in the test split.
        size: mean number of rows of a group.
        shared: standard deviation of the error that the rows of a group share; that of a row's own
            is 1.
        unequal: whether some groups have many times as many rows as others.
    """
    scale = np.hypot(shared, 1)
    truth = {"rmse": scale, "mae": scale * np.sqrt(2 / np.pi), "coverage_90": 0.9}
    groups = _groups(rng, num_groups, size, unequal)
    errors = shared * rng.normal(size=num_groups)[groups] + rng.normal(size=len(groups))
    held = (np.abs(errors) < _BANDS["90"] * scale).astype(float)
    terms: list[tuple[str, Combine, NDArray]] = [
        ("rmse", RootMean(), errors**2),
        ("mae", Mean(), np.abs(errors)),
        ("coverage_90", Share(), held),
    ]
    found = {name: over_groups(rule, one, groups) for name, rule, one in terms}
    if len(np.unique(groups)) < grouped.MIN_GROUPS:
        assert set(found.values()) == {None}
    return {name: holds(pair, truth[name]) for name, pair in found.items()}


@replication
def sentences_of_equals(
    rng: np.random.Generator, num_groups: int, size: int, alike: float, unequal: bool = False
) -> Outcome:
    """Whether anything is concluded of predictions that are right, or as good as others.

    Args:
        rng: of the draws.
        num_groups: of the test rows.
        size: mean number of rows of a group.
        alike: correlation of the errors of a group's rows.
        unequal: whether some groups have many times as many rows as others.
    """
    groups = _groups(rng, num_groups, size, unequal)

    def squares(number: int) -> list[NDArray]:
        """Squared errors [N] of predictors that are equally good."""
        errors = _normal(rng, groups, alike)
        return [(errors + 0.5 * _normal(rng, groups, alike)) ** 2 for _ in range(number)]

    beside = number_sentences.tells_apart(squares(3), groups)
    shift = number_sentences.shift_sentence(squares(2), groups)
    return {
        "better or worse": beside,
        "the shift changes": shift in number_sentences.CHANGED,
        "bands are wrong": _said_of_bands(_normal(rng, groups, alike), groups),
    }


def _said_of_bands(errors: NDArray, groups: NDArray) -> bool:
    terms = {f"coverage_{name}": np.abs(errors) < end for name, end in _BANDS.items()}
    test, facts = quantile_sentences.bands_section(terms, groups)
    test |= {"num_groups": len(np.unique(groups)), "over_groups": "site"}
    return calibration.bands(test, facts).code.startswith("bands.too_")


@replication
def advice_on_equals(
    rng: np.random.Generator, num_groups: int, size: int, alike: float, unequal: bool = False
) -> Outcome:
    """Whether a factor or a temperature is advised where none makes predictions better.

    Args:
        rng: of the draws.
        num_groups: of the calibration rows.
        size: mean number of rows of a group.
        alike: correlation of the errors of a group's rows.
        unequal: whether some groups have many times as many rows as others.
    """
    groups = _groups(rng, num_groups, size, unequal)
    errors, luck = (_normal(rng, groups, alike) for _ in range(2))
    arrays = {"loc": np.zeros((1, len(groups))), "scale": np.ones((1, len(groups)))}
    held_out = LIKELIHOOD.view(arrays, errors)
    return {
        "use this factor": number_sentences.is_advised(1.1, held_out, groups),
        "use this temperature": _said_of_temperature(rng, luck, groups),
    }


def _said_of_temperature(rng: np.random.Generator, luck: NDArray, groups: NDArray) -> bool:
    sure = rng.uniform(0.5, 0.99, len(groups))
    labels = (ndtr(luck) > sure).astype(int)
    log_probs = np.log(np.stack([sure, 1 - sure], axis=1))
    view = MeanOfSoftmax(arrays={LOG_PROBS: log_probs[None]}, targets=labels)
    folds = change_on_folds(view, groups)
    return calibration.effect({"nll_change_interval": (0.0, 0.0), "on_folds": folds}) < 0


@replication
def recipes(
    rng: np.random.Generator, num_groups: int, size: int, members: int, smooth: float
) -> Outcome:
    """Whether a recipe is called better or worse than itself, or the interval leaves out 0."""
    kind = Kind(0.4, smooth)
    groups = _groups(rng, num_groups, size, False)
    ours, theirs = ((kind, kind.slopes(rng, members)) for _ in range(2))
    pair = number_comparisons.draw(rng, (ours, theirs), len(groups), groups=groups)
    parts = (leave_one_out(one, "crps") for one in pair)
    section = recipe.score_recipes("CRPS", "members", *parts, groups=groups)
    return {"sentence": is_wrong(section, 0.0)}


_scores = named("num_groups size shared unequal")
_setting = named("num_groups size alike unequal")
_recipe = named("num_groups size members smooth")

_SETTINGS = {
    "12 groups of 10 rows": _setting(12, 10, 0.5),
    "8 groups of 10 rows": _setting(8, 10, 0.5),
    "10 groups of 40 rows, much alike": _setting(10, 40, 0.9),
    "20 unequal groups": _setting(20, 10, 0.5, True),
    "50 groups of 4 rows, independent": _setting(50, 4, 0.0),
    "50 unequal groups, much alike": _setting(50, 10, 0.9, True),
    "100 groups of 5 rows": _setting(100, 5, 0.5),
}

STATEMENTS = (
    Statement(
        name="groups.scores",
        claim="Scores of rows that are split by groups, with intervals over groups",
        over="groups",
        made_by=(
            "ensemble.metrics.grouped.group_interval",
            "ensemble.scoring.combine.over_groups",
            "ensemble.metrics.grouped._reach",
            "ensemble.metrics.grouped._share",
        ),
        settings={
            "10 groups of 10 rows": _scores(10, 10, 1.0),
            "8 groups of 10 rows": _scores(8, 10, 0.5),
            "8 groups of 40 rows, much alike": _scores(8, 40, 2.0),
            "10 groups of 40 rows, much alike": _scores(10, 40, 2.0),
            "20 unequal groups": _scores(20, 10, 1.0, True),
            "50 groups of 4 rows, independent": _scores(50, 4, 0.0),
            "50 unequal groups, much alike": _scores(50, 10, 2.0, True),
            "100 groups of 5 rows": _scores(100, 5, 1.0),
        },
        prepare=scores,
        at_least=True,
    ),
    Statement(
        name="groups.sentences",
        claim="Rows in groups: it is better or worse than others, a shift changes it, its bands "
        "are too narrow or too wide",
        over="groups",
        made_by=("ensemble.metrics.grouped.mean_over_groups",),
        settings=_SETTINGS,
        prepare=sentences_of_equals,
        kind=VERDICT,
    ),
    Statement(
        name="groups.advice",
        claim="Rows in groups: a factor, or a temperature, makes it better",
        over="groups of calibration rows",
        made_by=("ensemble.metrics.grouped.mean_over_groups",),
        settings=_SETTINGS,
        prepare=advice_on_equals,
        kind=VERDICT,
    ),
    Statement(
        name="groups.recipes",
        claim="Rows in groups: the other recipe is better, worse, or no worse than by 1%",
        over="members and groups",
        made_by=("ensemble.evaluation.recipe.score_recipes",),
        settings={
            "12 groups of 10 rows, M = 4, equal": _recipe(12, 10, 4, 0.3),
            "8 groups of 10 rows, M = 4, equal": _recipe(8, 10, 4, 0.3),
            "10 groups of 40 rows, M = 8, equal": _recipe(10, 40, 8, 0.3),
            "20 groups of 10 rows, M = 3, equal": _recipe(20, 10, 3, 0.6),
            "50 groups of 4 rows, M = 8, equal": _recipe(50, 4, 8, 0.1),
            "50 groups of 10 rows, M = 4, equal": _recipe(50, 10, 4, 0.6),
        },
        prepare=recipes,
        kind=VERDICT,
    ),
)
