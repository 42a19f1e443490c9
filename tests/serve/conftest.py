"""Servers of the model in the package for tests that do not change their state, and a browser to visit them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastflow

from support.commands import run
from support.servers import Running, serving

KEYS = ("first-key", "second-key")
HOSTS = ("localhost", "my-desk")

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """A server without a key, of the model in the package."""
    with serving() as running:
        yield running


@pytest.fixture(scope="session")
def runtime() -> fastflow.Runtime:
    return fastflow.Runtime(None, "cpu")


PASSAGES = [
    {"text": "A ship fights a storm at night.", "id": 9007199254740993, "lang": "en", "year": 1851},
    {"text": "Two brothers quarrel over a farm.", "id": 2, "lang": "en", "year": None},
    {"text": "Das Brot geht im Ofen auf.", "id": 3, "lang": "de", "year": 1999},
    {"text": "<img src=x onerror=\"document.title='taken'\"> is markup.", "id": 4, "lang": "en", "year": 2020},
    {"text": "A long text on gardens. " * 60, "id": 5, "lang": "en", "year": 2021},
    *({"text": f"Chapter {i} of a book on mountains.", "id": 10 + i, "lang": "en", "year": i} for i in range(20)),
]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PASSAGES as a .db of the model in the package. Do not change it."""
    folder = tmp_path_factory.mktemp("library")
    lines = "".join(json.dumps(passage) + "\n" for passage in PASSAGES)
    (folder / "in.jsonl").write_text(lines, encoding="utf-8")
    options = ["--keep", "lang,year", "--id-field", "id", "--quiet"]
    done = run("embed", folder / "in.jsonl", "-o", folder / "library.db", *options)
    assert done.exit_code == 0, done.stderr
    return folder / "library.db"


@pytest.fixture(scope="session")
def librarian(library: Path) -> Iterator[Running]:
    """A server without a key that searches ``library``."""
    with serving(rate=50_000.0, search=library) as running:
        yield running


@pytest.fixture(scope="session")
def locked(library):
    """A server that asks for a key and takes small bodies."""
    with serving(keys=KEYS, max_body=2000, rate=50_000.0, search=library) as running:
        yield running


@pytest.fixture(scope="session")
def local(library):
    """A server as it is at a loopback address without a key."""
    with serving(rate=50_000.0, hosts=HOSTS, search=library) as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    """A Chromium without a screen, driven by Playwright; the name evil.example leads it to this machine."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    if BROWSER is None:
        pytest.skip("no Chromium is installed on this machine")
    rebound = "--host-resolver-rules=MAP evil.example 127.0.0.1"
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", rebound])
        yield found
        found.close()


@pytest.fixture
def visit(browser):
    """``visit(url, **options of new_page)``: the page, whose faults fail the test."""
    pages, faults = [], []

    def open_page(url, **options):
        page = browser.new_page(**{"viewport": {"width": 800, "height": 900}} | options)
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda line: faults.append(line.text) if "Content Security Policy" in line.text else None)
        page.goto(url + "/")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert faults == []
