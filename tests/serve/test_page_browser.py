"""The page in a real browser without a screen, driven by Playwright: any Chromium that is installed.

The policy of the page forbids a page's own evaluation of strings, so tests look at its elements.
"""

from __future__ import annotations

import re
import time

import pytest

from support.servers import serving

pytestmark = pytest.mark.whole
sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
NASTY = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
HIDE = (  # a browser without a screen shows every tab
    "(e, hidden) => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
    " document.dispatchEvent(new Event('visibilitychange')); }"
)
expect = sync_api.expect


def numbers(page, side):
    return [float(text.replace("−", "-")) for text in page.locator(f".{side} output").all_inner_texts()]


def numbers_shown(page):
    return sum(bool(re.search(r"\d", text)) for text in page.locator("main output").all_inner_texts())


def test_pairs_are_compared_raw_beside_calibrated(visit, server, runtime):
    page = visit(server.url)
    expect(page.locator("#model")).to_contain_text("256 dimensions")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#pairs-state")).to_contain_text("Similarity: cosine. Raw from")
    texts = [box.input_value() for box in page.locator("textarea").all()]
    pairs = [list(pair) for pair in zip(texts[::2], texts[1::2], strict=True)]
    assert len(pairs) == 3
    assert numbers_shown(page) == 6
    found = server.post("/compare", {"pairs": pairs}).json["pairs"]
    for side in ("raw", "calibrated"):
        assert numbers(page, side) == [pytest.approx(pair[side], abs=6e-4) for pair in found]
        for bar, value in zip(page.locator(f".{side} .bar").all(), numbers(page, side), strict=True):
            width = float(re.search(r"width: ([0-9.]+)%", bar.get_attribute("style"))[1])
            assert width == pytest.approx(100 * value, abs=0.2)  # of a track from 0 to 1
    page.locator("textarea").first.fill("changed")  # a figure of other texts is taken away
    assert page.locator(".raw output").first.inner_text() == "–"


def test_it_works_with_the_keyboard_alone(visit, server):
    page = visit(server.url)
    expect(page.locator("#model")).to_contain_text("256 dimensions")
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Skip to the pairs"
    seen = set()
    for _ in range(20):
        name = page.locator(":focus").evaluate("e => e.id || e.className")
        seen.add(name)
        if name == "compare":
            page.keyboard.press("Enter")
            break
        page.keyboard.press("Tab")
    expect(page.locator("#pairs-state")).to_contain_text("Raw from")
    assert "remove" in seen
    page.get_by_role("button", name="Add a pair").press("Enter")
    assert page.locator("#pair-list li").count() == 4
    page.keyboard.type("typed")  # the new field has the focus
    assert page.locator("#pair-list li").nth(3).locator("textarea").first.input_value() == "typed"
    page.get_by_role("button", name="Remove pair 4").press("Enter")
    assert page.locator("#pair-list li").count() == 3


def test_a_text_with_markup_stays_text(visit, server):
    page = visit(server.url)
    for box in page.locator("textarea").all():
        box.fill(NASTY)
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#pairs-state")).to_contain_text("Raw from 1.00 to 1.00")
    assert page.locator("main script, main img").count() == 0
    assert page.title() == "default – fastflow"


def test_what_a_server_says_becomes_no_markup(visit, server):
    page = visit(server.url)
    body = '{"error": "<img src=x onerror=alert(1)> is wrong"}'
    page.route("**/compare", lambda route: route.fulfill(status=422, body=body, content_type="application/json"))
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#pairs-state")).to_have_text("<img src=x onerror=alert(1)> is wrong.")
    assert page.locator("main img").count() == 0


def test_errors_are_sentences(visit, server):
    page = visit(server.url)
    page.locator("textarea").nth(1).fill(" ")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#pairs-state")).to_have_text("Pair 1 lacks a text: write one, or remove the pair.")
    page.locator("textarea").nth(1).fill("a")
    page.route("**/compare", lambda route: route.fulfill(status=502, body="<html>Bad gateway</html>"))
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#pairs-state")).to_have_text("The server answered with status 502 and no reason.")
    page.unroute("**/compare")
    page.route("**/compare", lambda route: route.abort())
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#pairs-state")).to_contain_text("The server cannot be reached")
    assert numbers_shown(page) == 0


def test_a_busy_server_is_said_to_be_busy(visit):
    with serving(rate=1.0, timeout=5.0) as busy:
        page = visit(busy.url)
        page.get_by_role("button", name="Compare").click()
        expect(page.locator("#pairs-state")).to_contain_text("These texts take about")
        assert numbers_shown(page) == 0


def test_a_key_is_asked_for_and_kept_in_memory_alone(visit):
    with serving(keys=("the-key",), rate=50_000.0) as locked:
        page = visit(locked.url)
        expect(page.locator("#key")).to_be_visible()
        expect(page.locator("#figures dd").first).to_have_text(re.compile(r"\d"))  # /metrics needs none
        page.get_by_label("API key", exact=True).last.fill("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#key-state")).to_have_text("The server does not accept this key.")
        page.locator("#key-field").fill("the-key")
        page.get_by_role("button", name="Use this key").click()
        expect(page.locator("#key")).to_be_hidden()
        page.get_by_role("button", name="Compare").click()
        expect(page.locator("#pairs-state")).to_contain_text("Raw from")
        assert page.locator("body").evaluate("() => localStorage.length + sessionStorage.length") == 0
        assert page.locator("body").evaluate("() => document.cookie") == ""
        assert page.locator("#key-field").input_value() == ""
        assert "the-key" not in page.url
        page.reload()
        expect(page.locator("#key")).to_be_visible()


def test_a_model_without_calibration_says_so(visit, bert):
    with serving(bert, rate=50_000.0) as server:
        page = visit(server.url)
        expect(page.locator("#pairs-help")).to_contain_text("This model has no calibration")
        page.get_by_role("button", name="Compare").click()
        expect(page.locator("#pairs-state")).to_contain_text("Raw from")
        assert "calibrated" not in page.locator("#pairs-state").inner_text()
        expect(page.locator(".bars .calibrated").first).to_be_hidden()


def figure(page, name):
    """The figure under ``name``."""
    return page.locator("#figures > div", has=page.get_by_text(name, exact=True)).locator("dd").first


def test_figures_are_those_of_metrics(visit):
    with serving(rate=50_000.0) as server:
        page = visit(server.url)
        expect(figure(page, "Requests read")).to_have_text("0")
        for _ in range(7):
            server.post("/embed", {"inputs": ["a", "b"]})
        server.post("/embed", {"inputs": 1})
        expect(figure(page, "Requests read")).to_have_text("7")
        expect(figure(page, "Refused")).to_have_text("1")
        expect(figure(page, "Texts in a batch")).to_have_text("2.00")
        for name in ("Latency, p50", "Latency, p99"):
            expect(figure(page, name)).to_have_text(re.compile("^[0-9.]+ m?s$"))
        assert page.locator("#figures polyline").first.get_attribute("points").count(",") >= 2


def test_polling_stops_while_paused_or_hidden(visit, server):
    page = visit(server.url)
    asked = []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/metrics") else None)
    expect(figure(page, "Requests read")).to_have_text(re.compile(r"\d"))
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#live-state")).to_have_text("Paused.")
    assert stands_still(page, asked)
    page.get_by_role("button", name="Pause").click()
    page.wait_for_timeout(500)
    assert not stands_still(page, asked)
    page.locator("body").evaluate(HIDE, True)
    assert stands_still(page, asked)
    page.locator("body").evaluate(HIDE, False)
    assert not stands_still(page, asked)


def stands_still(page, asked) -> bool:
    """Whether nothing is asked for in the time of two polls."""
    before, end = len(asked), time.monotonic() + 4.5
    while time.monotonic() < end:
        page.wait_for_timeout(250)
    return len(asked) == before


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_it_fits_and_can_be_touched(visit, server, width, scheme):
    page = visit(server.url, viewport={"width": width, "height": 800}, color_scheme=scheme)
    expect(figure(page, "Requests read")).to_have_text(re.compile(r"\d"))
    page.locator("textarea").first.fill("w" * 300)  # a word that is longer than the screen
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#pairs-state")).to_contain_text("Raw from")
    assert page.locator("html").evaluate("e => e.scrollWidth") <= width
    boxes = [(each, each.bounding_box()) for each in page.locator("button:visible, textarea, input:visible").all()]
    for each, box in boxes:
        assert min(box["height"], box["width"]) >= 24, each  # WCAG 2.2, target size
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    assert not any(overlap(a, b) for i, (_, a) in enumerate(boxes) for _, b in boxes[:i])
    ground = page.locator("body").evaluate("e => getComputedStyle(e).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) == (scheme == "dark")


def overlap(a, b) -> bool:
    """Whether two boxes share more than an edge."""
    return all(min(a[x] + a[s], b[x] + b[s]) - max(a[x], b[x]) > 1 for x, s in (("x", "width"), ("y", "height")))
