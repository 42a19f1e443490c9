"""Plain English: how often docstrings, comments and pages use idioms to be decoded, for 10,000 words."""

from __future__ import annotations

import re

import pytest

from support.places import ROOT
from support.prose import of_c, of_python, words

GENERATED = {"_cpu.c", "unicode.h"}
ROOMS = ("fastflow", "kernels", "train", "bench")
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md", "kernels/README.md", "bench/results/*.md")
USERS = ("README.md", "docs/*.md")
PRONOUNS = "it|there|none|they|that|one|a|an|the|nothing|no|neither|its|each|all|this|these|both"
IDIOMS = {  # pattern -> the most for 10,000 words
    "where for if": (rf"\bwhere (?:{PRONOUNS}|\w+ (?:is|are|has|have|was|were))\b", 8),
    "says, told, knows": (r"\b(?:says?|said|told|tells?|knows?)\b", 2),
    "of it": (r"\bof (?:it|them|these|those)\b", 2),
    "behind": (r"\bbehind\b", 2),
    "beside": (r"\bbeside\b", 2),
    "a sentence that begins with What": (r"(?:^|[.:;]\s+)What\b", 2),
    "so many, alike": (r"\b(?:so many|one after the other|let go|alike|as far as)\b", 2),
    "anew, in turn": (r"\b(?:anew|in turn|but for)\b", 2),
}

HAND = ("*.md", "docs/*.md", "kernels/README.md", "bench/results/*.md", "fastflow/*/README.md")
MADE = ("docs/api.md", "docs/commands.md")  # from docstrings and help
NOUNS = {  # pattern -> the most for 10,000 words of docstrings and comments, and of hand-written pages
    r"\b(?:those|that) of\b": 2,
    r"\balone\b": 2.5,
    r"\b[Ww]hat\b": 6,
    r"\bwhose\b": 3,
    r"\b(?:stands?|goes|go|comes?)\b": 2,
    r"\bnothing\b": 3,
    r"\bis no\b": 3,
    r"\b[Ww]here\b": 4,
}


def texts() -> str:
    """All docstrings and comments of the product."""
    found = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*")):
            if path.name in GENERATED:
                continue
            if path.suffix == ".py":
                found += of_python(path.read_text(encoding="utf-8"))
            elif path.suffix in (".c", ".h", ".inc"):
                found += of_c(path.read_text(encoding="utf-8"))
    return "\n".join(found)


def pages(patterns: tuple[str, ...]) -> str:
    """All pages of ``patterns``."""
    paths = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    return "\n\n".join(path.read_text(encoding="utf-8") for path in paths)


@pytest.fixture(scope="module")
def said():
    return {"code": texts(), "pages": pages(PAGES), "pages for users": pages(USERS)}


def test_docstrings_and_comments_are_found(said):
    source = '"""One."""\nx = "two"  # three\ndef f():\n    """Four."""\n'
    assert of_python(source) == ["One.", "Four.", "three"]
    assert of_c('/* five\n   six */ char *s = "seven";') == [" five\n   six "]
    assert words(said["code"]) > 30_000
    assert words(said["pages"]) > 8_000
    assert words(said["pages for users"]) > 20_000
    assert all(list(ROOT.glob(pattern)) for pattern in PAGES + USERS)


@pytest.mark.each
@pytest.mark.parametrize("idiom", IDIOMS)
def test_idioms_are_rare(idiom, said):
    pattern, most = IDIOMS[idiom]
    for kind, text in said.items():
        found = [text[max(0, m.start() - 30) : m.end() + 30] for m in re.finditer(pattern, text, re.MULTILINE)]
        assert len(found) * 10_000 / words(text) <= most, (kind, found)


def hand_written() -> str:
    """All pages that no script makes, without code."""
    paths = {path for pattern in HAND for path in ROOT.glob(pattern)} - {ROOT / name for name in MADE}
    return "\n\n".join(path.read_text(encoding="utf-8") for path in sorted(paths))


def test_hand_written_pages_are_few_words():
    count = sum(any(map(str.isalnum, word)) for word in hand_written().split())
    assert 20_000 < count <= 45_000


@pytest.mark.each
@pytest.mark.parametrize("pattern", NOUNS)
def test_nouns_are_named(pattern, said):
    for written in (hand_written(), said["code"]):
        text = re.sub(r"^```.*?^```|`[^`\n]*`|\]\([^)]*\)", "", written, flags=re.S | re.M)
        found = [text[max(0, m.start() - 40) : m.end() + 40] for m in re.finditer(pattern, text)]
        assert len(found) * 10_000 / words(text) <= NOUNS[pattern], found
