"""A real Chromium for the pages. Set ATTNSCOPE_NO_BROWSER=1 on a machine without one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if os.environ.get("ATTNSCOPE_NO_BROWSER") == "1":
        pytest.skip("ATTNSCOPE_NO_BROWSER=1")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.fail("No Chromium was found: install one (Debian: chromium), or set ATTNSCOPE_NO_BROWSER=1.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()
