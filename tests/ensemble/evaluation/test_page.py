"""`report.html` in a real browser: every picture draws, nothing is fetched, nothing is executed."""

import json
import re

import numpy as np
import pytest
from conftest import small_config
from test_assembly import make_images

import ensemble
from ensemble.evaluation.class_evaluator import ClassEvaluator
from ensemble.evaluation.summary import lines_of
from scripts.browser import open_page, require_browser

pytestmark = pytest.mark.check

HOSTILE = '<script>document.title = "hacked"</script>'


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report of images whose first class has a name that no page must execute."""
    folder = tmp_path_factory.mktemp("page")
    names = [HOSTILE, "$\\frac{1}{2$", "a & b"]
    np.savez(folder / "data.npz", **make_images(), class_names=names)
    config = small_config(dataset=f"npz:{folder}/data.npz", num_epochs=2)
    for name, rate in (("run", 0.1), ("other", 0.02)):
        ensemble.train({**config, "learning_rate": rate}, workdir=str(folder / name))
    ensemble.evaluate(folder / "run", compare=[folder / "other"], scores=["auprc:0"])
    return folder / "run" / "evaluation" / "report.html"


@pytest.mark.parametrize("color_scheme", ["light", "dark"])
def test_every_picture_draws_and_nothing_is_fetched(report, color_scheme):
    require_browser()
    with open_page(report.as_uri(), color_scheme=color_scheme) as (page, requests, errors):
        figures = page.eval_on_selector_all(
            "figure",
            """all => all.map(figure => {
                const svg = figure.querySelector('svg');
                const box = svg.getBoundingClientRect();
                const shapes = [...svg.querySelectorAll('path, use, image, text')].filter(shape => {
                    const box = shape.getBoundingClientRect();
                    return box.width > 0 || box.height > 0;
                });
                const ink = svg.querySelector('[style*="--ink"]');
                return {id: figure.id, width: box.width, height: box.height,
                        shapes: shapes.length, ink: ink && getComputedStyle(ink).fill};
            })""",
        )
        assert {one["id"] for one in figures} == {
            f"figure-{name}" for name in [*ClassEvaluator.captions, "training"]
        }
        for one in figures:
            assert one["width"] > 200, one
            assert one["height"] > 100, one
            assert one["shapes"] > 10, one
        assert requests == [report.as_uri()]
        assert errors == []
        inks = {one["ink"] for one in figures} - {"none", None}
        assert inks == {"rgb(34, 34, 34)" if color_scheme == "light" else "rgb(228, 228, 228)"}
        pictures = page.eval_on_selector_all(
            "#figure-least_certain image",
            "all => all.map(one => one.getBoundingClientRect().width)",
        )
        assert len(pictures) == 8
        assert min(pictures) > 20


def test_what_data_and_paths_say_is_escaped(report):
    require_browser()
    with open_page(report.as_uri()) as (page, _, _):
        assert page.title() == "run: evaluation"
        assert HOSTILE in page.inner_text("#classes")
    assert HOSTILE not in report.read_text()


def test_in_print_the_page_is_light_and_the_folds_are_open(report):
    require_browser()
    with open_page(report.as_uri(), color_scheme="dark") as (page, _, _):
        definition = page.locator("dt", has_text="Conformal set")
        assert not definition.is_visible()
        page.emulate_media(media="print")
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == "rgb(255, 255, 255)"
        assert definition.is_visible()
        assert page.pdf().startswith(b"%PDF")


def test_the_tables_show_what_evaluation_json_holds(report):
    require_browser()
    evaluation = json.loads((report.parent / "evaluation.json").read_text())
    with open_page(report.as_uri()) as (page, _, _):
        scores, shift = page.inner_text("#scores"), page.text_content("#shift")
        assert f"{evaluation['test']['scores']['nll']['value']:.4f}" in scores
        assert f"{evaluation['calibrated']['scores']['ece']['value']:.4f}" in scores
        assert page.locator("#compare th").count() == 3
        assert f"{evaluation['next_member']['mean']['brier'][1]:.4f}" in page.text_content("#sizes")
        for kind, section in evaluation["shift"].items():
            assert kind in shift
            assert f"{section['scores']['accuracy'][4]:.2%}" in shift
        found = re.sub(r"\s+", " ", page.text_content("#findings"))
        for sentence in lines_of(evaluation):
            assert sentence in found


def test_identifiers_are_unique(report):
    text = report.read_text()
    found = re.findall(r'\bid="([^"]+)"', text)
    assert len(found) == len(set(found))
    for target in set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text)):
        assert "".join(target) in found
