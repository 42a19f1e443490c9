"""The page in a real browser without a screen, driven by Playwright: any Chromium that is installed.

The policy of the page forbids a page's own evaluation of strings, so tests look at its elements.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import time

import pytest

from fastflow.version import __version__

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
    return [float(text.replace("−", "-").split(" ")[-1]) for text in page.locator(f".{side} .value").all_inner_texts()]


def opened(visit, url, **options):
    """The page after its first comparison and its check."""
    page = visit(url, **options)
    expect(page.locator("#share")).to_contain_text("The set is small")
    return page


def write(page, text, *texts):
    """Fill the form and send it."""
    page.locator("#text").fill(text)
    if texts:
        page.locator("#order-form details").evaluate("e => e.open = true")
        page.locator("#texts").fill("\n".join(texts))
    page.get_by_role("button", name="Compare").click()


def test_it_orders_texts_when_it_is_opened(visit, server):
    page = opened(visit, server.url)
    expect(page.locator("#model")).to_contain_text(f"{__version__} · default, 256 dimensions")
    text, texts = page.locator("#text").input_value(), page.locator("#texts").input_value().split("\n")
    assert len(texts) == 10
    found = server.post("/compare", {"pairs": [[text, each] for each in texts]}).json["pairs"]
    order = sorted(range(10), key=lambda i: -found[i]["calibrated"])
    assert page.locator("#places .text").all_inner_texts() == [texts[i] for i in order]
    for side in ("raw", "calibrated"):
        want = [found[i][side] for i in order]
        assert numbers(page, side) == [pytest.approx(value, abs=6e-4) for value in want]
        for bar, value in zip(page.locator(f".{side} .bar").all(), want, strict=True):
            width = float(re.search(r"width: ([0-9.]+)%", bar.get_attribute("style"))[1])
            assert width == pytest.approx(100 * value, abs=0.2)  # of a track from 0 to 1
    raw = [each["raw"] for each in found]
    ends = {1: "st", 2: "nd", 3: "rd"}
    places = [1 + sum(x > raw[i] for x in raw) for i in order]
    said = page.locator(".raw .value").all_inner_texts()
    assert [each.split(",")[0] for each in said] == [f"raw {n}{ends.get(n, 'th')}" for n in places]
    expect(page.locator("#order-help")).to_contain_text("masked mean of word embeddings without positions")


def test_the_share_of_pairs_in_the_right_order_is_counted(visit, server):
    page = opened(visit, server.url)
    rows = [line.split("\t") for line in server.get("/pairs.tsv").body.decode().splitlines()[1:]]
    found = server.post("/compare", {"pairs": [row[2:] for row in rows]}).json["pairs"]
    both = list(itertools.combinations(zip([float(row[1]) for row in rows], found, strict=True), 2))
    shares = {}
    for side in ("raw", "calibrated"):
        right = [(a - b) * (x[side] - y[side]) > 0 for (a, x), (b, y) in both if a != b]
        shares[side] = f"{100 * sum(right) / len(right):.0f}\u00a0%"
    words = f"in {shares['calibrated']} of cases, raw in {shares['raw']}"
    expect(page.locator("#share")).to_contain_text(f"A check on {len(rows)} English pairs")
    assert words in page.locator("#share").evaluate("e => e.textContent")


def test_ten_texts_lie_within_two_screens_of_a_phone(visit, server):
    page = opened(visit, server.url, viewport={"width": 390, "height": 844})
    last = page.locator("#places li").last.bounding_box()
    assert last["y"] + last["height"] < 2 * 844


def test_it_works_with_the_keyboard_alone(visit, server):
    page = opened(visit, server.url)
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Skip to the texts"
    page.keyboard.press("Tab")
    assert page.locator(":focus").get_attribute("id") == "text"
    page.keyboard.press("Control+A")
    page.keyboard.type("Where can I have music?")
    page.keyboard.press("Enter")
    expect(page.locator("#places .text").first).to_have_text("Do you lend films and music?")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # opens the texts
    page.keyboard.press("Tab")
    assert page.locator(":focus").get_attribute("id") == "texts"


def test_a_text_with_markup_stays_text(visit, server):
    page = opened(visit, server.url)
    write(page, NASTY, NASTY, "another")
    expect(page.locator("#places .text").first).to_have_text(NASTY)
    assert numbers(page, "raw")[0] == numbers(page, "calibrated")[0] == 1
    assert page.locator("main script, main img").count() == 0
    assert page.title() == "default – fastflow"


def test_what_a_server_says_becomes_no_markup(visit, server):
    page = opened(visit, server.url)
    body = '{"error": "<img src=x onerror=alert(1)> is wrong"}'
    page.route("**/compare", lambda route: route.fulfill(status=422, body=body, content_type="application/json"))
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#order-state")).to_have_text("<img src=x onerror=alert(1)> is wrong. (Status 422.)")
    assert page.locator("main img").count() == 0


def test_errors_are_sentences_and_take_the_order_away(visit, server):
    page = opened(visit, server.url)
    write(page, " ")
    expect(page.locator("#order-state")).to_have_text("Your text is empty: write one.")
    write(page, "a", " ", "")
    expect(page.locator("#order-state")).to_have_text("There is no text to order: write some, one a line.")
    write(page, "a", *"b" * 101)
    expect(page.locator("#order-state")).to_have_text("This page orders at most 100 texts: leave some out.")
    write(page, "a", "b")
    expect(page.locator("#places li")).to_have_count(1)
    page.route("**/compare", lambda route: route.fulfill(status=502, body="<html>Bad gateway</html>"))
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#order-state")).to_contain_text("The server answered with no reason. (Status 502.)")
    page.unroute("**/compare")
    page.route("**/compare", lambda route: route.abort())
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#order-state")).to_contain_text("The server cannot be reached")
    assert page.locator("#places li").count() == 0


def test_a_refusal_is_shown_with_its_status(visit):
    with serving(rate=1.0, timeout=5.0) as busy:
        page = visit(busy.url)
        expect(page.locator("#order-state")).to_contain_text("These texts take about")
        expect(page.locator("#order-state")).to_contain_text("(Status 422.)")
        expect(page.locator("#order-state")).to_have_class(re.compile("bad"))
        expect(page.locator("#share")).to_contain_text("The check on scored pairs failed: These texts take about")
        assert page.locator("#places li").count() == 0


def test_a_key_is_asked_for_and_kept_in_memory_alone(visit):
    with serving(keys=("the-key",), rate=50_000.0) as locked:
        page = visit(locked.url)
        expect(page.locator("#key")).to_be_visible()
        page.locator("#live summary").click()
        expect(page.locator("#figures dd").first).to_have_text(re.compile(r"\d"))  # /metrics needs none
        page.get_by_label("API key", exact=True).last.fill("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#key-state")).to_contain_text("The server does not accept this key.")
        page.locator("#key-field").fill("the-key")
        page.get_by_role("button", name="Use this key").click()
        expect(page.locator("#key")).to_be_hidden()
        expect(page.locator("#places li")).to_have_count(10)
        expect(page.locator("#curl")).to_contain_text("-H 'Authorization: Bearer KEY'")
        assert page.locator("body").evaluate("() => localStorage.length + sessionStorage.length") == 0
        assert page.locator("body").evaluate("() => document.cookie") == ""
        assert page.locator("#key-field").input_value() == ""
        assert "the-key" not in page.url
        page.reload()
        expect(page.locator("#key")).to_be_visible()


def test_a_model_without_calibration_says_so(visit, bert):
    with serving(bert, rate=50_000.0) as server:
        page = opened(visit, server.url)
        expect(page.locator("#order-help")).to_have_text("Ordered by cosine. This model has no calibration.")
        expect(page.locator("#places .raw").first).to_be_hidden()
        assert "raw" not in page.locator("#share").inner_text()


def test_the_command_on_the_page_is_answered(visit, server):
    page = opened(visit, server.url)
    command = shlex.split(page.locator("#curl").inner_text())
    assert command[:3] == ["curl", "-s", f"{server.url}/v1/embeddings"]
    kind, body = command[4].partition(": "), json.loads(command[6])
    assert server.post("/v1/embeddings", body, **{kind[0]: kind[2]}).status == 200


def test_the_page_of_the_routes_names_this_server(visit, server):
    page = visit(server.url)
    page.get_by_role("link", name="Routes and their fields").click()
    expect(page.get_by_role("heading", name="Routes")).to_be_visible()
    commands = page.locator("pre code").all_inner_texts()
    assert len(commands) == 7
    assert all(server.url in command for command in commands)
    for command in commands[1:-1]:  # all but the Python, and the search of a file that this server has not
        words = shlex.split(command)
        assert server.post(words[2].removeprefix(server.url), json.loads(words[6])).status == 200, command


def figure(page, name):
    """The figure under ``name``."""
    return page.locator("#figures > div", has=page.get_by_text(name, exact=True)).locator("dd").first


def test_figures_are_those_of_metrics(visit):
    with serving(rate=50_000.0) as server:
        page = opened(visit, server.url)
        page.locator("#live summary").click()
        expect(figure(page, "Requests read")).to_have_text("2")  # of the page itself
        for _ in range(7):
            server.post("/embed", {"inputs": ["a", "b"]})
        server.post("/embed", {"inputs": 1})
        expect(figure(page, "Requests read")).to_have_text("9")
        expect(figure(page, "Refused")).to_have_text("1")
        expect(figure(page, "Texts in a batch")).to_have_text("2.00")
        for name in ("Latency, p50", "Latency, p99"):
            expect(figure(page, name)).to_have_text(re.compile("^[0-9.]+ m?s$"))
        assert page.locator("#figures polyline").first.get_attribute("points").count(",") >= 2


def test_polling_stops_while_paused_or_hidden(visit, server):
    page = visit(server.url)
    asked = []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/metrics") else None)
    assert stands_still(page, asked)  # the figures are folded
    page.locator("#live summary").click()
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
    page = opened(visit, server.url, viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.locator("#live summary").click()
    expect(figure(page, "Requests read")).to_have_text(re.compile(r"\d"))
    write(page, "w" * 300, "v" * 300, "w" * 300)  # a word that is longer than the screen
    expect(page.locator("#places li")).to_have_count(2)
    assert page.locator("html").evaluate("e => e.scrollWidth") <= width
    boxes = [
        (each, each.bounding_box())
        for each in page.locator("button:visible, textarea:visible, input:visible, summary").all()
    ]
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
