"""Every key of a configuration in words: `train.py --explain`, and the table of the docs."""

from collections.abc import Mapping, Sequence
from typing import Any

from ensemble import registry
from ensemble.config import (
    RUN,
    all_keys,
    flatten,
    likelihood_block,
    method_block,
    model_block,
    task_block,
)
from ensemble.config_rules import Checked
from ensemble.keys import Key

_TITLES = ("key", "value", "meaning", "rule")
_MAY_CHANGE = "may change on resumption"


def table(checked: Checked) -> str:
    """Returns every key of a run with its value, its meaning and its rule, in aligned columns."""
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
    rows = {
        title: [
            (name, _shown(values[name]), key.meaning, _rule(key, block.rules.get(name)))
            for name, key in block.keys.items()
        ]
        for title, block in sections.items()
    }
    cells = [_TITLES, *(row for section in rows.values() for row in section)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(_TITLES))]
    lines = [_line(_TITLES, widths), "-" * (sum(widths) + 2 * (len(widths) - 1))]
    for title, section in rows.items():
        lines += ["", f"Of {title}:", *(_line(row, widths) for row in section)]
    return "\n".join(lines)


def pages() -> str:
    """Returns every key that there is with its default, by owner, as Markdown tables."""
    groups: dict[str, dict[str, Key]] = {}
    for name, key in all_keys().items():
        groups.setdefault(_owners(name), {})[name] = key
    parts = [f"### {title}\n\n{_markdown(keys)}" for title, keys in groups.items()]
    return "\n\n".join(parts)


def _owners(name: str) -> str:
    """Which runs have a key, as a heading."""
    if name in RUN.keys:
        return "Every run"
    tasks = [task for task in registry.TASKS if name in task_block(task).keys]
    if tasks:
        return f"Task {' or '.join(tasks)}"
    models = [model for model in registry.MODELS if name in model_block(model).keys]
    if models:
        return f"Model {' or '.join(models)}"
    own = [one for one in registry.LIKELIHOOD_KEYS if name in likelihood_block(one).keys]
    if own:
        return f"Likelihood {' or '.join(own)}"
    methods = [method for method in registry.METHODS if name in method_block(method).keys]
    return f"Method {' or '.join(methods)}"


def _markdown(keys: Mapping[str, Key]) -> str:
    rows = [
        f"| `{name}` | {_shown(key.default)} | {key.meaning} | {_rule(key)} |".replace("*", "\\*")
        for name, key in keys.items()
    ]
    return "\n".join(["| key | default | meaning | rule |", "|---|---|---|---|", *rows])


def _rule(key: Key, own: str | None = None) -> str:
    text = key.rule.text if own is None else own
    return f"{text}; {_MAY_CHANGE}" if key.may_change else text


def _shown(value: Any) -> str:
    return "''" if value == "" else str(value)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
