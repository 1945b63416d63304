"""`report.html`: small, offline, without scripts, legible in any browser; nothing is executed."""

import html
import html.parser

import numpy as np
import pytest
from conftest import ROOT
from evaluations import HOSTILE, KINDS, classes, images, numbers, source

from ensemble.likelihoods.several import Several
from ensemble.report import page
from ensemble.report.evaluation import Evaluation
from ensemble.report.findings import RULES
from ensemble.report.table import digits
from scripts.browser import open_page, require_browser

VOID = {"meta", "link", "img", "br"}


class Parsed(html.parser.HTMLParser):
    """A page's elements; every one must be closed."""

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.tags = []
        self.attributes = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module", params=KINDS)
def evaluation(request):
    return KINDS[request.param]()


@pytest.fixture(scope="module")
def text(evaluation):
    return page.render(evaluation)


def test_it_is_small_offline_and_without_scripts(text):
    assert len(text.encode()) < 100_000
    parsed = Parsed(text)
    assert not {"script", "iframe", "object", "form"} & set(parsed.tags)
    for name, value in parsed.attributes:
        assert not name.startswith("on")
        if name in ("href", "src"):
            assert value.startswith(("#", "data:"))
    assert "url(" not in text
    assert "nan" not in text.lower().split("<main>")[1].replace("finance", "")


def test_charts_have_titles_and_identifiers_are_unique(text):
    charts = text.split('<svg class="plot"')[1:]
    assert charts
    assert all(one.split(">", 1)[1].startswith("<title>") for one in charts)
    identifiers = [value for name, value in Parsed(text).attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers))
    links = {value for name, value in Parsed(text).attributes if name == "href"}
    assert {f"#{one}" for one in identifiers} <= links
    assert links <= {f"#{one}" for one in identifiers} | {"data:,"}


def test_it_has_every_finding_and_warnings_come_first(evaluation, text):
    top, _, _ = text.partition("<nav>")
    places = {one.level: top.index(page.escaped(one.text)) for one in evaluation.findings}
    assert places.get("warning", 0) <= min(places.values())
    assert ("No warnings." in top) == ("warning" not in places)


def test_strangers_texts_are_escaped():
    text = page.render(images())
    assert not set("\x1b\u202e") & set(text)
    assert HOSTILE[0] not in text
    assert HOSTILE[0] in html.unescape(text)


def test_errors_are_shown_as_pictures():
    shown = page.render(images())
    assert shown.count("<figure><img") == 2
    assert shown.count("data:image/webp") == 2


def test_scores_after_calibration_are_in_the_table():
    e = images()
    assert f"<th>with temperature {digits(e.factor)}</th>" in page.render(e)


def test_worst_rows_have_their_numbers():
    e = KINDS["table"]()
    worst = np.argmax(np.abs(e.y - e.test.median))
    assert f'<tr class=""><th>no. {worst}</th>' in page.render(e)


def test_a_notebook_shows_the_page_in_a_frame():
    cell = images()._repr_html_()
    assert Parsed(cell).tags == ["iframe"]
    assert dict(Parsed(cell).attributes)["srcdoc"].startswith("<!doctype html>")


@pytest.mark.check
@pytest.mark.parametrize(
    ("kind", "width", "color_scheme"),
    [("images", 1280, "dark"), ("chains", 400, "light"), ("several targets", 400, "dark")],
)
def test_a_browser_shows_it_whole(kind, width, color_scheme, tmp_path):
    require_browser()
    path = tmp_path / "report.html"
    path.write_text(page.render(KINDS[kind]()))
    with open_page(path.as_uri(), width=width, color_scheme=color_scheme) as (opened, urls, errors):
        assert opened.evaluate("document.documentElement.scrollWidth") <= width
        sizes = opened.eval_on_selector_all(
            "svg.plot text",
            "all => all.map(one => one.getBoundingClientRect().height).filter(one => one > 0)",
        )
        assert min(sizes) > 9  # Pixels: legible.
        outside = opened.eval_on_selector_all(
            "svg.plot text",
            """all => all.filter(one => {
                const box = one.getBoundingClientRect();
                return box.left < -1 || box.right > innerWidth + 1;
            }).map(one => one.textContent)""",
        )
        assert outside == []
        assert urls == [path.as_uri()]
        assert errors == []


def test_every_finding_has_a_row_in_the_documentation():
    text = (ROOT / "docs" / "findings.md").read_text()
    assert {code for code in RULES if f"`{code}`" not in text} == set()


def test_large_runs_have_small_pages():
    p, y = classes(400, 50, 60, names=["a class with a long name"] * 50)
    steps = range(1, 500)
    records = [
        {"step": t} | {f"train/member_{k:02d}/loss": 1 / t for k in range(60)} for t in steps
    ]
    e = Evaluation(p, y, source=source(y[:, None]), records=records)
    assert len(page.render(e).encode()) < 100_000
    likelihood, q, z = numbers()
    arrays = {name: np.stack([one] * 9, axis=-1) for name, one in q.arrays.items()}
    many = Several(arrays, likelihoods=[likelihood] * 9)
    e = Evaluation(many, np.stack([z] * 9, axis=1))
    assert len(page.render(e).encode()) < 100_000
