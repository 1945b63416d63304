"""A page in the real Chromium: what it notes, what it is told, what it does without a browser."""

import pytest

from scripts import browser
from scripts.browser import open_page, require_browser

PAGE = """<!doctype html><title>page</title>
<img src="http://127.0.0.1:9/absent.png"><img id="drawn" src="data:image/gif;base64,
R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7">
<script>console.error("from the console"); throw new Error("uncaught")</script>"""


@pytest.mark.check
def test_requests_and_errors_are_noted(tmp_path):
    require_browser()
    path = tmp_path / "page.html"
    path.write_text(PAGE)
    with open_page(path.as_uri(), offline=True, color_scheme="dark") as opened:
        assert opened.requests == [path.as_uri(), "http://127.0.0.1:9/absent.png"]
        for part in ("from the console", "uncaught", "absent.png"):
            assert any(part in error for error in opened.errors), opened.errors
        assert opened.page.evaluate("drawn.naturalWidth") == 1
        assert opened.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")


@pytest.mark.check
def test_a_sound_page_has_no_errors(tmp_path):
    require_browser()
    path = tmp_path / "page.html"
    path.write_text("<!doctype html><title>sound</title><p>Nothing is asked for.")
    with open_page(path.as_uri(), width=640, height=480) as (page, requests, errors):
        assert page.title() == "sound"
        assert page.evaluate("[innerWidth, innerHeight]") == [640, 480]
        assert not page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert requests == [path.as_uri()]
    assert errors == []


def test_without_a_browser_a_test_skips_or_fails_as_the_environment_says(monkeypatch):
    monkeypatch.setattr(browser, "find_chromium", lambda: None)
    monkeypatch.delenv("REQUIRE_BROWSER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="install"):
        require_browser()
    monkeypatch.setenv("REQUIRE_BROWSER", "1")
    with pytest.raises(pytest.fail.Exception, match="REQUIRE_BROWSER=1, but there is no"):
        require_browser()
