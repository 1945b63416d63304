"""A page in a real headless Chromium, for tests and for the pictures of the documentation.

The browser is the system's own (Debian: `apt-get install chromium`): Playwright drives it, and
downloads none.
"""

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

_NAMES = ("chromium", "chromium-browser", "google-chrome")


class Opened(NamedTuple):
    """A page, and what it has done so far; both lists grow while the page lives."""

    page: Any
    """Playwright's `Page`."""
    requests: list[str]
    """Every URL that was asked for, the page's own first; `data:` URLs ask for nothing."""
    errors: list[str]
    """Uncaught exceptions, errors on the console, and requests that failed."""


def find_chromium() -> str | None:
    """Returns the path of the system's Chromium; None where there is none."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


def missing() -> str | None:
    """Says what must be installed before a page can be opened; None if nothing."""
    if importlib.util.find_spec("playwright") is None:
        return "no Playwright: pip install -r requirements-dev.txt"
    if find_chromium() is None:
        return f"no {' or '.join(_NAMES)} on PATH: apt-get install chromium"
    return None


def require_browser() -> None:
    """Skips the test that calls it where there is no browser; fails it if REQUIRE_BROWSER=1."""
    import pytest

    reason = missing()
    if reason is None:
        return
    if os.environ.get("REQUIRE_BROWSER") == "1":
        pytest.fail(f"REQUIRE_BROWSER=1, but there is {reason}")
    pytest.skip(f"NOT TESTED IN A BROWSER, for there is {reason}")


@contextlib.contextmanager
def open_page(
    url: str,
    *,
    offline: bool = False,
    color_scheme: Literal["light", "dark"] = "light",
    width: int = 1280,
    height: int = 900,
) -> Iterator[Opened]:
    """Opens a URL in a browser of its own and waits for its `load` event.

    One page at a time: Playwright's synchronous API cannot be nested in one thread.

    Args:
        url: `http://`, or `file://` with `pathlib.Path.as_uri`.
        offline: whether the page is cut off from every network.
        color_scheme: what the page is told that its reader prefers.
        width: of the viewport, CSS pixels.
        height: of the viewport, CSS pixels.

    Yields:
        The page, its requests and its errors.
    """
    from playwright.sync_api import sync_playwright

    # Chromium's sandbox refuses to run as root, which containers are.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with contextlib.ExitStack() as stack:
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=arguments)
        stack.callback(browser.close)
        context = browser.new_context(
            offline=offline,
            color_scheme=color_scheme,
            viewport={"width": width, "height": height},
        )
        opened = Opened(context.new_page(), [], [])
        _listen(opened)
        opened.page.goto(url, wait_until="load", timeout=60_000)
        yield opened


def _listen(opened: Opened) -> None:
    """Notes what a page asks for and what goes wrong in it."""
    page, requests, errors = opened
    page.on("request", lambda request: requests.append(request.url))
    page.on("requestfailed", lambda request: errors.append(f"{request.url}: {request.failure}"))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console",
        lambda message: errors.append(message.text) if message.type == "error" else None,
    )
