"""Break rules of the product at random, one at a time, and count how many the tests of that module notice.

    python tests/break_rules.py --seed 0 --count 20

A rule is a comparison, a condition, an "and" or "or", or a number in a function of Python. It is broken in a copy of
the checkout; the tests are those of its room that import the module, slow ones included, and after them the quick
ones of the same folder. A rule that nothing notices may change nothing, such as ``<=`` for ``<`` between floats: read
it, then sharpen a test or leave it.
"""

from __future__ import annotations

import ast
import copy
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from test_mirror import MODULES, folder_of, pick_tests

from support.places import ROOT

OTHER = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


def break_rule(node: ast.AST) -> ast.expr | None:
    """Return ``node`` with its rule changed; None if it has no rule."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return ast.Compare(node.left, [OTHER[type(node.ops[0])]()], node.comparators)
    if isinstance(node, ast.BoolOp):
        return ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return ast.Constant(not node.value if isinstance(node.value, bool) else node.value + 1)
    return None


def find_rules(tree: ast.AST, inside: bool = False) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield (expression, broken) of every rule in the bodies of functions, except f-strings and annotations."""
    for name, value in ast.iter_fields(tree):
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, ast.JoinedStr) or name in ("annotation", "returns"):
                continue
            if inside and isinstance(tree, ast.If | ast.IfExp | ast.While) and name == "test":
                yield node, ast.UnaryOp(ast.Not(), copy.deepcopy(node))
            if inside and isinstance(node, ast.expr) and (changed := break_rule(node)):
                yield node, changed
            yield from find_rules(node, inside or isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef))


def replace(source: str, node: ast.expr, by: ast.expr) -> str:
    lines = source.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: (node.end_lineno or 0) - 1])) + (node.end_col_offset or 0)
    whole = b"".join(lines)
    return (whole[:start] + f"({ast.unparse(by)})".encode() + whole[end:]).decode()


@contextmanager
def copy_checkout() -> Iterator[Path]:
    """Copy the checkout; the other rooms are folders of fastflow in the copy."""
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "build", "__pycache__"))
        for room in ("kernels", "train", "bench"):
            (copy / "fastflow" / room).symlink_to(copy / room)
        yield copy


def fails(checkout: Path, tests: list[str], *options: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "--cases", "0", *options, *(f"tests/{file}" for file in tests)]
    own = os.environ | {"PYTHONPATH": str(checkout)}
    try:
        ran = subprocess.run(command, cwd=checkout, env=own, capture_output=True, timeout=900, check=False)
    except subprocess.TimeoutExpired:
        return True
    return ran.returncode != 0


def judge(checkout: Path, module: str, changed: str) -> str:
    """Say which tests fail if ``module`` is ``changed``: its own (red), others of the folder, or none (GREEN)."""
    path, source, own = checkout / module, (checkout / module).read_text(encoding="utf-8"), pick_tests(module)
    folder = [file.relative_to(ROOT / "tests").as_posix() for file in sorted(folder_of(module).glob("test_*.py"))]
    path.write_text(changed, encoding="utf-8")
    try:
        if fails(checkout, own, "-m", "not whole and not compile"):
            return "red"
        return "other" if fails(checkout, folder) else "GREEN"
    finally:
        path.write_text(source, encoding="utf-8")


@click.command()
@click.option("--seed", default=0, show_default=True)
@click.option("--count", default=20, show_default=True)
@click.option("--only", default="", help="Break modules whose path begins so.")
def main(seed: int, count: int, only: str) -> None:
    modules = [name for name in MODULES if name.startswith(only) and "/research/" not in name]
    with copy_checkout() as checkout:
        texts = {name: (checkout / name).read_text(encoding="utf-8") for name in modules}
        found = [(name, *rule) for name in modules for rule in find_rules(ast.parse(texts[name]))]
        chosen, words = random.Random(seed).sample(found, min(count, len(found))), []
        for module, node, by in chosen:
            words.append(judge(checkout, module, replace(texts[module], node, by)))
            click.echo(f"{words[-1]:5} {module}:{node.lineno}: {ast.unparse(node)} -> {ast.unparse(by)}")
    counts = ", ".join(f"{words.count(word)} {word}" for word in ("red", "other", "GREEN"))
    click.echo(f"{counts}, of {len(found):,} rules")


if __name__ == "__main__":
    main()
