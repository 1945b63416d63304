"""The pages that are written from docstrings are current, and nothing public is left out."""

import inspect
import pathlib

import pytest
from conftest import ROOT

import ensemble
from scripts import reference

LISTED = [path for paths in reference.API.values() for path in paths]


@pytest.mark.parametrize("page", reference.PAGES)
def test_the_page_is_that_of_the_docstrings(page):
    assert (ROOT / "docs" / page).read_text() == reference.PAGES[page](), (
        "python -m scripts.reference"
    )


def test_every_public_name_is_listed():
    assert {f"ensemble.{name}" for name in ensemble.__all__} <= set(LISTED)


def test_every_module_of_scores_is_listed():
    files = pathlib.Path(inspect.getfile(ensemble.networks)).parent.parent.glob("metrics/*.py")
    assert {one.stem for one in files} - {"__init__", "checks"} == set(reference.METRICS)


def test_every_public_symbol_is_documented():
    undocumented = []
    scores = [path for module in reference.METRICS for path in reference.scored(module)]
    for path in [*LISTED, *scores]:
        value = reference.find(path)
        if not reference.docstring(value):
            undocumented.append(path)
        own = reference.methods(value) if inspect.isclass(value) else []
        undocumented += [f"{path}.{name}" for name, one in own if not reference.docstring(one)]
    assert undocumented == []


def test_pictures_are_of_configurations_and_exist():
    files = [file for pictures in reference.PICTURES.values() for file, _ in pictures]
    assert reference.PICTURES.keys() <= set(reference.configs())
    assert [file for file in files if not (ROOT / "docs" / "images" / file).exists()] == []


def test_a_docstring_becomes_markdown():
    text = """Adds.

    Args:
        first: one number,
            of two.
        *others: more.

    Returns:
        Their sum.

    It is exact.
    """
    assert reference.markdown(text) == (
        "Adds.\n\n*Args*\n\n- `first`: one number,\n  of two.\n- `*others`: more.\n\n"
        "*Returns*\n\nTheir sum.\n\nIt is exact."
    )
