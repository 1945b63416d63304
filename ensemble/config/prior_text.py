"""The grammar of `config.prior`, read without JAX.

    config.prior = "normal(1)"                              # on every parameter
    config.prior = "*bias=normal(1), *kernel=normal(1.4/sqrt(fan_in))"
    config.prior = "Dense_0/*=laplace(0.1), *=student_t(1, df=4)"

A group is a shell pattern over the path of a parameter, such as `Dense_0/kernel`; the first that
matches counts. A scale may be divided by the root of the fan-in, the product of all axes but the
last (1 for vectors), as in Neal (1996).
"""

import math
import re
from typing import Any, NamedTuple

from ensemble.config.keys import LARGEST
from ensemble.config.pieces import Kind, is_path

PRIORS = Kind(
    "prior",
    "prior",
    {
        "normal": "ensemble.priors:Normal",
        "laplace": "ensemble.priors:Laplace",
        "student_t": "ensemble.priors:StudentT",
    },
)
NONE = "none"
_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_TERM = re.compile(
    r"(?:(?P<pattern>[\w*?!\[\]/.-]+)=)?(?P<family>[\w.:/-]+)"
    rf"\((?P<scale>{_NUMBER})(?P<over_fan_in>/sqrt\(fan_in\))?"
    rf"(?:,\s*(?P<name>\w+)=(?P<value>{_NUMBER}))?\)"
)
_BETWEEN_TERMS = re.compile(r",(?![^(]*\))")  # A comma outside of parentheses.


class Prior(NamedTuple):
    """A centred prior on the parameters of a group: one term of a text.

    Attributes:
        pattern: Pattern of the parameters' paths.
        family: Name in `PRIORS`, or path.
        scale: Scale, as the family defines it.
        is_over_fan_in: Whether the scale is divided by the root of the fan-in.
        setting: The family's further number; NaN if it has none.
    """

    pattern: str
    family: str
    scale: float
    is_over_fan_in: bool
    setting: float = math.nan

    def log_density(self, values: Any) -> Any:
        """Log density of the values of one parameter up to a constant, nats."""
        return self._family().log_density(values / self.scale_of(values.shape), self.setting)

    def sample(self, rng_key: Any, shape: tuple[int, ...]) -> Any:
        """Draws the values of one parameter, float32 of that shape."""
        return self.scale_of(shape) * self._family().sample(rng_key, shape, self.setting)

    def standard_deviation(self, shape: tuple[int, ...]) -> float:
        """The standard deviation of each value of a parameter of that shape."""
        return self.scale_of(shape) * float(self._family().standard_deviation(self.setting))

    def scale_of(self, shape: tuple[int, ...]) -> float:
        """The scale for a parameter of that shape."""
        return self.scale / math.sqrt(math.prod(shape[:-1])) if self.is_over_fan_in else self.scale

    def _family(self):
        return PRIORS.load(self.family)()


def read_prior(text: Any) -> tuple[Prior, ...]:
    """Parses a prior; 'none' has no terms.

    Raises:
        ValueError: It is no prior.
    """
    terms = [] if text == NONE else _BETWEEN_TERMS.split(str(text))
    return tuple(_read_term(term.strip()) for term in terms)


def _read_term(term: str) -> Prior:
    if found := _TERM.fullmatch(term):
        family = found["family"]
        scale = float(found["scale"])
        setting = float(found["value"] or math.nan)
        is_usable = is_path(family) or (family in PRIORS and found["name"] is None)
        if family == "student_t":
            is_usable = found["name"] == "df" and 2 < setting < LARGEST
        if is_usable and 1 / LARGEST < scale < LARGEST:  # Squares in float32.
            pattern = found["pattern"] or "*"
            return Prior(pattern, family, scale, bool(found["over_fan_in"]), setting)
    raise ValueError(
        f"has the term {term!r}, which is no prior. Use '{NONE}', or terms such as normal(1), "
        "*bias=laplace(0.5), *kernel=normal(1.4/sqrt(fan_in)), or student_t(1, df=4) with df above "
        "2, with positive scales, separated by commas"
    )
