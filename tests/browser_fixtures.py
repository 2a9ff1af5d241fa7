"""A real browser for the tests of the page: Debian's chromium, driven by playwright."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from needed import missing
from playwright.sync_api import Browser, Page, sync_playwright

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
MISSING = "there is no chromium here: install it (apt-get install chromium) to test the page."
PATIENCE = 120_000  # milliseconds: the machine may be busy

Open = Callable[..., Page]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests. In CI it must be there."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        missing(MISSING)
    with sync_playwright() as playwright:
        # Playwright gives each launch a profile of its own, which is deleted afterwards.
        launched = playwright.chromium.launch(executable_path=path, args=[*FLAGS])
        yield launched
        launched.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    """Open an address in a fresh window. Whatever the page complains of or asks for is kept."""
    contexts = []

    def open_page(address: str | Path, **settings: object) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **settings})
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.complaints, page.requests = [], []
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("dialog", lambda dialog: page.complaints.append(f"dialog {dialog.message}"))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(address.resolve().as_uri() if isinstance(address, Path) else address)
        return page

    yield open_page
    for context in contexts:
        context.close()


def pixels(page: Page, canvas: str) -> str:
    return page.eval_on_selector(canvas, "canvas => canvas.toDataURL()")


def wait_until(page: Page, script: str) -> None:
    """Wait for a script to be true; playwright's own way is eval, which the policy forbids."""
    for _ in range(300):
        if page.evaluate(script):
            return
        page.wait_for_timeout(100)
    pytest.fail(f"it never came to {script[:200]}")


def wait_for_change(page: Page, canvas: str, before: str) -> None:
    """Wait until a canvas shows something else."""
    shown = f"document.querySelector({json.dumps(canvas)}).toDataURL()"
    wait_until(page, f"{shown} !== {json.dumps(before)}")


def quiet(page: Page) -> bool:
    """No complaint, and no request but for the page itself."""
    assert page.complaints == []
    return len(page.requests) == 1
