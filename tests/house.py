"""The size of the house, its limits and its goals: ``python tests/house.py``.

``across/test_house.py`` holds the limits; a commit that raises one says why. ``across/test_startup.py`` holds the
modules that a command enters.
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fastflow import Runtime

from support import prose
from support.arrows import GRAPH, UNITS, circle, includes, links
from support.places import ROOT, USERS
from support.processes import run_limited

CODE = {".py", ".pyx", ".pxi", ".c", ".h", ".inc", ".js", ".css", ".html", ".sh"}
MADE = {"kernels/_cpu.c", *(f"kernels/c/tokens/{it}.h" for it in ("marks", "unicode"))}  # by Cython, native/unicode.py
PRODUCT = ("fastflow", "kernels", "train", "bench")
GENERATED = {
    "docs/api.md",
    "docs/commands.md",
    "bench/results/search.md",
}
PARTICIPLE = re.compile(r"\w+ed|built|found|given|held|kept|left|lost|made|said|seen|sent|shown|told|written")
VERBS = {"embed", "feed", "need", "seed", "speed"}  # and nouns
CALLED = {
    "fastflow/reranker.py: rank",
    "fastflow/runtime.py: encode",
    "fastflow/runtime.py: stream",
    "train/__init__.py: distill",
    "train/__init__.py: fit",
}  # by users
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
ENTERED = """
import sys
from fastflow.cli import main
try:
    main(sys.argv[1:])
finally:
    print(*sorted(name for name in sys.modules if name.partition(".")[0] == "fastflow"), file=sys.stderr)
"""


class Count(NamedTuple):
    """A number of the house: its value, the limit that a test holds, and the goal."""

    value: float
    most: float
    goal: float
    unit: str = "lines"


def code(*rooms: str) -> list[Path]:
    """The files of code of these folders or files, without those that a program makes."""
    found = [path for room in rooms for path in (ROOT / room, *(ROOT / room).rglob("*"))]
    return sorted(path for path in found if path.suffix in CODE and path.relative_to(ROOT).as_posix() not in MADE)


def lines(*rooms: str) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in code(*rooms))


def functions(*rooms: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function of Python, with its place."""
    for path in (path for path in code(*rooms) if path.suffix == ".py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(ROOT).as_posix()}: {node.name}", node


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body, without the docstring, which is a command's --help, and the definitions in it."""
    body = node.body[ast.get_docstring(node) is not None :]
    return sum((each.end_lineno or 0) - each.lineno + 1 for each in body if not isinstance(each, DEFINITIONS))


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef, named: bool = False) -> int:
    """How many arguments a function takes by their place, or ``named`` too; 0 if click or Triton passes them."""
    if any(word in ast.unparse(each) for each in node.decorator_list for word in ("command", "jit")):
        return 0
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *(node.args.kwonlyargs * named))]
    return len([name for name in names if name not in ("self", "cls")])


def entered(*arguments: object) -> list[str]:
    """The modules of fastflow and its kernels that a command enters, with the empty __init__.py of each folder."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "in.txt").write_text("the dog\n", encoding="utf-8")
        command, own = [sys.executable, "-c", ENTERED, *map(str, arguments)], USERS | {"XDG_CACHE_HOME": folder}
        done = run_limited(command, cwd=folder, env=own, seconds=120)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()[-1].split()


def count_encode_files() -> int:
    """The most files of ours whose code runs in a call of ``Runtime.encode`` with every option, once warm."""
    texts, seen = ["A cat sat on the mat."] * 3, 0
    options = {"normalize_embeddings": True, "truncate_dim": 64, "prompt": "so ", "precision": "int8", "batch_size": 2}
    for model in ("untuned", "static"):
        runtime = Runtime(model, backend="cpu")
        for _ in range(2):  # 20,000 characters of texts are looked at
            runtime.encode([texts[0]] * 1000, truncate_dim=64, precision="int8")
        files: set[str] = set()
        sys.setprofile(lambda frame, event, given, files=files: files.add(frame.f_code.co_filename))
        try:
            runtime.encode(texts, **options)
        finally:
            sys.setprofile(None)
        seen = max(seen, sum(Path(file).is_relative_to(ROOT) and file != __file__ for file in files))
    return seen


def circles() -> int:
    return sum(map(bool, (circle(GRAPH), circle(includes()), circle(links(UNITS)))))


def list_pages() -> list[Path]:
    """The pages that people write."""
    return [ROOT / name for name in prose.files() if name.endswith(".md") and name not in GENERATED]


def participles() -> list[str]:
    """The functions whose name begins with a past participle; properties and methods of other libraries aside."""
    found = []
    for place, node in functions(*PRODUCT):
        nouns = {"property", "late", "cached_property", "overload", "setter"}
        if not any(ast.unparse(each).rpartition(".")[2] in nouns for each in node.decorator_list):
            word = node.name.strip("_").partition("_")[0]
            if PARTICIPLE.fullmatch(word) and word not in VERBS:
                found.append(place)
    return found


def counts() -> dict[str, Count]:
    """Every count but that of the modules entered, which takes a process."""
    product = [node for _, node in functions(*PRODUCT)]
    own = [path for path in code(*PRODUCT) if path.suffix != ".sh"]
    python = [path for path in own if path.suffix == ".py"]
    long = [path for path in own if lines(str(path.relative_to(ROOT))) > 400]
    classes = Counter(name for path in python for name in re.findall(r"(?m)^ *class (\w+)", path.read_text("utf-8")))
    comments = sum(prose.words(prose.prose_of(path.relative_to(ROOT).as_posix())) for path in own)
    pages = sum(len(path.read_text(encoding="utf-8").split()) for path in list_pages())
    many = {place for place, node in functions("fastflow", "train") if parameters(node, named=True) > 8}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    wide = [line for line in readme.splitlines() if len(line) > 160 and not line.startswith("|")]
    marks = sum(path.read_text(encoding="utf-8").count("# fmt: ") for path in own)
    results = [path for path in (ROOT / "bench" / "results").rglob("*") if path.is_file()]
    return {
        "product": Count(lines(*PRODUCT), 51_620, 45_400),
        "product without kernels": Count(lines("fastflow", "train", "bench"), 38_570, 32_500),
        "product in MB": Count(sum(path.stat().st_size for path in own) / 1e6, 2.293, 2.0, "MB"),
        "bench": Count(lines("bench"), 5_720, 5_000),
        "tests": Count(lines("tests"), 48_436, 42_000),
        "docstrings and comments": Count(comments, 54_020, 49_000, "words"),
        "markdown": Count(pages, 49_900, 45_000, "words"),
        "pages in docs": Count(len(list((ROOT / "docs").glob("*.md"))), 23, 23, "pages"),
        "README": Count(len(readme.split()), 900, 900, "words"),
        "lines of README over 160 columns": Count(len(wide), 0, 0),
        "marks for the formatter": Count(marks, 165, 140, "marks"),
        "files over 400 lines": Count(len(long), 0, 0, "files"),
        "Python files of the product": Count(len(python), 255, 255, "files"),
        "names of several classes": Count(sum(it > 1 for it in classes.values()), 0, 0, "names"),
        "participles in 1,000 names": Count(1000 * len(participles()) / len(product), 5, 5, ""),
        "circles of files": Count(circles(), 0, 0, "of 3 graphs"),
        "files entered by encode": Count(count_encode_files(), 10, 10, "files"),
        "bench/results": Count(sum(path.stat().st_size for path in results) / 2**20, 3, 3, "MiB"),
        "longest function": Count(max(map(length, product)), 60, 60),
        "most arguments": Count(max(map(parameters, product)), 11, 11, ""),
        "of over 8 arguments, but for users": Count(len(many ^ CALLED), 0, 0, "functions"),
    }


def main() -> None:
    modules = len(entered("embed", "in.txt", "-m", "untuned"))
    found = counts() | {"modules entered by embed": Count(modules, 60, 60, "modules")}
    for name, count in found.items():
        verdict = "fit" if count.value <= count.goal else "unfit"
        print(f"{verdict:5} {name:36} {count.value:9,.6g} {count.unit:12} held {count.most:7,g}  goal {count.goal:7,g}")
    for what, measure in (("longest", length), ("most arguments", parameters)):
        worst = sorted(((measure(node), place) for place, node in functions(*PRODUCT)), reverse=True)[:5]
        print(f"\n{what}:", *(f"  {count:3} {place}" for count, place in worst), sep="\n")
    print("\nparticiples:", *(f"  {place}" for place in participles()[:20]), sep="\n")


if __name__ == "__main__":
    main()
