"""The kept results: every file has a row in bench/results/README.md, and every command names a module that exists."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "bench" / "results"
PAGE = (RESULTS / "README.md").read_text(encoding="utf-8")
KEPT = sorted(path for path in RESULTS.iterdir() if path.name != "README.md")

SUPERSEDED = {  # pages kept as history -> the module that made them, which is no longer there
    "token-weights.md": "fastflow.bench.research.token_weights",
    "token-weights.json": "fastflow.bench.research.token_weights",
    **dict.fromkeys(
        ("layers.md", "layers.json", "layers-tuned.md", "layers-tuned.json"), "fastflow.bench.research.layers"
    ),
    "study.md": "fastflow.bench.research.study",
}


def listed():
    """The names of the table's first column; an ending alone, as in `.json`, belongs to every name before it."""
    names = set()
    for row in re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE):
        words = re.findall(r"`([^`]+)`", row)
        endings = [word for word in words if re.fullmatch(r"\.\w+", word)]
        whole = [word for word in words if word not in endings]
        names |= {*whole, *(name.rpartition(".")[0] + ending for name in whole for ending in endings)}
    return names


def test_every_file_is_in_the_table_and_the_table_names_no_other():
    inside = {name for name in listed() if "/" not in name}
    assert {path.name for path in KEPT} == inside
    outside = listed() - inside
    assert "../../docs/speed-quality.png" in outside
    assert all((RESULTS / name).is_file() for name in outside)


@pytest.mark.parametrize(
    "path", [RESULTS / "README.md", *(p for p in KEPT if p.suffix != ".png")], ids=lambda p: p.name
)
def test_the_commands_name_modules_that_exist(path):
    for module in set(re.findall(r"python -m (fastflow[\w.]*\w)", path.read_text(encoding="utf-8"))):
        assert find_spec(module) or SUPERSEDED.get(path.name) == module, f"{path.name} names {module}"


def test_history_is_named_as_such():
    """A page whose module is gone is listed as superseded; nothing else is, and no module that is still there."""
    for name, module in SUPERSEDED.items():
        assert find_spec(module) is None, f"{module} is back: take {name} off the list"
        assert module in (RESULTS / name).read_text(encoding="utf-8")
        (row,) = (
            line for line in PAGE.splitlines() if line.startswith("| ") and f"`{name.partition('.')[0]}.md`" in line
        )
        assert "superseded" in row
