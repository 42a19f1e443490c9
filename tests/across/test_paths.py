"""Every file and folder of the checkout that a comment, a docstring or a page names is there."""

import re

import pytest

from support.places import ROOT
from support.prose import files, prose_of

CODE = ("bench", "fastflow", "kernels", "tests", "train")
SOURCES = "py|pyx|pxi|c|h|inc|sh|md|toml|yml|js|html"
ROOMS = "bench|docs|examples|fastflow|kernels|release|tests|train"
START, END = r"(?<![\w./~<>{}*$-])(?:\.\./)*", r"(?![\w/*({<])"
PATHS = re.compile(rf"{START}(?:[\w.-]+(?:/[\w.-]+)*\.(?:{SOURCES})|(?:{ROOMS})/[\w./-]*\w)(?:/|\b){END}")
SYMBOLS = re.compile(rf"{START}([\w.-]+(?:/[\w.-]+)*\.(?:py|c|h)): (\w+)`")
PLACEHOLDER = re.compile(r"[A-Z]{3,}")  # vector_NAME.h
EARLIER = re.compile(r"commit [0-9a-f]{7}|last in `[0-9a-f]{7}`")  # that has the files which a passage names
OTHERS = {  # names that are no files of the checkout -> whose they are
    "glow_1x1.py": "BERT-flow's authors",
    "glow_ops_1x1.py": "BERT-flow's authors",
    "optimization_bert_flow.py": "BERT-flow's authors",
    "report.html": "what a command writes",
    "sitecustomize.py": "Python's",
    "Python.h": "Python's",
    "pyconfig.h": "Python's",
    "hwcap.h": "Linux's",
    "bench/results/gpu": "what bench/gpu.sh writes",
}


def suffixes(names):
    """All that may stand for a path of ``names``: the ends of the path and of its folders."""
    parts = [name.split("/") for name in names]
    return {"/".join(part[i:j]) for part in parts for i in range(len(part)) for j in range(i + 1, len(part) + 1)}


NAMES = files()
KNOWN = suffixes(NAMES) | {name.rpartition(".")[0] for name in NAMES}  # a study is asked for its page without ".md"


def unknown(prose, known):
    """The paths in ``prose`` that are not ``known``; a paragraph that names an earlier commit names files of it."""
    kept = [passage for passage in re.split(r"\n\s*\n", prose) if not EARLIER.search(passage)]
    found = (path.replace("../", "").strip("/") for passage in kept for path in PATHS.findall(passage))
    return sorted({path for path in found if path not in known | OTHERS.keys() and not PLACEHOLDER.search(path)})


def lost(name):
    """The unknown paths in the prose of the file ``name``."""
    return unknown(prose_of(name), KNOWN)


def test_a_path_that_is_not_there_is_found():
    known = suffixes(["kernels/flow/cpu.py", "tests/corpus/a.txt"])
    prose = "See kernels/flow/cpu.py, `flow/cpu.py` and tests/corpus/; NAME.py.\n\nOf commit 0123abc: gone.py."
    assert unknown(prose, known) == []
    assert unknown("flow/gpu.py and tests/corpora/ and cpu.pyx", known) == ["cpu.pyx", "flow/gpu.py", "tests/corpora"]


@pytest.mark.parametrize(
    "room",
    [pytest.param(room, marks=pytest.mark.slow) if room in CODE else room
     for room in sorted({name.partition("/")[0] for name in NAMES})],
)  # fmt: skip
def test_every_path_that_is_named_is_there(room):
    found = {name: lost(name) for name in NAMES if name.partition("/")[0] == room}
    assert {name: paths for name, paths in found.items() if paths} == {}


def test_every_symbol_that_a_page_names_is_in_its_file():
    pages = "\n".join(prose_of(name) for name in NAMES if name.endswith(".md"))
    found = set(SYMBOLS.findall(pages))
    assert len(found) > 9
    for path, symbol in found:
        of_it = [name for name in NAMES if f"/{name}".endswith(f"/{path}")]
        assert any(re.search(rf"\b{symbol}\b", (ROOT / name).read_text(encoding="utf-8")) for name in of_it), path


@pytest.mark.parametrize("room", ["fastflow", "kernels", "train", "bench"])
def test_the_map_of_contributing_has_every_folder(room):
    chart = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## The map")[2].split("```")[1]
    section = re.search(rf"^{room}/.*\n((?: +.*\n)*)", chart, re.M)[1]
    heads = re.findall(r"^  (\w+/(?:, \w+/)*)", section, re.M)
    listed = {name.strip("/") for head in heads for name in head.split(", ")}
    assert listed == {name.split("/")[1] for name in NAMES if re.match(rf"{room}/\w+/", name)}
