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
from collections.abc import Generator, Iterator, Mapping
from typing import Any

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


def draw(rng: np.random.Generator) -> Settings:
    """Draws the settings of a family."""
    is_embedded = bool(rng.choice([False, True]))
    found: dict[str, Any] = {
        "mlp.widths": str(rng.choice(_WIDTHS)),
        "mlp.activation": str(rng.choice(["relu", "silu"])),
        "dropout": float(rng.choice([0.0, 0.0, 0.1, 0.2])),
        "learning_rate": _rounded(rng.uniform(-3, -2)),
        "weight_decay": _rounded(rng.uniform(-5, -2)),
        "batch_size": int(rng.choice([32, 128])),
    }
    if rng.random() < _SHARED:
        found["num_estimators"] = 8
    if is_embedded:
        found["mlp.embedding"] = str(rng.choice(["piecewise_linear", "periodic"]))
        found["mlp.embedding_size"] = int(rng.choice([8, 16]))
    return found


def proposals(seed: int, num_epochs: int, fixed: Settings) -> Generator[Settings, Any, None]:
    """Yields what to try next, and is sent the held-out NLL of it: infinite of one that failed.

    Args:
        seed: Seed of what is drawn.
        num_epochs: Epochs that families train for in the end.
        fixed: Keys that all families have, with their values.

    Yields:
        Settings of a family, with `num_epochs`.
    """
    yield {"num_epochs": num_epochs}
    drawn = _families(seed, fixed)
    for size in (_FIRST_ROUND * 2**k for k in itertools.count()):
        families = list(itertools.islice(drawn, size))
        if not families:
            return
        for part in _LENGTHS:
            ranked = []
            for k, family in enumerate(families):
                loss = yield {**family, "num_epochs": max(1, num_epochs // part)}
                if loss < math.inf:
                    ranked.append((loss, k))
            better = sorted(ranked)[: math.ceil(len(ranked) / 2)]
            families = [families[k] for _, k in better]


def _families(seed: int, fixed: Settings) -> Iterator[Settings]:
    """Yields new families, which leave alone what is fixed, and keys of another network."""
    is_other = fixed.get("model", DEFAULT_MODEL) != DEFAULT_MODEL
    known: list[Settings] = [{}]
    for number in itertools.count():
        rng = seeded_generator(SEARCH_STREAM, seed, number)
        for settings in [*FIRST[number : number + 1], *(draw(rng) for _ in range(_DRAWS))]:
            own = {
                key: one
                for key, one in settings.items()
                if key not in fixed and not (is_other and key.startswith(f"{DEFAULT_MODEL}."))
            }
            if own not in known:
                break
        else:
            return  # What is fixed leaves nothing else to try.
        known.append(own)
        yield own


def _rounded(exponent: float) -> float:
    """A power of ten in two digits, which are easy to read and to copy."""
    return float(f"{10**exponent:.1e}")
