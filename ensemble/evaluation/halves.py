"""How near two predictions can be expected to be: halves of each ensemble against each other.

Two halves of one ensemble predict differently because they have finitely many members or chains.
What that says of the whole ensemble, and of two ensembles with one law, follows to first order:
errors of means of M members fall as 1 / sqrt(M).
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_SPLITS = 10


def split_weights(num_members: int) -> NDArray:
    """Weights [S, 2, M] of the members in each half: all splits, or ten random ones of many.

    Args:
        num_members: M; of a single one there is no split.
    """
    size, everyone = num_members // 2, range(num_members)
    if math.comb(num_members, size) <= 2 * MAX_SPLITS:
        halves = [set(one) for one in itertools.combinations(everyone, size)]
        if 2 * size == num_members:  # Else each would come twice.
            halves = [one for one in halves if 0 in one]
        halves = halves[:MAX_SPLITS] if size else []
    else:
        rng = np.random.default_rng(0)
        halves = [set(rng.permutation(num_members)[:size].tolist()) for _ in range(MAX_SPLITS)]
    first = np.array([[k in half for k in everyone] for half in halves], float)
    first = first.reshape(-1, num_members)
    return np.stack([first / max(size, 1), (1 - first) / (num_members - size)], axis=1)


def by_chance(
    ours: float | None, num_ours: int, theirs: float | None, num_theirs: int
) -> float | None:
    """How far the predictions of two ensembles with one law are apart, about.

    Args:
        ours: mean distance of two halves of one; None if it has one member.
        num_ours: members of it.
        theirs: the same of the other.
        num_theirs: members of the other.
    """
    if ours is None or theirs is None:
        return None
    shares = [(m // 2) * (m - m // 2) / m**2 for m in (num_ours, num_theirs)]
    return math.sqrt(shares[0] * ours**2 + shares[1] * theirs**2)


def of_classes(log_probs: NDArray) -> dict[str, float] | None:
    """Mean agreement and total variation of two halves of an ensemble; None of one member.

    Args:
        log_probs: [M, N, C] of the members.
    """
    weights, probs = split_weights(len(log_probs)), np.exp(log_probs)
    if not len(weights):
        return None
    found = []
    for pair in weights:
        first, second = (np.tensordot(one, probs, axes=1) for one in pair)
        agreement = np.mean(first.argmax(axis=-1) == second.argmax(axis=-1))
        found.append((agreement, np.abs(first - second).sum(axis=-1).mean() / 2))
    agreement, variation = np.mean(found, axis=0)
    return {"agreement": float(agreement), "total_variation": float(variation)}


def sentence(comparison: Mapping[str, Any]) -> str:
    """How far the predictions are from the other workdir's, and how far they would be by chance.

    Args:
        comparison: as `Evaluator.compare` returns it.
    """
    halves = comparison.get("halves")
    if "total_variation" in comparison:
        text = (
            f"They predict the same class on {comparison['agreement']:.1%} of test examples, and "
            f"the total variation of their probabilities is {comparison['total_variation']:.2g}"
        )
        name = "total_variation"
    elif "wasserstein" in comparison:
        text = (
            f"The Wasserstein distance of their distributions is {comparison['wasserstein']:.2g} "
            "of the other's standard deviations"
        )
        name = "wasserstein"
    else:
        return ""
    chance = comparison[f"{name}_by_chance"]
    if halves is None or chance is None:
        return f"{text}; what chance makes of it takes two members of each."
    same = f"{halves['agreement']:.1%} and " if "agreement" in halves else ""
    return (
        f"{text}; by chance alone, with so many members, it would be about {chance:.2g} (two "
        f"halves of the other: {same}{halves[name]:.2g})."
    )
