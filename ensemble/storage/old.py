"""Everything that is known of runs of earlier versions: what they wrote, in the form of today.

Readers of a workdir hand over what they have read and know the form of today alone: decision 0050.
An identity is checked over the names that a run began with, so its config.json keeps them.
"""

import logging
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import ml_collections

from ensemble.config import RENAMED, all_keys, flatten
from ensemble.config_rules import check, refuse
from ensemble.keys import MAX_STEPS
from ensemble.storage import identity

logger = logging.getLogger("ensemble")

NOT_RESUMED = (
    "a run from before exact copies were kept in one split can be evaluated, but not resumed"
)

_TOLD: set[tuple[os.PathLike[str], str]] = set()
"""Workdirs, and what has been said of them."""


def in_todays_words(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as it was read, whose keys have the names that they have now.

    Probabilities of runs with class weights were not corrected for these, once.

    Raises:
        ValueError: it has a key by both names.
    """
    config = dict(config)
    if {"ensemble_size", "num_chains"} <= config.keys():  # Those of every method, once.
        config.pop("init_from" if config.get("method", "sgd") == "sgd" else "pretrained", None)
        known = {key.partition(".")[0] for key in all_keys()} | RENAMED.keys()
        config = {name: one for name, one in config.items() if name in known}
    for old, new in RENAMED.items():
        if old in config and new in config:
            raise ValueError(f"it has both config.{old} and config.{new}, which are the same")
    if config.get("class_weights", "none") != "none":
        config.setdefault("correct_class_weights", False)
    return {RENAMED.get(name, name): value for name, value in config.items()}


def validate_stored(config: Mapping[str, Any]) -> ml_collections.FrozenConfigDict:
    """A configuration in today's words, with the keys that such a run has today and no others.

    Newer keys have their defaults. Runs once wrote the keys of every method; those of others are
    left out quietly, whatever their values are.

    Raises:
        UserError: as `ensemble.config_rules.validate`.
    """
    given = flatten(config)
    checked = check(given, by_hand=[key for key in given if key == "prior"])
    refuse(checked.conflicts)
    return checked.config


def as_it_began(content: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The content of config.json with another configuration, in the names that its run began with.

    Args:
        content: of the file.
        config: in today's words.
    """
    began_with = {key.partition(".")[0] for key in _entry(content).get("keys", ())}
    names = {new: old for old, new in RENAMED.items() if old in began_with}
    return {**content, "config": {names.get(name, name): one for name, one in config.items()}}


def _entry(content: Mapping[str, Any]) -> Mapping[str, Any]:
    return content.get("identity") or {}


def flags(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of JAX when the run of a config.json began, as far as that is known."""
    found: Mapping[str, Any] = _entry(content).get("jax", {})
    return found


def identity_of(content: Mapping[str, Any], where: os.PathLike[str]) -> str:
    """The identity that config.json says, as it was read; that of no known run before 1.0.

    Raises:
        ValueError: as `identity.read`.
    """
    if content.get("identity") is not None:
        return identity.read(content["identity"], content["config"])
    if (where, "identity") not in _TOLD:
        _TOLD.add((where, "identity"))
        line = "%s is of an earlier version: its parts do not say which run they belong to."
        logger.warning(line, where)
    return identity.UNKNOWN


def with_identity(part: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a workdir that says which run it belongs to: before 1.0, to no known one."""
    return {"identity": identity.UNKNOWN, **part}


def is_sealed(part: Mapping[str, Any], checksum: str) -> bool:
    """Whether a part of a workdir must have the checksum of that name; before 1.0 none has."""
    return "identity" in part or checksum in part


def with_notes(part: Mapping[str, Any]) -> dict[str, Any]:
    """A report, or what a checkpoint says: with its run, and notes that name the keys of today."""
    notes = part.get("notes", [])
    if isinstance(notes, list):
        notes = [_note(one) if isinstance(one, str) else one for one in notes]
    return {**with_identity(part), "notes": notes}


def _note(line: str) -> str:
    for old, new in RENAMED.items():
        line = re.sub(rf"\bconfig\.{old}\b", f"config.{new}", line)
    return line


def checkpoint(
    arrays: dict[str, Any],
    counters: Mapping[str, int],
    where: os.PathLike[str],
    is_resumed: bool = False,
) -> tuple[dict[str, Any], dict[str, int]]:
    """The arrays and counters of a checkpoint.

    Chains once predicted by sums over all their draws; these are left out.

    Before 1.0 it held members that had not caught up, of an ensemble that grew; the others are at
    `waiting_step`, and they alone are returned. It was never within a period of logging, or cannot
    be used. Of a schedule whose steps it does not say, nothing is told when it is stretched.

    Args:
        arrays: [M, ...], and sums of metrics.
        counters: beside them, whole numbers.
        where: the workdir.
        is_resumed: whether the run goes on, and is told of members that start again.

    Raises:
        ValueError: more members wait than there are.
    """
    arrays = _without_sums(arrays, where)
    begun = {} if "totals" in arrays else {"begun": counters["step"]}
    counters = {"member_devices": 1, "last_step": MAX_STEPS, **begun, **counters}
    num_waiting, waiting_step = counters.get("num_waiting", 0), counters.get("waiting_step", 0)
    if "num_waiting" in counters and not num_waiting < counters["num_members"]:
        raise ValueError("more members are waiting than there are")
    if counters["step"] >= waiting_step:
        return arrays, counters
    if is_resumed:
        logger.warning("%s was growing: the members that had not joined start again.", where)
    joined = {
        name: jax.tree.map(lambda leaf: leaf[:num_waiting], tree)
        for name, tree in arrays.items()
        if name != "totals"
    }
    at = {"step": waiting_step, "begun": waiting_step, "num_members": num_waiting}
    return joined, {**at, "member_devices": 1, "last_step": MAX_STEPS}


def _without_sums(arrays: dict[str, Any], where: os.PathLike[str]) -> dict[str, Any]:
    drawn = arrays.get("drawn", {})
    if "sums" not in arrays and "sums" not in drawn:
        return arrays
    if (where, "sums") not in _TOLD:
        _TOLD.add((where, "sums"))
        line = "%s was begun before kept draws predicted: it predicts with those that it kept."
        logger.warning(line, where)
    found = {name: one for name, one in arrays.items() if name != "sums"}
    if drawn:
        found["drawn"] = {name: one for name, one in drawn.items() if name != "sums"}
    return found


def are_of_sums(arrays: Mapping[str, Any]) -> bool:
    """Whether predictions of numbers are sums over draws, of which no distribution is left."""
    return "grid_cdf" in arrays


def predictions(arrays: dict[str, Any], binding: Mapping[str, str]) -> dict[str, Any]:
    """The arrays of a file of predictions, which say what they belong to.

    Args:
        arrays: as they were read.
        binding: what they must say beside their identity; before 1.0 they say nothing.
    """
    if "labels" in arrays:
        arrays = {**arrays, "targets": arrays["labels"]}
        del arrays["labels"]
    if "identity" in arrays:
        return arrays
    of_run = {name: one for name, one in binding.items() if name != "identity"}
    return with_identity({**of_run, **arrays})


def as_it_was_split(load: Callable[..., Any], fingerprint: str, where: Any) -> Any:
    """The data of a run, split as they are today or, if its fingerprint says so, as before 1.0.

    Args:
        load: makes the source, with fields of `ensemble.source.Request` that are given by name.
        fingerprint: of the run.
        where: its workdir.

    Returns:
        That source; as it is split today if neither has the fingerprint.
    """
    now = load()
    if now.fingerprint == fingerprint:
        return now
    before = load(copies_together=False)
    if before.fingerprint != fingerprint:
        return now
    line = "%s is of before exact copies were kept in one split: it is evaluated as it was split."
    logger.warning(line, where)
    return before
