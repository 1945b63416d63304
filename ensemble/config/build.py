"""The one validator: from what a program, a file and a command line set to a complete `Run`."""

import dataclasses
import difflib
import functools
import logging
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import ml_collections

from ensemble.config import builtin, pieces
from ensemble.config.keys import Key, as_json, fields_of, read
from ensemble.config.pieces import Kind, is_path, named
from ensemble.errors import InputError, in_one_line, listed

logger = logging.getLogger("ensemble")

_DATASETS = {name: one.loader for name, one in builtin.DATASETS.items()}
_KINDS: Mapping[str, Kind] = {
    one.key: one
    for one in (
        *(pieces.METHODS, pieces.TASKS, pieces.MODELS, pieces.LIKELIHOODS, pieces.OPTIMIZERS),
        *(pieces.SCHEDULES, pieces.AUGMENTATIONS, pieces.CALLBACKS, pieces.DENSITIES),
        Kind("dataset", "data source", _DATASETS),
    )
}
_KEYS: Mapping[str, Mapping[str, type]] = {
    "task": builtin.TASKS,
    "method": builtin.METHODS,
    "model": builtin.MODELS,
    "likelihood": builtin.LIKELIHOODS,
    "dataset": {name: one.keys for name, one in builtin.DATASETS.items()},
}
"""Classes of keys of the pieces that have keys, by kind and name."""
_MOST_DIFFERENCES = 6
Config = ml_collections.FrozenConfigDict
"""Configuration of a run, with all of its keys."""
_MAPPINGS = ("column_types",)
"""Keys whose value may be a mapping."""


class Part(NamedTuple):
    """A piece of a run.

    Attributes:
        title: For listings.
        cls: Class that declares its keys.
        fields: The keys, by their names in the configuration.
    """

    title: str
    cls: type
    fields: Mapping[str, Key]


@dataclasses.dataclass(frozen=True)
class Run:
    """A checked configuration.

    Attributes:
        values: Every key of the run with its value, flat.
        parts: The pieces that have these keys.
        notes: Decisions that were made for the user, a line each.
    """

    values: Mapping[str, Any]
    parts: Sequence[Part] = ()
    notes: Sequence[str] = ()

    @functools.cached_property
    def config(self) -> ml_collections.FrozenConfigDict:
        """The values as blocks: `config.sampler.step_size`."""
        nested: dict[str, Any] = {}
        for name, value in self.values.items():
            block, _, last = name.rpartition(".")
            (nested.setdefault(block, {}) if block else nested)[last] = value
        return ml_collections.FrozenConfigDict(nested)


def default_config() -> ml_collections.ConfigDict:
    """Returns an empty configuration, with an empty block for each block of keys.

    A run has the default of each key that is not set; `--print_config` shows them.
    """
    blocks = sorted({name.partition(".")[0] for name in all_fields() if "." in name})
    return ml_collections.ConfigDict({one: {} for one in blocks}, type_safe=False)


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Returns `{'a.b': value}` of a nested mapping.

    Raises:
        InputError: It is no mapping.
    """
    if not hasattr(config, "items"):
        raise InputError(
            f"config is a {type(config).__name__}, {in_one_line(repr(config), 60)}; give keys with "
            "their values, such as {'num_epochs': 10}, or what ensemble.default_config() returns"
        )
    flat: dict[str, Any] = {}
    for name, value in config.items():
        full = f"{prefix}{name}"
        if isinstance(value, Mapping | ml_collections.ConfigDict) and full not in _MAPPINGS:
            flat |= flatten(value, f"{full}.")
        else:
            flat[full] = as_json(value)
    return flat


def build(
    config: Any, overrides: Mapping[str, Any] | None = None, *, is_stored: bool = False
) -> Run:
    """Checks a configuration and completes it with defaults.

    Args:
        config: Keys with values, nested or flat, of a config file or a program.
        overrides: Further keys, such as those of the command line, whose values may be texts. If
            they select another method, task, model, likelihood or data set, the keys that `config`
            has for the former one are dropped with a note.
        is_stored: If True, the configuration is that of a workdir: the code that its paths name is
            imported only if the workdir is trusted (`pieces.trusting`).

    Returns:
        The run.

    Raises:
        InputError: All mistakes, in one line.
    """
    file, ours = (by_path(one, is_stored=is_stored) for one in (config, overrides or {}))
    faults = []
    for one in (file, ours):  # What cannot be loaded is left out, so that the rest is checked too.
        for kind in [name for name in _KEYS if name in one]:
            try:
                keys_of(kind, one[kind])
            except InputError as error:
                faults.append(str(error))
                del one[kind]
    given = {**file, **ours}
    parts = _parts(given)
    fields = _fields(parts)
    former = fields_for(file)
    swapped = [
        one
        for one in _KEYS.keys() & ours
        if ours[one] != file.get(one, getattr(former.get(one), "default", None))
    ]
    dropped = [
        f"{name}={given.pop(name)!r}"
        for name in file
        if name not in ours and name in former and swapped
        # Of the same name in both, too, if the value is of the former method alone.
        if name not in fields or ("method" in swapped and not fields[name].inherits)
    ]
    values, problems = _read(given, fields)
    if faults:  # Then nothing is known of the other keys.
        unknown = [unknown_key(one) for one in given if one not in {*all_fields(), *fields}]
        refuse([*unknown, *dict.fromkeys(faults), *problems])
    values["task"] = task_of(given)
    if values.get("prior", "") is None:
        samples = trait("method", values["method"], "requires_prior")
        prior = trait("task", values["task"], "default_prior")
        values["prior"] = prior if samples else builtin.NONE
    notes = _only_here(values)
    if dropped:
        notes.insert(0, f"Dropped keys that this run does not use: {', '.join(dropped)}.")
    run = Run({name: as_json(one) for name, one in values.items()}, parts, notes)
    problems += _misplaced(given, run)
    refuse(problems or _broken_rules(run))
    return run


def _broken_rules(run: Run) -> list[str]:
    """Lines on values that cannot be used together."""
    method = run.values["method"]
    task = run.values["task"]
    lines = []
    if task in builtin.TASKS and task not in trait("method", method, "tasks"):
        able = [name for name, one in builtin.METHODS.items() if task in one.tasks]
        lines.append(
            f"config.method={method!r} must be {listed(able, separator=' or ')} for "
            f"config.task={task!r}"
        )
    for part in run.parts:
        for cls in part.cls.__mro__:
            for is_broken, line in vars(cls).get("config_rules", ()):
                if is_broken(part.cls, run.config):
                    lines.append(line.format(run.config))
    return lines


def by_path(config: Any, *, is_stored: bool = False) -> dict[str, Any]:
    """Returns a configuration, flat, whose pieces are names or paths, and loaded.

    Args:
        config: Keys with values, nested or flat; pieces may be objects.
        is_stored: As of `build`.

    Raises:
        InputError: A piece cannot be loaded.
    """
    return {
        name: _as_text(name, value, is_stored)
        for name, value in flatten(config).items()
        if not (value is None and name in _KEYS)  # Then the default counts.
    }


def checked(
    config: Any, overrides: Mapping[str, Any] | None = None
) -> ml_collections.FrozenConfigDict:
    """The configuration of `build`, whose notes are logged."""
    run = build(config, overrides)
    log_notes(run)
    return run.config


def log_notes(run: Run) -> None:
    """Logs what was decided for the user."""
    for line in run.notes:
        logger.warning("%s", line)


def refuse(problems: Sequence[str]) -> None:
    """Raises `InputError` with all problems in one line, if there are any."""
    if len(problems) == 1:
        raise InputError(problems[0])
    if problems:
        lines = "; ".join(f"({k}) {line}" for k, line in enumerate(problems, 1))
        raise InputError(f"{len(problems)} settings are wrong: {lines}")


def _as_text(name: str, value: Any, is_stored: bool) -> Any:
    """The value of a key; an object becomes its path, and a path is imported."""

    def load(path: str) -> str:
        module, _, attribute = path.rpartition(":")
        if module.endswith(".py") and not is_stored:
            path = f"{pathlib.Path(module).expanduser().resolve()}:{attribute}"
        own = name if is_stored else ""  # What stands in for a piece does so in workdirs alone.
        pieces.find(path, f"config.{name}={path!r}", own, trust=not is_stored)
        return path

    if name == "prior" and isinstance(value, str):
        return re.sub(
            r"[\w.:/-]+(?=\()", lambda one: load(one[0]) if is_path(one[0]) else one[0], value
        )
    if name not in _KINDS or value is None:
        return value
    if not isinstance(value, str):
        return pieces.path_of(value)
    if value.lower() == "none" and name not in _KEYS:
        return None
    known = named({**_KINDS[name].names, **builtin.TASK_OF_MODELS}, value)
    is_own = is_source(value) if name == "dataset" else is_path(value)
    return load(value) if is_own and not known else value


def is_source(name: str) -> bool:
    """Whether the name of a data set is the path of a user's source, not an unknown `tar:data`."""
    return is_path(name) and "." in name.rpartition(":")[0]


# The pieces of a run.


def keys_of(kind: str, value: Any) -> type:
    """The class that declares the keys of a piece; `object` if it has none.

    Args:
        kind: `method`, `task`, `model`, `likelihood` or `dataset`.
        value: Name or path.

    Raises:
        InputError: It is unknown, or cannot be loaded.
    """
    if name := named(_KINDS[kind].names, value):
        return _KEYS[kind].get(name, object)
    of_task = kind == "model" and named(builtin.TASK_OF_MODELS, value)
    if of_task or value == builtin.AUTO or (kind == "dataset" and not is_source(value)):
        return object
    piece = _KINDS[kind].load(value)
    keys = getattr(piece, "keys", piece)
    return keys if isinstance(keys, type) else object


def _part(kind: str, value: Any) -> Part:
    cls = keys_of(kind, value)
    prefix = ""
    if kind in ("model", "likelihood"):  # The last word of a path; of an object, of its class.
        prefix = re.findall(r"\w+", re.sub(r" object( \d+)?>$", "", value))[-1].lower() + "."
    return Part(f"config.{kind}={value}", cls, fields_of(cls, prefix))


_EVERY = Part("every run", builtin.EveryRun, fields_of(builtin.EveryRun))


def _parts(values: Mapping[str, Any]) -> list[Part]:
    """The pieces of a run, by some or all of its flat values."""
    task = _part("task", task_of(values))
    parts = [_EVERY, task, _part("method", values.get("method", builtin.EveryRun.method))]
    for name, field in task.fields.items():
        if field.kind in _KEYS:
            parts.append(_part(name, values.get(name, field.default)))
    return parts


def _fields(parts: Iterable[Part]) -> dict[str, Key]:
    return {name: one for part in parts for name, one in part.fields.items()}


def fields_for(values: Mapping[str, Any]) -> dict[str, Key]:
    """The keys of a run, by some or all of its flat values.

    Raises:
        InputError: A piece is unknown.
    """
    return _fields(_parts(values))


def settings(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a network or likelihood, for its code.

    Args:
        kind: `model` or `likelihood`.
        config: Of the run, nested or flat.

    Returns:
        Keyword arguments.
    """
    values = flatten(config)
    return {
        name.rpartition(".")[2]: tuple(values[name]) if one.is_many else values[name]
        for name, one in _part(kind, values[kind]).fields.items()
        if name in values
    }


def with_defaults(config: Any, cls: type) -> ml_collections.FrozenConfigDict:
    """A configuration with the keys of a class that it lacks, at their defaults."""
    lacking = {name: one.default for name, one in fields_of(cls).items()}
    return Run({**lacking, **flatten(config)}).config


def trait(kind: str, value: str, name: str) -> Any:
    """A property of a method or task, such as `is_exact`: its own, or the default."""
    base = builtin.Method if kind == "method" else builtin.Task
    return getattr(keys_of(kind, value), name, getattr(base, name, None))


def task_of(values: Mapping[str, Any]) -> str:
    """Name of the task of a run, from some or all of its flat values.

    Raises:
        InputError: The method is unknown.
    """
    if (task := values.get("task")) is not None:
        return str(task)
    if model := named(builtin.TASK_OF_MODELS, values.get("model", "")):
        return builtin.TASK_OF_MODELS[model]
    able = trait("method", values.get("method", builtin.EveryRun.method), "tasks")
    return "distillation" if values.get("teacher") else str(able[0])


def predicts(config: Mapping[str, Any]) -> bool:
    """Whether a run leaves an ensemble that predicts examples."""
    task = task_of(flatten(config))
    return bool(trait("method", config["method"], "result") and trait("task", task, "restore"))


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns 'key: old -> new' of each key of a run that differs and may not.

    Args:
        old: Every key of a run.
        new: Every key of another.
    """
    before = flatten(old)
    after = flatten(new)
    may_change = {name for name, one in fields_for(after).items() if one.may_change}
    names = sorted(before | after, key=lambda name: (name not in _KEYS, name))
    return [  # Of other pieces the keys are others, too: the first few say it.
        f"{name}: {before.get(name)!r} -> {after.get(name)!r}"
        for name in names
        if before.get(name) != after.get(name) and name not in may_change
    ][:_MOST_DIFFERENCES]


# Values and mistakes.


def _read(given: Mapping[str, Any], fields: Mapping[str, Key]) -> tuple[dict[str, Any], list[str]]:
    """The value of each key, and the mistakes."""
    values = {}
    problems = []
    for name, field in fields.items():
        value = given.get(name, field.default)
        kind = _KINDS.get(name)
        try:
            values[name] = read(field, value)
            if kind is not None and name not in _KEYS and value is not None and value not in kind:
                problems.append(kind.unknown(value))
        except ValueError as error:
            problems.append(f"config.{name}={_quoted(value)} {error}")
            values[name] = field.default  # So that the rest is checked too.
    return values, problems


def _misplaced(given: Mapping[str, Any], run: Run) -> list[str]:
    """Lines on unknown keys, and on those of pieces that the run does not have."""
    instead = dict(builtin.REMEDIES)
    for part in run.parts:
        instead.update(getattr(part.cls, "instead", {}))
    lines = []
    for name in [one for one in given if one not in run.values]:
        if name not in all_fields():
            lines.append(unknown_key(name, run.values))
            continue
        kind, *names = owners(name)
        owner = f"config.{kind}={listed([*map(repr, names)])}"
        if kind not in run.values:
            kind = "method"
        remedy = f"; {instead[name]}" if name in instead else ""
        lines.append(
            f"config.{name}={_quoted(given[name])} is for {owner}, and this run has "
            f"config.{kind}={run.values[kind]!r}: remove it{remedy}"
        )
    return lines


def _only_here(values: Mapping[str, Any]) -> list[str]:
    """Notes on pieces that no other process can import."""
    return [
        f"config.{name}={values[name]!r} exists in this process only. For other processes put it "
        f"in a file and set config.{name}='file.py:Name', or give it to `ensemble.load`."
        for name in _KINDS
        if re.match(r"__main__:|.*:.*<", values.get(name) or "")
    ]


def _quoted(value: Any) -> str:
    """A value in a message; a number or truth value of the command line has no quotes."""
    is_plain = isinstance(value, str) and re.fullmatch(
        r"[-+.\de]+|inf|nan|true|false", value, re.IGNORECASE
    )
    return str(value) if is_plain else repr(value)


# All keys.


@functools.cache
def all_parts() -> Mapping[tuple[str, str], Part]:
    """Every built-in piece that has keys, by kind and name."""
    of_kinds = {(kind, name): _part(kind, name) for kind, names in _KEYS.items() for name in names}
    return {("run", "every"): _EVERY, **of_kinds}


@functools.cache
def all_fields() -> Mapping[str, Key]:
    """Every key of every built-in piece; of a key that several have, the first."""
    result: dict[str, Key] = {}
    for part in all_parts().values():
        result |= {name: one for name, one in part.fields.items() if name not in result}
    return result


def owners(name: str) -> tuple[str, ...]:
    """Kind and names of the built-in pieces that have a key."""
    having = [place for place, part in all_parts().items() if name in part.fields]
    kind = min(having, key=lambda place: place[0] not in ("method", "model"))[0]
    return kind, *(one for its, one in having if its == kind)


def unknown_key(name: str, own: Iterable[str] = ()) -> str:
    """The message for an unknown key, with the nearest known ones, or with the keys of a block."""
    known = {*all_fields(), *own}
    usual = {bool: True, int: 2}
    inner = [
        f"config.{one}={key.default or usual.get(key.type, '...')}"
        for one, key in sorted(all_fields().items())
        if one.startswith(f"{name}.")
    ]
    if inner:
        return f"config.{name} is a block of keys and takes no value itself; set {', '.join(inner)}"
    close = difflib.get_close_matches(name, sorted(known), n=2)
    hint = f"Did you mean config.{' or config.'.join(close)}?" if close else "See --print_config"
    return f"config.{name} is no key of the configuration. {hint}"
