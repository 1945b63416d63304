"""Coverage by group and over time: whether a promise that holds on average holds in each."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble import metrics
from ensemble.errors import shown
from ensemble.metrics.grouped import MIN_GROUPS
from ensemble.source import Strata

OVER = "test examples; the members stay as they are"
"""What would be drawn anew, in words that stand beside intervals."""
OVER_BOTH = "test examples and unfamiliar ones; the members stay as they are"
"""The same of how well these are told from each other."""
OVER_GROUPS = "groups; the members stay as they are"
"""The same where rows of one group may be alike."""
NUM_PERIODS = 5
_ENOUGH = 20  # Rows of a group that a sentence is about.
_TIME = "time"


def by_stratum(held: NDArray, strata: Strata | None) -> list[dict[str, Any]]:
    """How often something holds in each group, the largest first, or in consecutive periods.

    Args:
        held: [N] bool, of the test rows.
        strata: of these; None where there are none.

    Returns:
        Of each its `name`, `num_examples`, `share`, and the 95% `interval` of the share (Clopper
        and Pearson 1934).
    """
    if strata is None:
        return []
    names = _periods(strata) if strata.kind == _TIME else strata.values
    found, first, index = np.unique(names, return_index=True, return_inverse=True)
    counts = np.bincount(index)
    order = np.argsort(-counts, kind="stable")
    if strata.kind == _TIME:
        order = np.argsort(strata.values[first], kind="stable")
    sections = []
    for i in order:
        num_held, count = int(held[index == i].sum()), int(counts[i])
        sections.append(
            {
                "name": str(found[i]),
                "num_examples": count,
                "share": num_held / count,
                "interval": list(metrics.error_interval(num_held, count)),
            }
        )
    return sections


def groups_of(strata: Strata | None) -> NDArray | None:
    """The group of each row [N]; None where rows are split at random or over time."""
    return None if strata is None or strata.kind == _TIME else strata.values


def too_few(test: Mapping[str, Any]) -> str:
    """Why no interval over groups can be told; empty where one can.

    Args:
        test: of an evaluation, as `sections.score_test` returns it.
    """
    if test.get("num_groups", MIN_GROUPS) >= MIN_GROUPS:
        return ""
    number, column = test["num_groups"], shown(test["over_groups"])
    if number == 1:
        return f"one group of {column} is too little to tell of others"
    return f"{number} groups of {column} are too few to tell of others"


def no_promise(test: Mapping[str, Any]) -> str:
    """Why no error is promised of accepted predictions; empty of rows that are independent.

    Args:
        test: of an evaluation, as `sections.score_test` returns it.
    """
    if "over_groups" not in test:
        return ""
    return (
        "No error can be promised of what it accepts: thresholds of abstention count rows one by "
        "one, and those of one group may be alike."
    )


def sentence(sections: Sequence[Mapping[str, Any]], split: str) -> str:
    """What conformal promises are worth where rows are split by groups or by time.

    Args:
        sections: of `by_stratum`; may be empty.
        split: `config.split`.

    Returns:
        Empty where rows are split at random.
    """
    kind, _, column = split.partition(":")
    if not kind:
        return ""
    if kind == _TIME:
        text = (
            f"Rows are split by time, {shown(column)}: what is promised of conformal predictions "
            "supposes that later rows are like those of calibration"
        )
        if sections:
            last = sections[-1]
            low, high = last["interval"]
            text += f"; of the last period, {shown(last['name'])}, they hold "
            text += f"{last['share']:.1%} [{low:.1%}, {high:.1%}]"
        return f"{text}."
    text = (
        f"Rows are split by {shown(column)}: what is promised of conformal predictions is marginal "
        "over the groups, so it is for their average and not for each"
    )
    large = [one for one in sections if one["num_examples"] >= _ENOUGH]
    if len(large) > 1:
        shares = [one["share"] for one in large]
        text += (
            f"; they hold from {min(shares):.1%} to {max(shares):.1%} in the {len(large)} groups "
            f"of {_ENOUGH} test rows or more, which is {'more' if _differ(large) else 'no more'} "
            "than chance"
        )
    return (
        f"{text}. Intervals of the scores of the test split, of what calibration changes, and of "
        "differences from others are over groups; all others here take rows for independent of "
        "each other, and are too narrow where those of a group are alike."
    )


def _differ(sections: Sequence[Mapping[str, Any]]) -> bool:
    """Whether shares differ by more than chance: an exact test at 5%, by drawing who is held."""
    sizes = np.array([one["num_examples"] for one in sections])
    held = np.array([round(one["share"] * one["num_examples"]) for one in sections])
    drawn = np.random.default_rng(0).multivariate_hypergeometric(sizes, held.sum(), 999)
    expected = sizes * held.sum() / sizes.sum()
    found, by_chance = (
        np.sum((each - expected) ** 2 / sizes, axis=-1).round(9) for each in (held, drawn)
    )
    return bool(1 + np.sum(by_chance >= found) <= 0.05 * (1 + len(drawn)))


def _periods(strata: Strata) -> NDArray:
    """The names [N] of periods of about as many rows each; equal times are in one."""
    values = strata.values
    edges = np.unique(np.quantile(values, np.linspace(0, 1, NUM_PERIODS + 1)[1:-1], method="lower"))
    index = np.searchsorted(edges, values, side="left")
    names = np.empty(len(values), object)
    for i in np.unique(index):
        low, high = values[index == i].min(), values[index == i].max()
        ends = [_written(one, strata.has_dates) for one in (low, high)]
        names[index == i] = " to ".join(dict.fromkeys(ends))
    return names.astype(str)


def _written(value: float, is_date: bool) -> str:
    if not is_date:
        return f"{value:.6g}"
    return str(np.datetime64("1970-01-01") + np.timedelta64(int(np.floor(value)), "D"))
