"""The configuration: which keys a run has, with their defaults.

A configuration is an `ml_collections.ConfigDict`; the files in `configs/` start from
`default_config()`, which has every key, and override. A run has the keys of every run (`RUN`),
those of its method, task, model and likelihood, and no others; `config_rules.validate` sorts that
out.
"""

import contextlib
import difflib
import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

import ml_collections

from ensemble import registry
from ensemble.errors import Unregistered, UserError, in_one_line
from ensemble.keys import POSITIVE, Block, Key, Rule, described, named_in, one_of
from ensemble.tenants import Tenants

FORMAT = 1
"""Version of everything written to a workdir: config, checkpoints, report."""

MAX_SEED = 2**32 - 1

RENAMED = {"hmc": "sampler", "pretrained": "init_from"}
"""Keys, and blocks of keys, that had other names in earlier versions, with those they have now."""

RUN = Block(
    {
        "method": Key("sgd", "how members move", named_in(registry.METHODS)),
        "seed": Key(
            0,
            "equal seeds give equal results",
            Rule(lambda value: 0 <= value < 2**32, "must be at least 0 and below 2**32"),
            most=MAX_SEED,
        ),
        "num_devices": Key(
            None,
            "devices to use; None: every core, or every accelerator",
            POSITIVE,
            may_change=True,
            kind=int,
        ),
        "on_nonfinite": Key(
            "freeze",
            "whether a member that is no longer finite is frozen or ends the run",
            one_of("freeze", "stop"),
        ),
        "log_every_steps": Key(
            50, "steps between two lines of metrics; of chains, an epoch", POSITIVE, may_change=True
        ),
        "eval_every_epochs": Key(1, "epochs between two evaluations", POSITIVE, may_change=True),
        "plot_every_epochs": Key(
            10, "epochs between two sets of pictures", POSITIVE, may_change=True
        ),
        "checkpoint_every_epochs": Key(
            1, "epochs between two checkpoints", POSITIVE, may_change=True
        ),
        "keep_checkpoints": Key(3, "checkpoints that are kept", POSITIVE, may_change=True),
        "writers": Key(
            "",
            "writers of your own, which get the metrics of the run",
            described("must be empty, or names of registered or installed writers: csv,mlflow"),
            may_change=True,
        ),
    }
)
"""The keys of every run."""


def method_block(name: str) -> Block:
    """The keys of a method."""
    return _block_of(registry.METHODS, name)


def task_block(name: str) -> Block:
    """The keys of a task."""
    return _block_of(registry.TASKS, name)


def model_block(name: Any) -> Block:
    """The keys of a model; most have none."""
    return _block_of(registry.NETWORKS, name)


def likelihood_block(name: Any) -> Block:
    """The keys of a likelihood; most have none."""
    return _block_of(registry.LIKELIHOODS, name)


_NO_KEYS = Block({})


def _block_of(tenants: Tenants[Any], name: Any) -> Block:
    entry = tenants.get(name) if isinstance(name, str) else None
    if entry is None or entry.block == "":
        return _NO_KEYS
    block: Block = registry.load_code(tenants, name, entry.block)
    if not isinstance(block, Block):
        raise Unregistered(
            f"{registry.described(tenants, name)} has keys of the type {type(block).__name__}, and "
            "must have an ensemble.keys.Block of them"
        )
    if name not in tenants.built_in:
        foreign = [one for one in block.keys if one not in built_in_keys()]
        for key in foreign:
            if not key.startswith(f"{name}."):
                raise Unregistered(
                    f"{registry.described(tenants, name)} has the key {key!r}, which no built-in "
                    f"{tenants.kind} has; its own keys must begin with its name: '{name}.{key}'"
                )
    return block


def model_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration says of its model beside the defaults, by names without the model's."""
    name, values = config["model"], flatten(config)
    return {
        key.removeprefix(f"{name}."): values[key]
        for key, one in model_block(name).keys.items()
        if values.get(key, one.default) != one.default
    }


def likelihood_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration says of its likelihood, by names without the likelihood's."""
    name, values = config["likelihood"], flatten(config)
    return {key.removeprefix(f"{name}."): values[key] for key in likelihood_block(name).keys}


_WITH_KEYS = (registry.TASKS, registry.NETWORKS, registry.LIKELIHOODS, registry.METHODS)
"""The kinds of tenants that have keys of the configuration."""


@functools.cache
def built_in_keys() -> Mapping[str, Key]:
    """Every key of every built-in method, task, model and likelihood, by name."""
    keys = dict(RUN.keys)
    for tenants in _WITH_KEYS:
        for name in tenants.built_in:
            keys |= _block_of(tenants, name).keys
    return keys


def all_keys() -> Mapping[str, Key]:
    """The built-in keys, and those of tenants that were registered or asked for in this process.

    Those of a tenant that cannot be loaded are left out: whoever names it is told.
    """
    keys = built_in_keys()
    for tenants in _WITH_KEYS:
        for name in tenants.joined():
            with contextlib.suppress(UserError):
                keys = {**_block_of(tenants, name).keys, **keys}
    return keys


def ask_for(given: Mapping[str, Any]) -> None:
    """Lets the installed tenants join that a configuration names, so that their keys are known.

    Args:
        given: some of the keys, flat.

    Raises:
        UserError: a tenant that it names cannot be loaded.
    """
    method, model = given.get("method"), given.get("model")
    if isinstance(method, str) and method in registry.METHODS:
        for task in registry.METHODS[method].tasks:
            registry.TASKS.get(task)
    registry.ask_for_task(model)
    if isinstance(model, str):
        registry.NETWORKS.get(model)
    if isinstance(likelihood := given.get("likelihood"), str):
        registry.LIKELIHOODS.get(likelihood)
    unknown = {key.partition(".")[0] for key in given if key not in built_in_keys()}
    for name in unknown:
        for tenants in _WITH_KEYS:
            tenants.get(name)


class _Blank(ml_collections.ConfigDict):
    """Keys with values; whoever gives a value to a block of keys is told which are in it."""

    def __setitem__(self, key: str, value: Any) -> None:
        try:
            super().__setitem__(key, value)
        except TypeError:
            if keys_in_block(key, all_keys()):
                raise UserError(unknown_key(key, all_keys())) from None
            raise


def blank(keys: Mapping[str, Key]) -> ml_collections.ConfigDict:
    """Returns keys with their default values; a key's type is the default's type."""
    config = _Blank()
    add_missing(config, keys)
    return config


def add_missing(config: ml_collections.ConfigDict, keys: Mapping[str, Key]) -> None:
    """Adds keys that a configuration does not have, with their default values.

    Raises:
        UserError: it has a value where a block of keys is expected.
    """
    for name, key in keys.items():
        *groups, last = name.split(".")
        place = config
        for group in groups:
            if group not in place:
                place[group] = ml_collections.ConfigDict()
            place = place[group]
            if not isinstance(place, ml_collections.ConfigDict):
                raise UserError(unknown_key(group, keys))
        if last not in place:
            place[last] = key.blank


def default_config() -> ml_collections.ConfigDict:
    """Returns every key of what is built in, methods, tasks, models and likelihoods, by default.

    A run keeps those of its own. `ensemble train --config=... --explain`
    lists them with their meanings.
    """
    return blank(built_in_keys())


MAPPINGS = ("columns",)
"""Keys that a program may set to a mapping."""


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns `{'a.b': value}` of a nested mapping; tuples become lists, as JSON has them.

    The value of a key of `MAPPINGS` may itself be a mapping, which becomes JSON in one text.

    Raises:
        UserError: it is no mapping.
    """
    if not hasattr(config, "items"):
        raise UserError(
            f"config is a {type(config).__name__}, {in_one_line(repr(config), 60)}; give keys with "
            "their values, such as {'num_epochs': 10}, or what ensemble.default_config() returns"
        )
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping | ml_collections.ConfigDict) and prefix + key in MAPPINGS:
            flat[prefix + key] = json.dumps(dict(value.items()))
        elif isinstance(value, Mapping | ml_collections.ConfigDict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = list(value) if isinstance(value, tuple) else value
    return flat


def keys_in_block(block: str, known: Iterable[str]) -> list[str]:
    """Such as `config.augment.flip` of `augment`; empty where there is no such block."""
    return [f"config.{key}" for key in sorted(known) if key.startswith(f"{block}.")]


def unknown_key(key: str, known: Mapping[str, Any]) -> str:
    """Returns the line that names an unknown key and the nearest or all of the known ones.

    Of a block, such as `augment`, it names the keys in it. Of a key that had another name in
    earlier versions it names the one of today.
    """
    block, dot, rest = key.partition(".")
    if block in RENAMED:
        return f"config.{key} has another name now: config.{RENAMED[block]}{dot}{rest}"
    own = keys_in_block(key, known)
    if own:
        return f"config.{key} is a block of keys and takes no value itself; set {', '.join(own)}"
    in_blocks = sorted(one for one in known if one.rpartition(".")[2] == key)
    close = in_blocks or difflib.get_close_matches(key, known, n=1)
    hint = (
        f"did you mean {' or '.join(close)}?"
        if close
        else f"the keys are {', '.join(sorted(known))}"
    )
    return f"config.{key} is not a key of the configuration; {hint}"


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns 'key: old -> new' for each key that differs and may not change in a workdir.

    A key that is absent has its default. Of two methods, tasks, models or likelihoods the keys that
    both have are compared.
    """
    keys, before, after = all_keys(), flatten(old), flatten(new)
    names = before.keys() | after.keys()
    if _kind(before) != _kind(after):
        names = before.keys() & after.keys()
    defaults = {name: key.default for name, key in keys.items()}
    pairs = {
        name: (before.get(name, defaults.get(name)), after.get(name, defaults.get(name)))
        for name in sorted(names)
    }
    return [
        f"{name}: {was!r} -> {becomes!r}"
        for name, (was, becomes) in pairs.items()
        if not (name in keys and keys[name].may_change) and was != becomes
    ]


def _kind(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """What decides which keys a configuration has."""
    model = values.get("model")
    own = (*model_block(model).keys, *likelihood_block(values.get("likelihood")).keys)
    return values.get("method"), registry.task_of_model(model), *own
