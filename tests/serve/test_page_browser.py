"""The page in a real browser without a screen, driven by Playwright: any Chromium that is installed.

The policy of the page forbids a page's own evaluation of strings, so tests look at its elements.
"""

from __future__ import annotations

import json
import re
import shlex

import pytest

from fastflow.version import __version__

from support.servers import serving

pytestmark = pytest.mark.whole
sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
NASTY = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
FAILURES = {  # how the answer of a route is spoilt -> what the page says
    "markup": (
        {
            "status": 422,
            "body": '{"error": "<img src=x onerror=alert(1)> is wrong"}',
            "content_type": "application/json",
        },
        "<img src=x onerror=alert(1)> is wrong. (Status 422.)",
    ),
    "proxy": ({"status": 502, "body": "<html>Bad gateway</html>"}, "The server answered with no reason. (Status 502.)"),
    "cut": (None, "The server cannot be reached: it may have stopped, or the network is down."),
}
expect = sync_api.expect


def compare(page, first, second):
    page.get_by_label("First text").fill(first)
    page.get_by_label("Second text").fill(second)
    page.get_by_role("button", name="Compare").click()
    return expect(page.locator("#compare-state"))


def find(page, query):
    page.get_by_label("Query").fill(query)
    page.keyboard.press("Enter")
    expect(page.locator("#search-state")).to_contain_text("the most similar first")


def test_it_compares_two_texts(visit, server):
    page = visit(server.url)
    expect(page.locator("#model")).to_contain_text(f"{__version__} · default, 256 dimensions")
    expect(page.locator("#search")).to_be_hidden()  # no file is loaded
    for first, second in (("a b c", "a c"), (NASTY, NASTY)):
        inputs = {"source_sentence": first, "sentences": [second]}
        (value,) = server.post("/similarity", {"inputs": inputs}).json
        said = f"Similarity (cosine): {value:.3f}.".replace("-", "−")
        compare(page, first, second).to_have_text(said)
    compare(page, "a", "word " * 500).to_contain_text(re.compile(r"A text was cut at \d+ tokens\."))
    assert page.locator("main script, main img").count() == 0
    assert page.title() == "default – fastflow"


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
    find(page, "<img> is markup")
    assert page.locator("#hits img").count() == 0
    find(page, "word " * 500)
    expect(page.locator("#search-state")).to_contain_text(re.compile(r"The query was cut at \d+ tokens\."))


@pytest.mark.parametrize("route", ["similarity", "search"])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_is_a_sentence_without_markup(visit, librarian, route, failure):
    page = visit(librarian.url)
    find(page, "a storm")
    answer, says = FAILURES[failure]
    page.route(f"**/{route}", lambda asked: asked.abort() if answer is None else asked.fulfill(**answer))
    page.get_by_role("button", name="Compare" if route == "similarity" else "Search").click()
    state = page.locator("#compare-state" if route == "similarity" else "#search-state")
    expect(state).to_have_text(says)
    expect(state).to_have_class(re.compile("bad"))
    assert page.locator("main img").count() == 0
    assert page.locator("#hits li").count() == (0 if route == "search" else 10)


@pytest.mark.parametrize("field", ["query", "first"])
def test_it_works_with_the_keyboard_only(visit, librarian, field):
    page = visit(librarian.url)
    expect(page.locator("#search")).to_be_visible()
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.locator(":focus").get_attribute("id") == field:
            break
    page.keyboard.type("gardens")
    page.keyboard.press("Enter")
    said = "the most similar first" if field == "query" else "Similarity"
    expect(page.locator("#search-state" if field == "query" else "#compare-state")).to_contain_text(said)


def test_a_key_is_asked_for_and_kept_in_memory(visit, library):
    with serving(keys=("the-key",), rate=50_000.0, search=library) as locked:
        page = visit(locked.url)
        expect(page.locator("#key")).to_be_visible()
        expect(page.locator("#search")).to_be_hidden()
        page.get_by_label("API key", exact=True).last.fill("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#key-state")).to_contain_text("The server does not accept this key.")
        page.locator("#key-field").fill("the-key")
        page.get_by_role("button", name="Use this key").click()
        expect(page.locator("#key")).to_be_hidden()
        expect(page.get_by_label("Query")).to_be_focused()
        find(page, "mountains")
        compare(page, "a", "b").to_contain_text("Similarity")
        expect(page.locator("#curl")).to_contain_text("-H 'Authorization: Bearer KEY'")
        assert page.locator("body").evaluate("() => localStorage.length + sessionStorage.length") == 0
        assert page.locator("body").evaluate("() => document.cookie") == ""
        assert page.locator("#key-field").input_value() == ""
        assert "the-key" not in page.url
        page.reload()
        expect(page.locator("#key")).to_be_visible()


def test_the_commands_on_the_pages_are_answered(visit, librarian):
    page = visit(librarian.url)
    expect(page.locator("#curl")).to_contain_text("curl")
    commands = [page.locator("#curl").inner_text()]
    page.get_by_role("link", name="Routes and their fields").click()
    expect(page.get_by_role("heading", name="Routes")).to_be_visible()
    python, *others = page.locator("pre code").all_inner_texts()
    assert librarian.url in python
    assert len(others) == 5
    for command in commands + others:
        words = shlex.split(command)
        assert words[2].startswith(librarian.url)
        assert librarian.post(words[2].removeprefix(librarian.url), json.loads(words[6])).status == 200, command


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_it_fits_and_can_be_touched(visit, librarian, width, scheme):
    page = visit(librarian.url, viewport={"width": width, "height": 844}, color_scheme=scheme)
    expect(page.locator("#search")).to_be_visible()
    find(page, "gardens " + "w" * 300)  # a word that is longer than the screen
    compare(page, "w" * 300, "v" * 300).to_contain_text("Similarity")
    assert page.locator("html").evaluate("e => e.scrollWidth") <= width
    boxes = [each.bounding_box() for each in page.locator(":is(button, input, select):visible").all()]
    assert len(boxes) == 6
    for box in boxes:
        assert min(box["height"], box["width"]) >= 24  # WCAG 2.2, target size
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    assert not any(overlap(a, b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert page.locator("#hits .score").first.bounding_box()["width"] > 40  # its digits are in one line
    last = page.locator("#hits li").last.bounding_box()
    assert last["y"] + last["height"] < 2 * 844  # ten rows, a long one too, are within two screens of a phone
    ground = page.locator("body").evaluate("e => getComputedStyle(e).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) == (scheme == "dark")


def overlap(a, b) -> bool:
    return all(min(a[x] + a[s], b[x] + b[s]) - max(a[x], b[x]) > 1 for x, s in (("x", "width"), ("y", "height")))


def test_a_name_that_was_made_to_lead_here_reads_no_answer(browser, library):
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
