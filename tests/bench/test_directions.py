"""The folders of the bench import one another in one direction: suites, then peers, then measure."""

import ast
from pathlib import Path

import pytest

import fastflow.bench

HERE = Path(fastflow.bench.__file__).parent
ALLOWED = {
    "measure": {"measure"},
    "peers": {"peers", "measure"},
    "report": {"report"},
    "suites": {"suites", "peers", "measure", "report"},
}
ABOVE = {"dry_gpu.py": {"cli"}}  # it runs the command as a whole


def imported(path):
    """The names below ``fastflow.bench`` that ``path`` imports from, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "fastflow.bench":
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fastflow.bench."):
            found.add(node.module.split(".")[2])
    return found


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_folder_imports_only_from_those_below_it(folder):
    files = sorted((HERE / folder).glob("*.py"))
    assert len(files) > 3
    climbing = {path.name: imported(path) - ALLOWED[folder] - ABOVE.get(path.name, set()) for path in files}
    assert {name: above for name, above in climbing.items() if above} == {}
