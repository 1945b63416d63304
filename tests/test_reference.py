"""The pages that the site makes of docstrings leave nothing public out, and all of it has words."""

import importlib
import inspect
import re

import pytest
from conftest import ROOT

import ensemble
from ensemble import metrics, testing

DIRECTIVE = re.compile(r"^\.\. auto\w+:: ([\w.]+)$", re.MULTILINE)
CONFIGS = sorted(path.stem for path in (ROOT / "configs").glob("[a-z]*.py"))


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


@pytest.mark.parametrize("module", [ensemble, testing], ids=lambda one: one.__name__)
def test_every_public_name_is_listed(module):
    on_page = [imported(path) for path in listed("api.md")]
    names = [name for name in module.__all__ if getattr(module, name) not in on_page]
    assert names == []


def test_a_group_has_at_most_seven_entries():
    groups = re.split(r"^#+ ", (ROOT / "docs" / "api.md").read_text(), flags=re.MULTILINE)
    sizes = {one.splitlines()[0]: len(DIRECTIVE.findall(one)) for one in groups if one}
    assert {name: size for name, size in sizes.items() if size > 7} == {}
    assert sum(sizes.values()) == len(set(listed("api.md")))


def test_every_name_of_the_scores_is_of_a_listed_module():
    modules = [imported(path) for path in listed("metrics.md")[1:]]
    theirs = [value for one in modules for value in vars(one).values()]
    names = [name for name in metrics.__all__ if getattr(metrics, name) not in theirs]
    assert names == []


def test_every_module_of_scores_is_listed():
    files = {path.stem for path in (ROOT / "ensemble" / "metrics").glob("*.py")}
    modules = {f"ensemble.metrics.{name}" for name in files - {"__init__", "checks"}}
    assert modules | {"ensemble.metrics"} == {*listed("metrics.md")}


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


def test_every_configuration_has_one_place_on_its_page():
    page = (ROOT / "docs" / "configuration.md").read_text()
    links = re.findall(r"\[`(\w+)`]\(../configs/(\w+)\.py\)", page)
    assert sorted(links) == [(name, name) for name in CONFIGS]
