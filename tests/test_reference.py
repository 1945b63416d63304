"""The pages that the site makes of docstrings leave nothing public out, and all of it has words."""

import importlib
import inspect
import re

import pytest
from conftest import ROOT

import ensemble

DIRECTIVE = re.compile(r"^\.\. auto\w+:: ([\w.]+)$", re.MULTILINE)


def listed(page):
    """Dotted names on a page."""
    return DIRECTIVE.findall((ROOT / "docs" / page).read_text())


def imported(path):
    """What a program gets by `from MODULE import NAME`, or the module of that name."""
    module, _, name = path.rpartition(".")
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        return getattr(importlib.import_module(module), name)


def is_own(value):
    return getattr(value, "__module__", "").startswith("ensemble.")


def without_words(path, value):
    """What has no docstring, its own or inherited: a symbol, or public members of a class."""
    if not value.__doc__:
        yield path
    if not inspect.isclass(value):
        return
    theirs = {name for base in value.__mro__ if not is_own(base) for name in vars(base)}
    for name, one in vars(value).items():
        is_code = inspect.isfunction(one) or isinstance(one, property)
        has_words = inspect.getdoc(getattr(value, name))
        if is_code and not name.startswith("_") and name not in theirs and not has_words:
            yield f"{path}.{name}"


def test_every_public_name_is_listed():
    on_page = [imported(path) for path in listed("api.md")]
    names = [name for name in ensemble.__all__ if getattr(ensemble, name) not in on_page]
    assert names == []


@pytest.mark.parametrize("page", ["api.md", "metrics.md"])
def test_every_public_symbol_has_words(page):
    missing = []
    for path in listed(page):
        value = imported(path)
        missing += without_words(path, value)
        for name, one in vars(value).items() if page == "metrics.md" else ():
            if is_own(one) and one.__module__ == path and not name.startswith("_"):
                missing += without_words(f"{path}.{name}", one)
    assert missing == []
