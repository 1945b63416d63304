"""What is tried, and in which order: a function of the seed and of how earlier trials went.

A trial trains a family: cross-fitted networks of one configuration, which hold out all training
rows between them. After the default family come rounds of successive halving (Jamieson and
Talwalkar 2016, arXiv:1502.07943): new families train for a quarter of the epochs, the better half
of them for a half, and the better half of these for all. Each round has twice as many families as
the one before. Every trial trains from the start, because a schedule ends where its trial ends.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ensemble.data.batches import SEARCH_STREAM, seeded_generator

DEFAULT_MODEL = "mlp"
_FIRST_ROUND = 4
_LENGTHS = (4, 2, 1)
"""Parts of the epochs that a family trains for, from rung to rung."""
_DRAWS = 20
"""How many settings are drawn that are all known already, after which there are no others."""

Settings = Mapping[str, Any]
"""Keys of the configuration that differ from the default family's."""

FIRST: tuple[Settings, ...] = (
    {"mlp.embedding": "piecewise_linear", "mlp.widths": "128,128"},
    {"mlp.widths": "256,256", "learning_rate": 1e-3},
    {"mlp.embedding": "periodic", "mlp.widths": "256,256", "learning_rate": 2e-3},
    {
        "mlp.embedding": "piecewise_linear",
        "mlp.widths": "128,128",
        "num_estimators": 8,
        "batch_size": 128,
    },
)
"""The families of the first round."""
_SHARED = 0.2
"""The share of drawn families whose members consist of estimators, which take longer."""
_WIDTHS = ("64,64", "128,128", "256,256", "128,128,128", "256,256,256")


class Proposal(NamedTuple):
    """One family, trained once.

    Attributes:
        family: its number; 0 is the default.
        settings: of the family.
        num_epochs: that it trains for.
    """

    family: int
    settings: Settings
    num_epochs: int


def draw(rng: np.random.Generator) -> Settings:
    """Draws the settings of a family."""
    is_embedded = bool(rng.choice([False, True]))
    found: dict[str, Any] = {
        "mlp.widths": str(rng.choice(_WIDTHS)),
        "mlp.activation": str(rng.choice(["relu", "silu"])),
        "dropout": float(rng.choice([0.0, 0.0, 0.1, 0.2])),
        "learning_rate": _rounded(10 ** rng.uniform(-3, -2)),
        "weight_decay": _rounded(10 ** rng.uniform(-5, -2)),
        "batch_size": int(rng.choice([32, 128])),
    }
    if rng.random() < _SHARED:
        found["num_estimators"] = 8
    if is_embedded:
        found["mlp.embedding"] = str(rng.choice(["piecewise_linear", "periodic"]))
        found["mlp.embedding_size"] = int(rng.choice([8, 16]))
    return found


def proposals(seed: int, num_epochs: int, fixed: Settings) -> Generator[Proposal, float, None]:
    """Yields what to try next, and is sent the held-out NLL of it: infinite of one that failed.

    Args:
        seed: of what is drawn.
        num_epochs: that families train for in the end.
        fixed: keys that all families have, with their values.
    """
    known: list[Settings] = [{}]
    yield Proposal(0, {}, num_epochs)
    drawn = _families(seed, fixed, known)
    for size in (_FIRST_ROUND * 2**k for k in itertools.count()):
        families = list(itertools.islice(drawn, size))
        if not families:
            return  # What is fixed leaves nothing else to try.
        for part in _LENGTHS:
            losses = {}
            for number in families:
                length = max(1, num_epochs // part)
                losses[number] = yield Proposal(number, known[number], length)
            alive = sorted(
                (one for one in losses if losses[one] < math.inf), key=lambda one: losses[one]
            )
            families = alive[: math.ceil(len(alive) / 2)]


def _families(seed: int, fixed: Settings, known: list[Settings]) -> Generator[int, None, None]:
    """Yields numbers of new families, whose settings are added to those known."""
    for number in itertools.count():
        rng = seeded_generator(SEARCH_STREAM, seed, number)
        for settings in [*FIRST[number : number + 1], *(draw(rng) for _ in range(_DRAWS))]:
            own = _without(settings, fixed)
            if own not in known:
                known.append(own)
                yield len(known) - 1
                break
        else:
            return


def _without(settings: Settings, fixed: Settings) -> Settings:
    """Settings that leave fixed keys alone, and those of networks that a fixed one is not."""
    model = settings.get("model", DEFAULT_MODEL)
    is_other = fixed.get("model", model) != model
    return {
        key: one
        for key, one in settings.items()
        if key not in fixed and not (is_other and key.startswith(f"{model}."))
    }


def _rounded(value: float) -> float:
    """Two digits, which are easy to read and to copy."""
    return float(f"{value:.1e}")
