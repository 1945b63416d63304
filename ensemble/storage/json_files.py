"""JSON files of a workdir, read as data."""

import json
from collections.abc import Mapping
from typing import Any

from ensemble.config import build


def parse(content: bytes) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        ValueError: It is none.
    """
    try:
        value = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    return value


def to_json(content: Mapping[str, Any]) -> str:
    """Returns a mapping as JSON; NaN and infinities become null."""
    return json.dumps(_finite(content), indent=2, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value


def with_config(content: Mapping[str, Any]) -> dict[str, Any]:
    """An object whose entry `config`, of a run, is checked and in blocks.

    Raises:
        InputError: It is none, or names code that may not be imported.
    """
    return {**content, "config": stored_config(content["config"])}


def stored_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run that was read, in blocks; raises as `with_config`."""
    return dict(build(values, is_stored=True).config.to_dict())
