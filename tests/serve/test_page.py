"""The page at /: its files, and headers under which no text can become markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from fastflow.serve.app import FILES

FOLDER = files("fastflow.serve") / "page"


def policy(answer) -> dict[str, str]:
    parts = answer.headers["content-security-policy"].split("; ")
    return {name: value for name, _, value in (part.partition(" ") for part in parts)}


@pytest.mark.parametrize("path", FILES)
def test_each_file_is_served_as_it_is_with_a_strict_policy(server, path):
    answer = server.get(path)
    name, media = FILES[path]
    assert answer.status == 200
    assert path == "/docs" or answer.body == (FOLDER / name).read_bytes()
    assert answer.headers["content-type"] == f"{media}; charset=utf-8"
    found = policy(answer)
    assert found["default-src"] == "'none'"
    assert {found[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert found["require-trusted-types-for"] == "'script'"
    assert found["frame-ancestors"] == found["base-uri"] == found["form-action"] == "'none'"
    assert not re.search("unsafe|https?:|\\*", answer.headers["content-security-policy"])
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_only_these_files_are_served(server):
    for path in ("/page.html", "/page/page.js", "/page.js/", "/../page.py", "/page.py", "/page.css/../page.js"):
        assert server.get(path).status == 404, path
    assert server.ask("POST", "/docs").status == 405
    assert server.ask("HEAD", "/").body == b""
    assert sorted(name for name, _ in FILES.values()) == sorted(each.name for each in FOLDER.iterdir())


def test_the_page_of_the_routes_has_every_route_and_field(librarian):
    text = librarian.get("/docs").body.decode()
    for path, operations in librarian.app.state.description["paths"].items():
        for method, operation in operations.items():
            if method == "get":
                assert path in FILES or f">{path}</a>" in text
                continue
            section = text.partition(f"POST {path}<")[2].partition("</section>")[0]
            fields = operation["requestBody"]["content"]["application/json"]["schema"]["properties"]
            assert [f for f in fields if not re.search(f"<code>{f}</code></th><td>[a-z]", section)] == [], path
    assert "<!--" not in text


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


@pytest.fixture(scope="module", params=["page", "docs"])
def stem(request):
    return request.param


@pytest.fixture(scope="module")
def tags(stem):
    parser = Tags()
    parser.feed((FOLDER / f"{stem}.html").read_text(encoding="utf-8"))
    return parser.tags


def test_it_has_one_script_of_ours_and_nothing_inline(tags, stem):
    assert [at["src"] for tag, at in tags if tag == "script"] == [f"{stem}.js"]
    for tag, at in tags:
        assert tag != "style"
        assert not [name for name in at if name == "style" or name.startswith("on")], tag
    for _, at in tags:
        for name in ("src", "href"):
            assert not re.match("(https?:)?//|/", at.get(name) or ""), at  # relative: it works after any path


def test_the_script_makes_no_markup_of_texts(stem):
    script = (FOLDER / f"{stem}.js").read_text(encoding="utf-8")
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "localStorage",
                 "sessionStorage", "document.cookie"):  # fmt: skip
        assert word not in script, word


def test_every_field_has_a_name_and_every_id_is_one(tags, stem):
    ids = [at["id"] for _, at in tags if "id" in at]
    assert len(ids) == len(set(ids))
    for _, at in tags:
        for name in ("for", "aria-labelledby", "aria-describedby"):
            assert set((at.get(name) or "").split()) <= set(ids), at
    script = (FOLDER / f"{stem}.js").read_text(encoding="utf-8")
    assert set(re.findall(r'(?:\$|say)\("([^"]+)"', script)) <= set(ids)
    assert ("html", {"lang": "en"}) in tags


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_have_the_contrast_that_wcag_asks_for(scheme):
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    colour = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", re.findall(r":root \{(.*?)\}", style, re.S)[scheme]))
    for text in ("text", "soft", "accent", "bad"):
        for ground in ("card", "ground"):
            assert contrast(colour[text], colour[ground]) >= 4.5, (text, ground)
    assert contrast(colour["on-accent"], colour["accent"]) >= 4.5
    assert contrast(colour["text"], colour["track"]) >= 4.5
    for edge in ("edge", "accent"):
        assert contrast(colour[edge], colour["card"]) >= 3, edge
