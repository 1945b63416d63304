"""Which of the keys that were set a run has, and the rules that their values must keep.

`validate` is called on whatever arrives. The method, the model and the likelihood are read first,
and say which keys there are; what then cannot stand is told at once.
"""

import logging
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import ml_collections
import numpy as np

from ensemble import registry
from ensemble.config import (
    RUN,
    all_keys,
    ask_for,
    blank,
    built_in_keys,
    flatten,
    likelihood_block,
    method_block,
    model_block,
    task_block,
    unknown_key,
)
from ensemble.errors import UserError
from ensemble.keys import Block, Key

logger = logging.getLogger("ensemble")

_FLOATS = (1e-15, 1e15)  # The squares of what is beyond would leave float32.
_NO_PRIOR = "none"
_NOTHING = ml_collections.FrozenConfigDict()


class Checked(NamedTuple):
    """A configuration, and what is wrong with it.

    Attributes:
        config: the keys of the run; what breaks its own rule has its default.
        task: a name of `registry.TASKS`.
        conflicts: lines, each with values, a rule and a remedy; empty where all is well.
        dropped: `key=value` of what the configuration sets for other methods, tasks and models.
        default_prior: the prior, where nobody has set the one that the method requires.
    """

    config: ml_collections.FrozenConfigDict
    task: str
    conflicts: list[str]
    dropped: list[str]
    default_prior: str | None


def validate(
    config: Mapping[str, Any], by_hand: Collection[str] | None = None
) -> ml_collections.FrozenConfigDict:
    """Completes a configuration with the defaults of its method, task and model, and checks it.

    What the configuration sets for other ones is left out, with one line in the log; what somebody
    has set by hand is refused.

    Args:
        config: a `ConfigDict` or a nested dict with some or all of the keys of `default_config`.
        by_hand: the keys that were set by hand, on the command line; None: all that are there, but
            of a configuration with every key, which started from `default_config`, none.

    Returns:
        The keys of this run, frozen.

    Raises:
        UserError: keys are unknown or of another method, task or model, or values have the wrong
            type, break their rules or cannot stand together; all in one line.
    """
    checked = check(config, by_hand)
    refuse(checked.conflicts)
    log_choices(checked)
    return checked.config


def log_choices(checked: Checked) -> None:
    """Logs what was decided for the user: a line for keys left out, one for a default prior."""
    if checked.dropped:
        logger.warning(
            "Left out, for config.method=%r%s has no use for them here: %s.",
            checked.config.method,
            f" with config.model={checked.config.model!r}" if "model" in checked.config else "",
            ", ".join(checked.dropped),
        )
    if checked.default_prior:
        logger.info(
            "config.prior was not set; config.method=%r takes %r.",
            checked.config.method,
            checked.default_prior,
        )


def refuse(conflicts: list[str]) -> None:
    """Raises `UserError` with all the conflicts in one line, if there are any."""
    if len(conflicts) == 1:
        raise UserError(conflicts[0])
    if conflicts:
        numbered = "; ".join(f"({k}) {line}" for k, line in enumerate(conflicts, 1))
        raise UserError(f"{len(conflicts)} settings cannot stand: {numbered}")


def check(config: Mapping[str, Any], by_hand: Collection[str] | None = None) -> Checked:
    """Finds a run's keys and values, and all that is wrong with them; `validate` has the arguments.

    Where the method is unknown, nothing can be said of the rest.
    """
    given = {
        key: value.item() if isinstance(value, np.generic) else value
        for key, value in flatten(config).items()
    }
    ask_for(given)
    known = all_keys()
    unknown = [unknown_key(key, known) for key in given if key not in known]
    given = {key: value for key, value in given.items() if key in known}
    is_whole = given.keys() >= built_in_keys().keys()
    if by_hand is None:
        by_hand = () if is_whole else given.keys()
    method = given.get("method", RUN.keys["method"].default)
    if not isinstance(method, str) or method not in registry.METHODS:
        line = f"config.method={method!r} {RUN.keys['method'].rule.text}"
        return Checked(_NOTHING, "", [*unknown, line], [], None)
    model = given.get("model", known["model"].default)
    task, conflicts = _task(method, given)
    conflicts = unknown + conflicts
    blocks = [RUN, task_block(task), method_block(method)]
    likelihood = given.get("likelihood", known["likelihood"].default)
    if "model" in task_block(task).keys:
        blocks.append(model_block(model))
    if "likelihood" in task_block(task).keys:
        blocks.append(likelihood_block(likelihood))
    own = {key: one for block in blocks for key, one in block.keys.items()}
    foreign = _foreign(given, own, method_block(method), by_hand)
    conflicts += _foreign_conflicts(
        {k: v for k, v in foreign.items() if k in by_hand and not known[k].is_off(v)},
        {"method": method, "task": task, "model": model, "likelihood": likelihood, "given": given},
        blocks,
    )
    complete, default_prior = blank(own), None
    broken = set()
    for key, value in given.items():
        if key in foreign:
            continue
        problem = _set(complete, key, value, own[key])
        if problem:
            conflicts.append(problem)
            broken.add(key)
    for key, value in method_block(method).empty.items():
        if complete[key] == "":
            complete[key] = value
    if registry.METHODS[method].requires_prior and complete.get("prior") == _NO_PRIOR:
        if "prior" in by_hand:
            conflicts.append(
                f"config.method={method!r} samples a posterior, which config.prior='none' does "
                f"not have; set it to such as 'normal(1)', or leave it out for "
                f"{registry.TASKS[task].default_prior!r}"
            )
            broken.add("prior")
        else:
            complete.prior = default_prior = registry.TASKS[task].default_prior
    values = flatten(complete)
    for block in blocks:
        found = block.conflicts(values)
        conflicts += [one.line for one in found if broken.isdisjoint(one.keys)]
    dropped = [
        f"{key}={value!r}"
        for key, value in foreign.items()
        if key not in by_hand and value != known[key].default and not known[key].is_off(value)
    ]
    frozen = ml_collections.FrozenConfigDict(complete)
    return Checked(frozen, task, conflicts, dropped, default_prior)


def _foreign(
    given: Mapping[str, Any], own: Collection[str], method: Block, by_hand: Collection[str]
) -> dict[str, Any]:
    """The keys that a configuration sets for other methods, tasks and models than its own."""
    found = {key: value for key, value in given.items() if key not in own}
    if "method" in by_hand:
        for key, is_foreign in method.leaves_out.items():
            if key in given and key not in by_hand and is_foreign(given[key]):
                found[key] = given[key]
    return found


def _task(method: str, given: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The task of a run, and what is wrong with it."""
    task = registry.task_of({**given, "method": method})
    meant = next((name for name in registry.TASKS if registry.is_meant(name, given)), task)
    if meant == task or "model" not in task_block(task).keys:
        return task, []
    entry = registry.TASKS[meant]
    key, remedy = ("model", "choose another model") if entry.models else (entry.key, "leave it out")
    able = [name for name in registry.METHODS if meant in registry.tasks_of(name)]
    rule = f"must be {' or '.join(able)} for config.{key}={given[key]!r}"
    return meant, [f"config.method={method!r} {rule}; or {remedy}"]


_IN_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "a truth value"}


def _set(config: ml_collections.ConfigDict, name: str, value: Any, key: Key) -> str | None:
    """Sets a value, if it can stand; else returns the line that says why not."""
    kind = key.kind or type(key.default)
    try:
        if isinstance(value, bool) and kind in (int, float):
            raise TypeError("a bool would count as 0 or 1")
        config.update_from_flattened_dict({name: value})
    except (TypeError, ValueError, OverflowError):
        wanted = _IN_WORDS.get(kind, "of another type")
        rule = f"must be {wanted}, and {key.rule.text}"
        if isinstance(value, list) and isinstance(key.default, str):
            rule = f"is written as text: {','.join(map(str, value))!r}"
        return f"config.{name}={value!r} has the wrong type {type(value).__name__}; it {rule}"
    value = flatten(config)[name]
    line = _broken_rule(name, value, key)
    if line:
        config.update_from_flattened_dict({name: key.default})
    return line


def _broken_rule(name: str, value: Any, key: Key) -> str | None:
    """What is wrong with one value, whatever the others are: it breaks its rule, or is missing, or
    beyond what the devices' numbers hold."""
    if value is None:
        if key.default is None:
            return None
        return f"config.{name}=None must have a value; leave it out for {key.default!r}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"config.{name}={value} must be finite"
    smallest, largest = _FLOATS
    if isinstance(value, float) and value and not smallest <= abs(value) <= largest:
        return (
            f"config.{name}={value} must be from {smallest:g} to {largest:g} in size: its square "
            "must fit in float32"
        )
    if isinstance(value, int) and abs(value) > key.most:
        return f"config.{name}={value} must be at most {key.most}"
    return None if key.rule.holds(value) else f"config.{name}={value!r} {key.rule.text}"


def _foreign_conflicts(
    foreign: Mapping[str, Any], chosen: Mapping[str, Any], blocks: Iterable[Block]
) -> list[str]:
    """Lines for keys set by hand that belong to other methods, tasks and such; one an owner."""
    instead = {key: text for block in blocks for key, text in block.instead.items()}
    groups: dict[tuple[str, str], list[str]] = {}
    for key in foreign:
        groups.setdefault(_owner(key, **chosen), []).append(key)
    lines = []
    for (owner, own), keys in groups.items():
        is_one = len(keys) == 1
        texts = [f"config.{key}={foreign[key]!r}" for key in keys]
        line = f"{_listed(texts, 'and')} {'is' if is_one else 'are'} for {owner}, "
        line += f"and this run has {own}: leave {'it' if is_one else 'them'} out, or choose {owner}"
        remedies = dict.fromkeys(instead[key] for key in keys if key in instead)
        lines.append("; ".join([line, *remedies]))
    return lines


def _owner(
    key: str, method: str, task: str, model: Any, likelihood: Any, given: Mapping[str, Any]
) -> tuple[str, str]:
    """What a run must have for a key to be its own, and what it has instead."""
    for name in registry.LIKELIHOODS:
        if key in likelihood_block(name).keys:
            return f"config.likelihood={name!r}", f"config.likelihood={likelihood!r}"
    methods = [name for name in registry.METHODS if key in method_block(name).keys]
    if not methods:
        tasks = {name: one for name, one in registry.TASKS.items() if key in task_block(name).keys}
        models = [repr(name) for one in tasks.values() for name in one.models]
        models += [repr(name) for name in registry.NETWORKS if key in model_block(name).keys]
        if all(one.models for one in tasks.values()):
            has_model = "model" in task_block(registry.tasks_of(method)[0]).keys
            own = f"config.model={model!r}" if has_model else f"config.method={method!r}"
            return f"config.model={_listed(models, 'or')}", own
        methods = [
            name
            for name in registry.METHODS
            if not tasks.keys().isdisjoint(registry.tasks_of(name))
        ]
        if method in methods:
            meant = [one for name, one in tasks.items() if name in registry.tasks_of(method)]
            return _task_owner(meant[0], registry.TASKS[task], model, given)
    return f"config.method={_listed(map(repr, methods), 'or')}", f"config.method={method!r}"


def _task_owner(
    wanted: registry.TaskEntry, own: registry.TaskEntry, model: Any, given: Mapping[str, Any]
) -> tuple[str, str]:
    """Does what `_owner` does for two tasks of the same method."""
    if own.models:
        return "config.model='mlp' or another network", f"config.model={model!r}"
    choice = "''" if own.key else "..."
    key = own.key or wanted.key
    return f"config.{key}={choice}", f"config.{key}={given.get(key, '')!r}"


def _listed(texts: Iterable[str], word: str) -> str:
    *others, last = texts
    return f"{', '.join(others)} {word} {last}" if others else last
