"""Break rules that two commits share, and see which of them the quick tests of each commit notice.

    python tests/compare_power.py draw BEFORE AFTER --seed S --count 60 -o rules.json
    python tests/compare_power.py run rules.json CHECKOUT [--cases N] -o verdicts.json

BEFORE, AFTER and CHECKOUT are checkouts with compiled kernels. Only tests that execute a rule can notice it, so ``run``
runs only these: CHECKOUT/build/power/.coverage says which test executes which line. ``pytest --cases 0 --cov
--cov-context=test`` writes it, with coverage's ``patch = subprocess``.
"""

import ast
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
from break_rules import break_rule

PLUGIN = """
import os, pytest
IDS = set(open(os.environ["ONLY"]).read().splitlines())
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if item.nodeid in IDS]
"""
CONTEXT = re.compile(r"(?:main\|)?(tests/.*?)(?:\|(?:run|setup|teardown)| \((?:call|setup|teardown)\).*)$")


def describe(statement: ast.stmt | None) -> str:
    """Return the code of a statement without its block."""
    match statement:
        case None | ast.Try() | ast.ClassDef() | ast.Match():
            return ""
        case ast.If() | ast.While():
            return ast.unparse(statement.test)
        case ast.For() | ast.AsyncFor():
            return f"{ast.unparse(statement.target)} in {ast.unparse(statement.iter)}"
        case ast.With() | ast.AsyncWith():
            return ", ".join(map(ast.unparse, statement.items))
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return statement.name + ast.unparse(statement.args)
    return ast.unparse(statement)


def find_rules(tree: ast.AST, inside: bool = False, around: ast.stmt | None = None) -> Iterator[tuple]:
    """Yield (expression, broken, statement) of every rule, as break_rules.find_rules does."""
    for name, value in ast.iter_fields(tree):
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, ast.JoinedStr) or name in ("annotation", "returns"):
                continue
            own = node if isinstance(node, ast.stmt) else around
            if inside and isinstance(tree, ast.If | ast.IfExp | ast.While) and name == "test":
                yield node, ast.UnaryOp(ast.Not(), node), tree if isinstance(tree, ast.stmt) else own
            if inside and isinstance(node, ast.expr) and (changed := break_rule(node)):
                yield node, changed, own
            yield from find_rules(node, inside or isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef), own)


def list_rules(root: Path) -> list[dict]:
    found = []
    rooms = ("fastflow", "kernels", "train", "bench")
    for path in (file for room in rooms for file in sorted((root / room).rglob("*.py"))):
        name, counts = path.relative_to(root).as_posix(), defaultdict(int)
        if path.name == "__init__.py" or "/research/" in name:
            continue
        for node, by, statement in find_rules(ast.parse(path.read_text(encoding="utf-8"))):
            words = [describe(statement), ast.unparse(node), ast.unparse(by)]
            counts[tuple(words)] += 1
            place = [node.lineno, node.col_offset, node.end_lineno, node.end_col_offset]
            rule = {"path": name, "rule": [*words, counts[tuple(words)]], "place": place}
            found.append(rule | {"start": statement.lineno if statement else node.lineno})
    return found


def find_tests(root: Path, rule: dict) -> list[str]:
    """Return the tests that execute a line of the rule's statement."""
    import coverage

    data = coverage.CoverageData(str(root / "build/power/.coverage"))
    data.read()
    lines = data.contexts_by_lineno(str(root / rule["path"]))
    seen = (context for line in range(rule["start"], rule["place"][2] + 1) for context in lines.get(line, ()))
    return sorted({found[1] for context in seen if (found := CONTEXT.match(context))})


def run_tests(root: Path, ids: list[str], cases: int | None) -> str:
    """Return the first failure of the tests ``ids``; empty if all pass."""
    folder = root / "build/power"
    (folder / "only.py").write_text(PLUGIN, encoding="utf-8")
    (folder / "ids").write_text("\n".join(ids), encoding="utf-8")
    options = ["-p", "only", "-x", "-q", "-n", "0", *([] if cases is None else ["--cases", str(cases)])]
    command = [sys.executable, "-m", "pytest", *options, *sorted({test.partition("::")[0] for test in ids})]
    own = os.environ | {"ONLY": str(folder / "ids"), "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=root, env=own, capture_output=True, text=True, check=False)
    failures = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "" if done.returncode in (0, 5) else (failures or ["no test ran to its end"])[0]


def judge(root: Path, rule: dict, cases: int | None) -> dict:
    path, ids, start = root / rule["path"], find_tests(root, rule), time.monotonic()
    source, (first, left, last, right) = path.read_bytes(), rule["place"]
    lines = source.splitlines(keepends=True)
    begin, end = sum(map(len, lines[: first - 1])) + left, sum(map(len, lines[: last - 1])) + right
    path.write_bytes(source[:begin] + f"({rule['rule'][2]})".encode() + source[end:])
    try:
        few = random.Random(1).sample(ids, 60) if len(ids) > 150 else []
        failure = (few and run_tests(root, few, cases)) or (ids and run_tests(root, ids, cases)) or ""
    finally:
        path.write_bytes(source)
    place = f"{rule['path']}:{first}: {rule['rule'][1]} -> {rule['rule'][2]}"
    return {"rule": place, "tests": len(ids), "failure": failure, "seconds": round(time.monotonic() - start)}


@click.group()
def main() -> None: ...


@main.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option("--seed", required=True)
@click.option("--count", default=60)
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def draw(before: Path, after: Path, seed: str, count: int, output: Path) -> None:
    """Draw rules of BEFORE that AFTER has too, in a statement that is the same."""
    known, every = defaultdict(list), list_rules(before)
    for rule in list_rules(after):
        known[tuple(rule["rule"])].append(rule)
    random.Random(seed).shuffle(every)
    pairs, passed_over = [], 0
    for rule in every:
        same = known[tuple(rule["rule"])]
        if len(same) > 1:
            same = [other for other in same if Path(other["path"]).name == Path(rule["path"]).name]
        if len(same) == 1 and len(rule["rule"][0]) >= 8 and len(pairs) < count:
            pairs.append({str(before): rule, str(after): same[0]})
        elif len(pairs) < count:
            passed_over += 1
    output.write_text(json.dumps(pairs, indent=1), encoding="utf-8")
    click.echo(f"{len(pairs)} of {len(every):,}; {passed_over} are not in {after}, or more than once")


@main.command()
@click.argument("rules", type=click.Path(path_type=Path))
@click.argument("checkout", type=click.Path(path_type=Path))
@click.option("--cases", type=int)
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def run(rules: Path, checkout: Path, cases: int | None, output: Path) -> None:
    """Break each rule in CHECKOUT and run the tests that execute it."""
    found = []
    for pair in json.loads(rules.read_text(encoding="utf-8")):
        found.append(judge(checkout, pair[str(checkout)], cases))
        click.echo(found[-1])
        output.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
