"""Tests in a real browser: make test-browser sets HETINFER_BROWSER, else they are left out."""

import importlib.resources
import os
import shutil

import pytest

collect_ignore_glob = [] if os.environ.get("HETINFER_BROWSER") else ["test_*.py"]


@pytest.fixture(scope="session")
def chromium():
    """A headless Chromium: the system's, or the one that HETINFER_CHROMIUM names."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("HETINFER_CHROMIUM") or shutil.which("chromium")
    assert path, "no chromium: install your system's package, or set HETINFER_CHROMIUM to its path"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """A function that opens a page of a width, and fails the test for an error in its console."""
    contexts, errors = [], []

    def open_page(url, width=1280, scheme="light"):
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture(scope="session")
def axe_source():
    """The text of axe-core, as the package axe-playwright-python holds it."""
    return (importlib.resources.files("axe_playwright_python") / "axe.min.js").read_text()
