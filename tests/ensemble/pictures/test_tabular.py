"""Tables as text and HTML: what strangers have written steers neither."""

import base64
import html.parser
import io
import re

import numpy as np
import pytest
from PIL import Image

from ensemble.pictures import tabular

HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=y>', "&amp;", "\x1b[2J", "\u202egnp"]


class Tags(html.parser.HTMLParser):
    """Names of the tags of a page, and its text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text += data


def row(i):
    return [("class", f"c{i}"), ("prob", i / 4)]


def test_a_preview_has_the_first_rows_and_says_how_many_follow():
    text = tabular.preview("12 predictions", 12, row)
    lines = text.splitlines()
    assert lines[0] == "12 predictions"
    assert lines[3].split() == ["0", "c0", "0.0000"]
    assert lines[-2].split() == ["9", "c9", "2.2500"]
    assert lines[-1] == "and 2 more"
    page = tabular.preview_html("12 predictions", 12, row)
    assert page.count("<tr>") == 1 + 10
    assert "<td>c9</td><td>2.2500</td>" in page
    assert "and 2 more" in page


@pytest.mark.parametrize("show", [tabular.preview, tabular.preview_html])
def test_few_rows_are_all_there_are(show):
    assert "more" not in show("2 predictions", 2, row)
    assert "0 predictions" in show("0 predictions", 0, row)


def test_numbers_have_the_format_that_is_asked_for():
    assert "1.5e-07" in tabular.preview("", 1, lambda i: [("mean", 1.5e-7)], ".6g")


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_text_whatever_is_in_them(name):
    page = tabular.preview_html(name, 1, lambda i: [(name, name)])
    found = Tags(page)
    assert set(found.tags) <= {"div", "p", "table", "thead", "tbody", "tr", "th", "td"}
    assert found.text.isprintable()
    if name.isprintable():
        assert found.text.count(name) == 3
    assert tabular.preview("", 1, lambda i: [("class", name)]).replace("\n", "").isprintable()


def test_a_picture_is_inline_and_small():
    png = io.BytesIO()
    ramp = np.linspace(0, 255, 400 * 300 * 3).reshape(300, 400, 3).astype(np.uint8)
    Image.fromarray(ramp).save(png, "png")
    tag = tabular.html_picture(png.getvalue(), '"members"')
    assert 'alt="&quot;members&quot;"' in tag
    found = Image.open(io.BytesIO(base64.b64decode(re.search(r"base64,([^\"]+)", tag)[1])))
    assert found.size == (400, 300)
    assert found.mode == "P"
    np.testing.assert_allclose(np.asarray(found.convert("RGB")).astype(float), ramp, atol=12)
