"""Every key of a configuration in words: `ensemble train --explain`, and the table of the docs."""

import shutil
import textwrap
from collections.abc import Callable, Container, Mapping
from typing import Any

from ensemble import registry
from ensemble.config import (
    RUN,
    built_in_keys,
    flatten,
    likelihood_block,
    method_block,
    model_block,
    task_block,
)
from ensemble.config_rules import Checked
from ensemble.keys import Block, Key

_WIDTH = 100
_INDENT = " " * 6
_MAY_CHANGE = "may change on resumption"
_ALONE: Mapping[str, tuple[Container[str], Callable[[str], Block]]] = {
    "One model": (registry.NETWORKS, model_block),
    "One likelihood": (registry.LIKELIHOODS, likelihood_block),
    "One method": (registry.METHODS, method_block),
}
"""By heading, tenants that alone have the keys that begin with their names."""


def table(checked: Checked) -> str:
    """Returns every key of a run with its value and, below it, its meaning and its rule.

    Lines are as long as the terminal is wide, and keys that differ from their default are marked.
    """
    values = flatten(checked.config)
    sections = {
        "every run": RUN,
        f"the task {checked.task}": task_block(checked.task),
        f"config.method={checked.config.method}": method_block(checked.config.method),
    }
    if (block := model_block(checked.config.get("model"))).keys:
        sections[f"config.model={checked.config.model}"] = block
    if (block := likelihood_block(checked.config.get("likelihood"))).keys:
        sections[f"config.likelihood={checked.config.likelihood}"] = block
    width = min(shutil.get_terminal_size(fallback=(_WIDTH, 0)).columns, _WIDTH)
    lines = ["* differs from its default"]
    for title, block in sections.items():
        lines += ["", f"Of {title}:"]
        for name, key in block.keys.items():
            mark = " " if _shown(values[name]) == _shown(_as_json(key.default)) else "*"
            lines.append(f"{mark} {name} = {_shown(values[name])}")
            text = f"{key.meaning}; {_rule(key, block.rules.get(name))}"
            lines += textwrap.wrap(text, width, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return "\n".join(lines)


def _as_json(value: Any) -> Any:
    """A value as `flatten` returns it."""
    return list(value) if isinstance(value, tuple) else value


def pages() -> str:
    """Returns every key that there is with its default, by owner, as Markdown tables."""
    groups: dict[str, dict[str, Key]] = {}
    for name, key in built_in_keys().items():
        groups.setdefault(_owners(name), {})[name] = key
    parts = [f"### {title}\n\n{_markdown(keys)}" for title, keys in groups.items()]
    return "\n\n".join(parts)


def _owners(name: str) -> str:
    """Which runs have a key, as a heading."""
    if name in RUN.keys:
        return "Every run"
    owner = name.partition(".")[0]
    for heading, (known, block) in _ALONE.items():
        if owner in known and name in block(owner).keys:
            return heading
    tasks = [task for task in registry.TASKS if name in task_block(task).keys]
    if tasks:
        return f"Task {', '.join(tasks)}"
    return f"Method: {_methods(name)}"


def _methods(name: str) -> str:
    """Which methods have a key, by family: in full, or all of a family but some."""
    parts = []
    for family, of_all in (("ensemble", "ensemble_size"), ("sampler", "num_chains")):
        theirs = [one for one in registry.METHODS if of_all in method_block(one).keys]
        having = [one for one in theirs if name in method_block(one).keys]
        others = [one for one in theirs if one not in having]
        if len(others) < len(having):
            parts.append(f"every {family}" + f" but {', '.join(others)}" * bool(others))
        elif having:
            parts.append(", ".join(having))
    return "; ".join(parts)


def _markdown(keys: Mapping[str, Key]) -> str:
    rows = [
        f"| `{name}` | {_shown(key.default)} | {key.meaning} | {_what_it_must_be(key)} |".replace(
            "*", "\\*"
        )
        for name, key in keys.items()
    ]
    return "\n".join(["| key | default | meaning | rule |", "|---|---|---|---|", *rows])


def _what_it_must_be(key: Key) -> str:
    """The rule below the heading 'rule', with a mark if the key may change on resumption."""
    text = key.rule.text.removeprefix("must be ").replace("must not be ", "not ")
    return text + " †" * key.may_change


def _rule(key: Key, own: str | None = None) -> str:
    text = key.rule.text if own is None else own
    return f"{text}; {_MAY_CHANGE}" if key.may_change else text


def _shown(value: Any) -> str:
    return "''" if value == "" else str(value)
