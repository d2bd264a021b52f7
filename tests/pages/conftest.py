"""A real headless Chromium, and pages that must neither fail nor fetch anything.

Playwright drives whatever Chromium the machine has (Debian's in CI) over its own protocol, so no
driver has to match the browser's version; it reports the console and every request, and it can
switch scripts off and colours to dark.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tools.browser import VARIABLE, find

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Open = Callable[..., "Page"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    where = find()
    if where is None:
        pytest.skip(f"no Chromium: install one (python -m tools.browser) or name it in {VARIABLE}")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    arguments = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with api.sync_playwright() as play:
        started = play.chromium.launch(executable_path=str(where), args=arguments)
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens a file; when the test ends, nothing has failed and nothing else was asked for."""
    said: list[str] = []
    asked: list[str] = []
    opened: list[str] = []
    with ExitStack() as stack:

        def open_file(path: Path, **options: Any) -> Page:
            context = browser.new_context(
                viewport=options.pop("viewport", {"width": 1200, "height": 900}), **options
            )
            stack.callback(context.close)
            page = context.new_page()
            page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
            page.on("pageerror", lambda error: said.append(f"error: {error}"))
            page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
            page.on("request", lambda request: asked.append(request.url.partition("#")[0]))
            opened.append(path.as_uri())
            page.goto(path.as_uri())
            return page

        yield open_file
    assert said == []
    assert asked == opened
