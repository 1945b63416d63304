"""Settings in which statements are tried: keyword arguments by title."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Settings = dict[str, dict[str, Any]]


def named(names: str) -> Callable[..., dict[str, Any]]:
    """Makes a setting of values in the order of these names; the last ones may be left out."""
    return lambda *values, **more: dict(zip(names.split(), values, strict=False)) | more


def with_more(settings: Mapping[str, Mapping[str, Any]], **more: Any) -> Settings:
    """Adds the same to all settings."""
    return {title: {**one, **more} for title, one in settings.items()}


def with_each(settings: Mapping[str, Mapping[str, Any]], name: str, values: Iterable) -> Settings:
    """Adds a value of its own to each setting."""
    pairs = zip(settings.items(), values, strict=True)
    return {title: {**one, name: value} for (title, one), value in pairs}
