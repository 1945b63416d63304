"""The keys of likelihoods that have some.

They are not beside their likelihoods, for that folder imports JAX.
"""

import itertools
import math

from ensemble.keys import POSITIVE, Block, Key, Rule

AUTO = "auto"
"""The likelihood that is chosen by the column to learn."""
LIKELIHOODS = {"labels": "categorical", "targets": "gaussian"}
"""The likelihood that is chosen, by what is learned."""

MAX_COMPONENTS, MAX_LEVELS = 100, 999


def parse_levels(text: str) -> tuple[float, ...]:
    """Reads levels of quantiles, such as `0.05,0.5,0.95`.

    Raises:
        ValueError: they are no numbers separated by commas.
    """
    return tuple(float(number) for number in text.split(","))


def are_levels(levels: tuple[float, ...]) -> bool:
    """Whether quantiles of these levels can be learned."""
    is_ascending = all(a < b for a, b in itertools.pairwise(levels))
    is_within = all(math.isfinite(one) and 0 < one < 1 for one in levels)
    return is_within and is_ascending and 0.5 in levels and 1 < len(levels) <= MAX_LEVELS


def _is_list_of_levels(text: str) -> bool:
    try:
        return are_levels(parse_levels(text))
    except ValueError:
        return False


MIXTURE = Block(
    {
        "mixture_of_gaussians.components": Key(
            5, "Gaussians in the mixture of one member", POSITIVE, most=MAX_COMPONENTS
        ),
    }
)

QUANTILES = Block(
    {
        "quantiles.levels": Key(
            "0.025,0.05,0.25,0.5,0.75,0.95,0.975",
            "levels of the quantiles",
            Rule(
                _is_list_of_levels,
                "must be ascending numbers between 0 and 1, with 0.5 among them, such as "
                "0.05,0.5,0.95",
            ),
        ),
    }
)
