"""All statements that are simulated, and how many replications came out how."""

import importlib
import logging
import pathlib
import zlib
from collections.abc import Iterable, Iterator

import numpy as np

from simulations.statement import Statement

OF_APPLICATIONS = ("walks",)
"""Modules that go with an application, and are left out where it has been removed."""
MODULES = (
    "members abstention censored walks class_decisions detection class_scores comparisons "
    "findings groups methods number_comparisons number_sentences numbers posteriors "
    "predictive_errors quantile_sentences shifts starts stopping"
)
"""The modules that have statements, in the order of the page."""

STATEMENTS: tuple[Statement, ...] = tuple(
    statement
    for module in MODULES.split()
    if module not in OF_APPLICATIONS or (pathlib.Path(__file__).with_name(f"{module}.py")).exists()
    for statement in importlib.import_module(f"simulations.{module}").STATEMENTS
)


def simulate(statement: Statement, setting: str, replications: Iterable[int]) -> dict[str, dict]:
    """Counts the outcomes of replications, each of which has a seed of its own.

    Args:
        statement: what is simulated.
        setting: title of one of its settings.
        replications: numbers of the replications.

    Returns:
        By part: `stated`, in how many replications anything was stated, and `yes`, in how many the
        interval held, or the verdict was wrong.
    """
    replicate = statement.prepare(**statement.settings[setting])
    counts: dict[str, dict] = {}
    for number in replications:
        seed = [zlib.crc32(f"{statement.name}: {setting}".encode()), number]
        for part, outcome in replicate(np.random.default_rng(seed)).items():
            count = counts.setdefault(part, {"stated": 0, "yes": 0})
            count["stated"] += outcome is not None
            count["yes"] += bool(outcome)
    return counts


def simulate_block(name: str, setting: str, start: int, stop: int) -> dict[str, dict]:
    """`simulate` in a process of its own: replications from `start` to before `stop`."""
    logging.disable(logging.WARNING)  # What is said of one run is not of interest in thousands.
    (statement,) = [one for one in STATEMENTS if one.name == name]
    return simulate(statement, setting, range(start, stop))


def rows(results: dict) -> Iterator[dict]:
    """The rows of a table: one for each part of a statement in each setting.

    Args:
        results: as `__main__` writes them, by statement and setting.

    Yields:
        `statement`, `setting`, `part`, `found` (None where nothing was stated), `stated` (share of
        the replications), `replications`, `is_met` (None where it cannot be told).
    """
    for statement in STATEMENTS:
        for setting in statement.settings:
            result = results.get(statement.name, {}).get(setting)
            for part, count in (result or {"counts": {}})["counts"].items():
                yield {
                    "statement": statement,
                    "setting": setting,
                    "part": part,
                    "replications": result["replications"],
                    "stated": count["stated"] / result["replications"],
                    "found": count["yes"] / count["stated"] if count["stated"] else None,
                    "is_met": is_met(statement, count, result["replications"]),
                }


def is_met(statement: Statement, count: dict, replications: int, errors: float = 2.0) -> bool:
    """Whether a share is where it should be, but for the error of the simulation.

    A verdict's share is of all replications: one that is seldom made is seldom wrong. An interval's
    is of those in which it was stated.

    Args:
        statement: what is simulated.
        count: `stated` and `yes`.
        replications: how many there were.
        errors: how many standard errors of the simulation are allowed.
    """
    low, high = statement.bounds()
    number = replications if statement.kind == "verdict" else count["stated"]
    if not number:
        return True
    found = count["yes"] / number
    slack_low, slack_high = (errors * np.sqrt(end * (1 - end) / number) for end in (low, high))
    return bool(low - slack_low <= found <= high + slack_high)
