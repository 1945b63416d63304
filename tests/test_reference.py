"""The pages that the site makes of docstrings leave nothing public out, and all of it has words."""

import inspect
import pydoc
import re

import pytest
from conftest import ROOT

import ensemble

DIRECTIVE = re.compile(r"^\.\. auto\w+:: ([\w.]+)$", re.MULTILINE)
CONFIGS = sorted(path.stem for path in (ROOT / "configs").glob("[a-z]*.py"))


def listed(page):
    """Dotted names on a page."""
    return DIRECTIVE.findall((ROOT / "docs" / page).read_text())


def is_own(value):
    return getattr(value, "__module__", "").startswith("ensemble.")


def without_words(path, value):
    """What has no docstring of its own: a symbol, or the public members of a class or module."""
    if not value.__doc__:
        yield path
    if not inspect.isclass(value):
        return
    theirs = {name for base in value.__mro__ if not is_own(base) for name in vars(base)}
    for name, one in vars(value).items():
        is_code = inspect.isfunction(one) or isinstance(one, property)
        if is_code and not name.startswith("_") and name not in theirs and not one.__doc__:
            yield f"{path}.{name}"


def test_every_public_name_is_listed():
    assert {f"ensemble.{name}" for name in ensemble.__all__} <= {*listed("api.md")}


def test_every_module_of_scores_is_listed():
    files = {path.stem for path in (ROOT / "ensemble" / "metrics").glob("*.py")}
    modules = {f"ensemble.metrics.{name}" for name in files - {"__init__", "checks"}}
    assert modules | {"ensemble.metrics"} == {*listed("metrics.md")}


@pytest.mark.parametrize("page", ["api.md", "metrics.md"])
def test_every_public_symbol_has_words(page):
    missing = []
    for path in listed(page):
        value = pydoc.locate(path)
        missing += without_words(path, value)
        for name, one in vars(value).items() if page == "metrics.md" else ():
            if is_own(one) and one.__module__ == path and not name.startswith("_"):
                missing += without_words(f"{path}.{name}", one)
    assert missing == []


def test_every_configuration_is_in_the_gallery():
    page = (ROOT / "docs" / "gallery.md").read_text()
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == CONFIGS
    assert re.findall(r"^```{include} ../ensemble/configs/(\w+).py$", page, re.MULTILINE) == CONFIGS
