"""Functions of nine or more arguments: only those that users call, each with a name for every one."""

import ast
from pathlib import Path

import pytest

from support.places import ROOT

MOST = 8
PUBLIC = {  # what a user calls, with an argument for each choice
    "fastflow/runtime.py": {"encode", "stream"},
    "train/__init__.py": {"fit"},
}


def long(source: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_command(node):
            continue
        a = node.args
        names = [each.arg for each in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
        if len([name for name in names if name not in ("self", "cls")]) > MOST:
            found.add(node.name)
    return found


def is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("command" in ast.unparse(each) for each in node.decorator_list)


def test_they_are_counted():
    assert long("def f(a, b, c, /, d, e, f, *, g, h, i): ...") == {"f"}
    assert long("class A:\n    def f(self, a, b, c, d, e, f, g, h): ...") == set()
    assert long("@click.command()\ndef f(a, b, c, d, e, f, g, h, i): ...") == set()


@pytest.mark.slow
def test_only_what_users_call_takes_more():
    found = {}
    for room in ("fastflow", "train"):
        for path in sorted(Path(ROOT / room).rglob("*.py")):
            if names := long(path.read_text(encoding="utf-8")):
                found[path.relative_to(ROOT).as_posix()] = names
    assert found == PUBLIC
