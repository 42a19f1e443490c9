"""Searching a loaded file on the page, in a real browser; see test_page_browser.py."""

from __future__ import annotations

import re

import pytest

from support.servers import serving

pytestmark = pytest.mark.whole
sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
expect = sync_api.expect


def find(page, query):
    page.get_by_label("Query").fill(query)
    page.keyboard.press("Enter")
    expect(page.locator("#search-state")).to_contain_text("the most similar first")


def test_rows_are_those_of_the_route(visit, librarian):
    page = visit(librarian.url)
    expect(page.locator("#search-help")).to_contain_text("library.db has 25 rows.")
    find(page, "a gale at sea")
    want = librarian.post("/search", {"query": "a gale at sea"}).json["hits"][0]
    assert page.locator("#hits li").count() == len(want) == 10
    scores = [float(text.replace("−", "-")) for text in page.locator("#hits .score").all_inner_texts()]
    assert scores == [pytest.approx(hit["score"], abs=6e-4) for hit in want]
    first = page.locator("#hits li").first
    assert first.locator(".text").inner_text() == want[0]["text"]
    assert first.locator(".small").inner_text() == "row 0 · id 9007199254740993 · lang en · year 1851"
    page.get_by_label("Rows to show").select_option("5")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#hits li")).to_have_count(5)
    expect(page.locator("#search-state")).to_have_text("5 rows, the most similar first. Similarity: cosine.")


def test_ten_rows_lie_within_two_screens_of_a_phone(visit, librarian):
    page = visit(librarian.url, viewport={"width": 390, "height": 844})
    find(page, "a gale at sea")
    last = page.locator("#hits li").last.bounding_box()
    assert last["y"] + last["height"] < 2 * 844
    assert page.locator("#hits .score").first.bounding_box()["width"] > 40  # its digits are in one line


def test_there_is_no_search_without_a_file(visit, server):
    page = visit(server.url)
    expect(page.locator("#model")).to_contain_text("256 dimensions")
    expect(page.locator("#search")).to_be_hidden()


def test_it_works_with_the_keyboard_alone(visit, librarian):
    page = visit(librarian.url)
    expect(page.locator("#search")).to_be_visible()
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.locator(":focus").get_attribute("id") == "query":
            break
    page.keyboard.type("gardens")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#search-state")).to_contain_text("the most similar first")
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Show the whole text"
    page.keyboard.press("Enter")
    whole = page.locator("#hits li").first.locator(".text")
    expect(whole).to_have_text("A long text on gardens. " * 60)
    expect(whole).to_be_focused()


def test_texts_with_markup_stay_texts(visit, librarian):
    page = visit(librarian.url)
    find(page, "<img src=x onerror=\"document.title='taken'\"> is markup.")
    assert page.locator("#hits .text").first.inner_text().startswith("<img src=x")
    assert page.locator("#hits img").count() == 0
    assert page.title() == "default – fastflow"


def test_errors_are_sentences_and_take_the_rows_away(visit, librarian):
    page = visit(librarian.url)
    find(page, "a")
    page.route("**/search", lambda route: route.abort())
    page.keyboard.press("Enter")
    expect(page.locator("#search-state")).to_contain_text("The server cannot be reached")
    expect(page.locator("#hits li")).to_have_count(0)
    page.get_by_label("Query").fill("  ")
    page.keyboard.press("Enter")
    expect(page.locator("#search-state")).to_have_text("The query is empty: write a text.")


def test_a_query_that_is_cut_is_said_to_be(visit, librarian):
    page = visit(librarian.url)
    find(page, "word " * 500)
    expect(page.locator("#search-state")).to_contain_text(re.compile(r"The query was cut at \d+ tokens\."))


def test_the_section_comes_with_the_key(visit, library):
    with serving(keys=("the-key",), rate=50_000.0, search=library) as locked:
        page = visit(locked.url)
        expect(page.locator("#key")).to_be_visible()
        expect(page.locator("#search")).to_be_hidden()
        page.locator("#key-field").fill("the-key")
        page.keyboard.press("Enter")
        expect(page.get_by_label("Query")).to_be_focused()
        find(page, "mountains")


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_it_fits_and_can_be_touched(visit, librarian, width):
    page = visit(librarian.url, viewport={"width": width, "height": 800})
    expect(page.locator("#search")).to_be_visible()
    find(page, "gardens " + "w" * 300)
    assert page.locator("html").evaluate("e => e.scrollWidth") <= width
    boxes = [each.bounding_box() for each in page.locator("#search :is(button, input, select):visible").all()]
    assert len(boxes) >= 3
    for box in boxes:
        assert min(box["height"], box["width"]) >= 24  # WCAG 2.2, target size
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


def test_a_name_that_was_made_to_lead_here_reads_nothing(browser, library):
    """DNS rebinding: the browser takes this server for the page's own, and sends it the page's name."""
    with serving(rate=50_000.0, search=library, hosts=("localhost",)) as server:
        page = browser.new_page()
        answer = page.goto(f"http://evil.example:{server.port}/")
        assert answer.status == 403
        assert "answers to localhost alone" in page.locator("body").inner_text()
        page.close()


ACROSS = """async (e, [url, kind]) => {
    const body = JSON.stringify({ query: "a storm" });
    try {
        await fetch(url, { method: "POST", headers: kind ? { "Content-Type": kind } : {}, body });
        return "read";
    } catch (error) {
        return error.name;
    }
}"""


@pytest.mark.parametrize("kind", ["", "application/json"])
def test_a_page_of_another_origin_cannot_search(browser, librarian, kind):
    page = browser.new_page()
    page.route("http://evil.example/", lambda route: route.fulfill(body="<body>a page", content_type="text/html"))
    page.goto("http://evil.example/")
    counted = librarian.service.metrics.value("te_request_count", method="single")
    for _ in range(3):
        assert page.locator("body").evaluate(ACROSS, [f"{librarian.url}/search", kind]) == "TypeError"
    assert librarian.service.metrics.value("te_request_count", method="single") == counted
    page.close()
