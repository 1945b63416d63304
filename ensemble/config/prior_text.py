"""The grammar of `config.prior`, read without JAX.

    config.prior = "normal(1)"                              # on every parameter
    config.prior = "*bias=normal(1), *kernel=normal(1.4/sqrt(fan_in))"
    config.prior = "Dense_0/*=laplace(0.1), *=normal(1)"
    config.prior = "Conv_*/kernel=correlated_normal(1/sqrt(fan_in), length=2), *=student_t(1, df=4)"

A group is a shell pattern over the path of a parameter, such as `Dense_0/kernel`; the first that
matches counts. A scale may be divided by the root of the fan-in, the product of all axes but the
last (1 for vectors), as in Neal (1996).
"""

import re
from typing import NamedTuple

from ensemble.config.keys import LARGEST, SMALLEST
from ensemble.config.pieces import PRIORS, is_path

NONE = "none"
_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_TERM = re.compile(
    r"(?:(?P<pattern>[\w*?!\[\]/.-]+)=)?(?P<family>[\w.:/-]+)"
    rf"\((?P<scale>{_NUMBER})(?P<over_fan_in>/sqrt\(fan_in\))?"
    rf"(?:,\s*(?P<name>\w+)=(?P<value>{_NUMBER}))?\)"
)
_BETWEEN_TERMS = re.compile(r",(?![^(]*\))")  # A comma outside of parentheses.


_SETTINGS = {"student_t": ("df", 2.0, LARGEST), "correlated_normal": ("length", SMALLEST, 1e3)}
"""The number that a built-in family needs besides its scale: above the first, up to the last."""
_TERMS = (
    "normal(1), *bias=laplace(0.5), *kernel=normal(1.4/sqrt(fan_in)), student_t(1, df=4) with df "
    "above 2, or correlated_normal(1, length=2) with length up to 1000 pixels"
)


class Term(NamedTuple):
    """One term of a prior.

    Attributes:
        pattern: Of the parameters' paths.
        family: Name or path of the family.
        scale: As the family defines it.
        is_over_fan_in: Whether the scale is divided by the root of the fan-in.
        setting: Name and value of a further number; None without one.
    """

    pattern: str
    family: str
    scale: float
    is_over_fan_in: bool
    setting: tuple[str, float] | None


def read_prior(text: str) -> tuple[Term, ...]:
    """Parses a prior; 'none' has no terms.

    Raises:
        ValueError: It is no prior.
    """
    if not isinstance(text, str):
        raise ValueError(f"must be text, such as 'normal(1)', or '{NONE}'")
    if text == NONE:
        return ()
    return tuple(_read_term(term.strip()) for term in _BETWEEN_TERMS.split(text))


def _read_term(term: str) -> Term:
    if found := _TERM.fullmatch(term):
        family = found["family"]
        scale = float(found["scale"])
        number = float(found["value"] or 0)
        setting, low, high = _SETTINGS.get(family, (None, 0, 0))
        is_usable = found["name"] == setting and (setting is None or low < number <= high)
        if family not in PRIORS.names:
            is_usable = is_path(family)
        if is_usable and SMALLEST < scale < LARGEST:
            own = (found["name"], number) if found["name"] else None
            is_over_fan_in = found["over_fan_in"] is not None
            return Term(found["pattern"] or "*", family, scale, is_over_fan_in, own)
    raise ValueError(
        f"has the term {term!r}, which is no prior. Use '{NONE}', or terms such as {_TERMS}, with "
        "positive scales, separated by commas"
    )
