"""The one validator: from what a program, a file and a command line set to a complete `Run`."""

import difflib
import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

from ml_collections import ConfigDict, FrozenConfigDict

from ensemble.config import builtin, pieces
from ensemble.config.builtin import KINDS, WITH_KEYS
from ensemble.config.keys import Keys, as_json, fields_of, read, rule_of
from ensemble.config.pieces import is_path, named
from ensemble.errors import InputError, in_one_line, listed, logger

Values = dict[str, Any]
"""Keys with values; unless said otherwise flat, as `{"sampler.step_size": 0.1}`."""
Config = FrozenConfigDict
"""Configuration of a run, with all of its keys."""
_MOST_DIFFERENCES = 6


class Part(NamedTuple):
    """A piece of a run.

    Attributes:
        title: For listings.
        cls: Class that declares its keys.
        fields: The keys, by their names in the configuration.
    """

    title: str
    cls: type
    fields: Keys


@dataclass(frozen=True)
class Run:
    """A checked configuration.

    Attributes:
        values: Every key of the run with its value, flat.
        parts: The pieces that have these keys.
        notes: Decisions that were made for the user, a line each.
    """

    values: Values
    parts: Sequence[Part] = ()
    notes: Sequence[str] = ()

    @cached_property
    def config(self) -> FrozenConfigDict:
        """The values as blocks: `config.sampler.step_size`."""
        config = _with_blocks(self.values)
        config.update_from_flattened_dict(dict(self.values))
        return FrozenConfigDict(config)


def default_config() -> ConfigDict:
    """Returns an empty configuration, with an empty block for each block of keys.

    A run has the default of each key that is not set; `--print_config` shows them.
    """
    return _with_blocks(all_fields())


def _with_blocks(names: Iterable[str]) -> ConfigDict:
    """Empty blocks for keys in blocks."""
    blocks = sorted({name.partition(".")[0] for name in names if "." in name})
    return ConfigDict({one: {} for one in blocks}, type_safe=False)


def flatten(config: Any, prefix: str = "") -> Values:
    """Returns `{'a.b': value}` of a nested mapping.

    Raises:
        InputError: It is no mapping.
    """
    if not hasattr(config, "items"):
        raise InputError(
            f"config is {in_one_line(repr(config), 60)}; give keys with their values, such as "
            "{'num_epochs': 10}, or what ensemble.default_config() returns"
        )
    flat: Values = {}
    for name, value in config.items():
        if hasattr(value, "items") and name != "column_types":  # Whose value may be a mapping.
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = as_json(value)
    return flat


def build(config: Any, overrides: Values | None = None, *, is_stored: bool = False) -> Run:
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
        for kind in [name for name in WITH_KEYS if name in one]:
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
        for one in WITH_KEYS.keys() & ours
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
    notes = [
        f"config.{name}={values[name]!r} exists in this process only. For other processes put it "
        f"in a file and set config.{name}='file.py:Name', or give it to `ensemble.load`."
        for name in KINDS
        if re.match(r"__main__:|.*:.*<", values.get(name) or "")
    ]
    if dropped:
        notes.insert(0, f"Dropped keys that this run does not use: {', '.join(dropped)}.")
    run = Run({name: as_json(one) for name, one in values.items()}, parts, notes)
    problems += [_misplaced(name, given[name], run) for name in given if name not in values]
    refuse(problems)
    # What cannot be used together.
    config, task = run.config, run.values["task"]
    if task in builtin.TASKS.names and task not in trait("method", config.method, "tasks"):
        able = [one for one in builtin.METHODS.names if task in trait("method", one, "tasks")]
        problems.append(
            f"config.method={config.method!r} must be {listed(able, separator=' or ')} for "
            f"config.task={task!r}"
        )
    for cls in (cls for part in parts for cls in part.cls.__mro__):
        rules = vars(cls).get("config_rules", ())
        problems += [line.format(config) for is_broken, line in rules if is_broken(config)]
    refuse(problems)
    return run


def checked(config: Any, overrides: Values | None = None) -> FrozenConfigDict:
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


def by_path(config: Any, *, is_stored: bool = False) -> Values:
    """Returns a configuration, flat, whose pieces are names or paths, and loaded.

    Args:
        config: Keys with values, nested or flat; pieces may be objects.
        is_stored: As of `build`.

    Raises:
        InputError: A piece cannot be loaded.
    """

    def load(name: str, path: str) -> str:
        module, _, attribute = path.rpartition(":")
        if not is_stored:
            path = f"{pieces.module_name(module)}:{attribute}"
        pieces.find(path, f"config.{name}={path!r}", name, trust=not is_stored)
        return path

    found = {}
    for name, value in flatten(config).items():
        if name == "prior" and isinstance(value, str):
            value = re.sub(
                r"[\w.:/-]+(?=\()",
                lambda one: load("prior", one[0]) if is_path(one[0]) else one[0],
                value,
            )
        elif name in KINDS and value is not None:
            if not isinstance(value, str):
                value = pieces.path_of(value)
            elif value.lower() == "none" and name not in WITH_KEYS:
                value = None
            elif _is_own(name, value):
                value = load(name, value)
        if value is not None or name not in WITH_KEYS:  # Else the default counts.
            found[name] = value
    return found


def _is_own(kind: str, value: str) -> bool:
    """Whether a value is the path of a user's piece, and no name such as `csv:data.csv`."""
    is_own = is_source(value) if kind == "dataset" else is_path(value)
    return is_own and not named({**KINDS[kind].names, **builtin.TASK_OF_MODELS}, value)


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
    if name := named(KINDS[kind].names, value):
        return KINDS[kind].keys.get(name, object)
    of_task = kind == "model" and named(builtin.TASK_OF_MODELS, value)
    if of_task or value == builtin.AUTO or (kind == "dataset" and not is_source(value)):
        return object
    piece = KINDS[kind].load(value)
    keys = getattr(piece, "keys", piece)
    return keys if isinstance(keys, type) else object


def _part(kind: str, value) -> Part:
    cls = keys_of(kind, value)
    block = ""
    if kind in ("model", "likelihood"):  # The last word of a path.
        block = re.findall(r"\w+", value)[-1].lower()
    return Part(f"config.{kind}={value}", cls, fields_of(cls, block))


_EVERY = Part("every run", builtin.EveryRun, fields_of(builtin.EveryRun))


def _parts(values: Values) -> list[Part]:
    """The pieces of a run, by some or all of its values."""
    task = _part("task", task_of(values))
    parts = [_EVERY, task, _part("method", values.get("method", builtin.EveryRun.method))]
    for name, field in task.fields.items():
        if name in WITH_KEYS and (value := values.get(name, field.default)):
            parts.append(_part(name, value))
    return parts


def _fields(parts: Iterable[Part]) -> Keys:
    return {name: one for part in parts for name, one in part.fields.items()}


def fields_for(values: Values) -> Keys:
    """The keys of a run, by some or all of its values.

    Raises:
        InputError: A piece is unknown.
    """
    return _fields(_parts(values))


def settings(kind: str, config: Values) -> Values:
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


def with_defaults(config: Any, cls: type) -> FrozenConfigDict:
    """A configuration with the keys of a class that it lacks, at their defaults."""
    lacking = {name: one.default for name, one in fields_of(cls).items()}
    return Run({**lacking, **flatten(config)}).config


def trait(kind: str, value: str, name: str) -> Any:
    """A property of a method or task, such as `is_exact`: its own, or the default."""
    base = builtin.Method if kind == "method" else builtin.Task
    return getattr(keys_of(kind, value), name, getattr(base, name, None))


def task_of(values: Values) -> str:
    """Name of the task of a run, from some or all of its values.

    Raises:
        InputError: The method is unknown.
    """
    if (task := values.get("task")) is not None:
        return str(task)
    if model := named(builtin.TASK_OF_MODELS, values.get("model", "")):
        return builtin.TASK_OF_MODELS[model]
    able = trait("method", values.get("method", builtin.EveryRun.method), "tasks")
    return "distillation" if values.get("teacher") else str(able[0])


def predicts(config: Values) -> bool:
    """Whether a run, by its configuration, leaves an ensemble that predicts examples."""
    task = task_of(flatten(config))
    return bool(trait("method", config["method"], "result") and trait("task", task, "restore"))


def differences(old: Values, new: Values) -> list[str]:
    """Returns 'key: old -> new' of keys of a run that differ and may not, six at most.

    Args:
        old: Every key of a run, nested or flat.
        new: Every key of another.
    """
    before, after = (flatten(one) for one in (old, new))
    fixed = [name for name, one in fields_for(after).items() if not one.may_change]
    names = [*WITH_KEYS, *fixed, *before]  # Of other pieces the keys are others, too.
    return [
        f"{name}: {before.get(name)!r} -> {after.get(name)!r}"
        for name in dict.fromkeys(names)
        if before.get(name) != after.get(name) and (name in fixed or name not in after)
    ][:_MOST_DIFFERENCES]


# Values and mistakes.


def _read(given: Values, fields: Keys) -> tuple[Values, list[str]]:
    """The value of each key, and the mistakes."""
    values = {}
    problems = []
    for name, field in fields.items():
        value = given.get(name, field.default)
        try:
            values[name] = read(field, value)
            if name in KINDS.keys() - WITH_KEYS and value is not None and value not in KINDS[name]:
                problems.append(KINDS[name].unknown(value))
        except ValueError as error:
            problems.append(f"config.{name}={_quoted(value)} {error}")
            values[name] = field.default  # So that the rest is checked too.
    return values, problems


def _misplaced(name: str, value, run: Run) -> str:
    """The line on a key that is unknown, or of a piece that the run does not have."""
    if name not in all_fields():
        return unknown_key(name, run.values)
    having = [(kind, one) for kind, one, part in all_parts() if name in part.fields]
    kind = having[0][0]
    owner = f"config.{kind}={listed([repr(one) for its, one in having if its == kind])}"
    if kind not in run.values:
        kind = "method"
    reasons = [getattr(part.cls, "instead", {}).get(name) for part in run.parts]
    remedy = next((f"; {one}" for one in reasons if one), "")
    return (
        f"config.{name}={_quoted(value)} is for {owner}, and this run has "
        f"config.{kind}={run.values[kind]!r}: remove it{remedy}"
    )


def _quoted(value) -> str:
    """A value in a message; a number or truth value of the command line has no quotes."""
    is_plain = isinstance(value, str) and re.fullmatch(
        r"[-+.\de]+|inf|nan|true|false", value, re.IGNORECASE
    )
    return str(value) if is_plain else repr(value)


# All keys.


@cache
def all_parts() -> Sequence[tuple[str, str, Part]]:
    """Kind, name and part of every built-in piece that has keys."""
    every = [
        (kind, name, _part(kind, name)) for kind, one in WITH_KEYS.items() for name in one.keys
    ]
    return [("run", "every", _EVERY), *every]


@cache
def all_fields() -> Keys:
    """Every key of every built-in piece; of a key that several have, the first."""
    return _fields(part for _, _, part in reversed(all_parts()))


def unknown_key(name: str, own: Iterable[str] = ()) -> str:
    """The message for an unknown key, with the nearest known ones, or with the keys of a block."""
    usual = {bool: True, int: 2}
    inner = [
        f"config.{one}={key.default or usual.get(key.type, '...')}"
        for one, key in sorted(all_fields().items())
        if one.startswith(f"{name}.")
    ]
    if inner:
        return f"config.{name} is a block of keys and takes no value itself; set {', '.join(inner)}"
    close = difflib.get_close_matches(name, sorted({*all_fields(), *own}), n=2)
    hint = f"Did you mean config.{' or config.'.join(close)}?" if close else "See --print_config"
    return f"config.{name} is no key of the configuration. {hint}"


def listing(run: Run) -> str:
    """Returns every key of a run with its value, meaning and rule; and the notes.

    Keys that differ from their default are marked. Lines are as long as the terminal is wide, 100
    characters at most.
    """
    lines = ["* differs from its default"]
    for part in run.parts:
        lines += ["", f"Keys of {part.title}:"] if part.fields else []
        for name, field in part.fields.items():
            value = run.values[name]
            mark = " " if value == as_json(field.default) else "*"
            changes = "; may change when the run is resumed" * field.may_change
            lines.append(f"{mark} {name} = {shown(value)}")
            lines.append(f"      {field.meaning}; {rule_of(field)}{changes}")
    width = min(shutil.get_terminal_size(fallback=(100, 0)).columns, 100)
    wrapped = partial(textwrap.wrap, width=width, subsequent_indent="      ")
    return "\n".join(one for line in [*lines, "", *run.notes] for one in wrapped(line) or [""])


def shown(value: object) -> str:
    """A value, of which an empty text is seen."""
    return "''" if value == "" else str(value)
