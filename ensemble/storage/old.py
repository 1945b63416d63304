"""Translates what earlier versions wrote into the names of this one.

An identity is checked over the names that a run began with, so its config.json keeps them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ensemble.config import RENAMED


def in_todays_words(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as it was read, whose blocks have the names that they have now.

    Raises:
        ValueError: it has a block by both names.
    """
    for old, new in RENAMED.items():
        if old in config and new in config:
            raise ValueError(f"it has both config.{old} and config.{new}, which are the same")
    return {RENAMED.get(name, name): value for name, value in config.items()}


def notes_of_today(notes: Sequence[str]) -> list[str]:
    """Notes of a run, whose advice names the keys that there are now."""
    found = list(notes)
    for old, new in RENAMED.items():
        found = [one.replace(f"config.{old}.", f"config.{new}.") for one in found]
    return found


def as_it_began(config: Mapping[str, Any], entry: Mapping[str, Any] | None) -> dict[str, Any]:
    """A configuration whose blocks have the names that its run began with.

    Args:
        config: with the names of today.
        entry: `identity` of the config.json of the run; None where it has none.
    """
    began_with = {key.partition(".")[0] for key in (entry or {}).get("keys", ())}
    names = {new: old for old, new in RENAMED.items() if old in began_with}
    return {names.get(name, name): value for name, value in config.items()}
