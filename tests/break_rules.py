"""Break rules of the product at random, one at a time, and count how many the tests notice.

    python tests/break_rules.py --seed 0 --count 20 --only kernels/c

A rule is a condition, or a comparison, an "and" or "or" or a number in a condition, result or assigned value of Python
or C; of Cython in a condition. It is broken in a copy of the checkout; one build has all drawn rules of C, and
FF_BROKEN is the number of the broken one. *red*: the tests of its room that import the module fail, slow ones included;
of C, a quick case of tests/kernels. *other*: quick tests of the same folder fail; of C, of the rooms above. *GREEN*:
none. Such a rule may change nothing, such as ``<=`` for ``<`` between floats: read it, then sharpen a test or leave it.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import click
from test_mirror import MODULES, folder_of, pick_tests

from support.places import ROOT, TESTS
from support.quick import COMPILED

SIGN = re.compile(
    r"(?<=\s)(?:[<>]=?|[=!]=|&&|\|\||and|or|is not|is|not in)(?=\s)|\b(?:True|False)\b"
    r"|(?<![\w.])(?<!e-)\d+(?:[.]\d+)?(?![\w.])"
)
OTHER = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&", "and": "or",
         "or": "and", "is": "is not", "is not": "is", "not in": "in", "True": "False", "False": "True"}  # fmt: skip
ABOVE = ("model", "search", "backends", "test_runtime.py")  # tests that call the kernels through the product
BROKEN = """static int ff_broken;
char *getenv(const char *);
int atoi(const char *);
__attribute__((constructor)) static void ff_read_broken(void) { ff_broken = atoi(getenv("FF_BROKEN") ?: "0"); }
"""  # before each file of C


class Rule(NamedTuple):
    """Bytes ``start`` to ``end`` of a file, what to write for them, and what the reader sees."""

    file: str
    start: int
    end: int
    broken: str
    said: str


class Grammar(NamedTuple):
    """Where expressions of a language begin and stop, and a switch to the one that is broken by rule number ``n``."""

    blank: re.Pattern[str]  # no code: comments, strings, C's directives
    begin: re.Pattern[str]
    stops: str
    negate: str
    switch: str


C = Grammar(
    re.compile(r'/\*.*?\*/|"(?:\\.|[^"\n])*"|\'(?:\\.|[^\'\n])*\'|^ *#(?:[^\n]*\\\n)*[^\n]*', re.S | re.M),
    re.compile(r"\b(?:if|while) \(|\bfor \([^;]*;|\breturn |^ {4,}(?!static|\.|[A-Z_0-9]+ =)[^\n;(){}]* = ", re.M),
    ",;)", "!({})", "(ff_broken == {n} ? ({broken}) : ({whole}))",
)  # fmt: skip
PYTHON = Grammar(
    re.compile(r'""".*?"""|"(?:\\.|[^"\n])*"|\'(?:\\.|[^\'\n])*\'|#[^\n]*', re.S),
    re.compile(r"^ +(?:if|elif|while|return|yield) |^ {4,}[^\n(){}]* = ", re.M),
    "\n", "not ({})", "{broken}",
)  # fmt: skip
CYTHON = PYTHON._replace(
    begin=re.compile(r"^ +(?:if|elif|while) ", re.M),
    switch="(ff_broken == {n} and ({broken}) or ff_broken != {n} and ({whole}))",
)
GRAMMARS = {".py": PYTHON, ".pxi": CYTHON, ".pyx": CYTHON}


def find_rules(file: str, text: str) -> Iterator[Rule]:
    grammar = GRAMMARS.get(Path(file).suffix, C)
    code = grammar.blank.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for begun in grammar.begin.finditer(code):
        start = end = begun.end()
        depth = 0
        while depth > 0 or code[end] not in grammar.stops:
            depth += (code[end] in "([{") - (code[end] in ")]}")
            end += 1
        condition = re.search(r"\b(?:if|elif|while)\b", begun[0])
        end = start + len(code[start:end].rstrip()) - (condition is not None and grammar is not C)
        whole = text[start:end]
        if re.search(r"[{}]|\n#", whole) if grammar is C else condition and code[end] != ":":
            continue
        if condition:
            yield Rule(file, start, end, grammar.negate.format(whole), f"{whole} -> the contrary")
        for sign in SIGN.finditer(code, start, end):
            if sign[0] in OTHER or "_mm" not in whole:  # intrinsics limit their constants
                before, other, after = (
                    text[start : sign.start()],
                    OTHER.get(sign[0], f"({sign[0]} + 1)"),
                    text[sign.end() : end],
                )
                yield Rule(file, start, end, before + other + after, f"{before}[{sign[0]} -> {other}]{after}")


def break_rule(text: str, rule: Rule, n: int = 0) -> str:
    switch = GRAMMARS.get(Path(rule.file).suffix, C).switch
    broken = switch.format(n=n, broken=rule.broken, whole=text[rule.start : rule.end])
    return text[: rule.start] + broken + text[rule.end :]


def build(checkout: Path, texts: dict[str, str], numbers: dict[int, Rule]) -> None:
    """Compile the rules of C behind switches: FF_BROKEN is the number of the broken rule, 0 for none."""
    binding = (checkout / "kernels/_cpu.pyx").read_text(encoding="latin-1")
    binding = binding.replace("\ncdef extern", "\ncdef extern from *:\n    int ff_broken\n\ncdef extern", 1)
    switched = texts | {"kernels/broken.h": BROKEN, "kernels/_cpu.pyx": binding}
    for n, rule in sorted(numbers.items(), key=lambda pair: -pair[1].start):
        switched[rule.file] = break_rule(switched[rule.file], rule, n)
    for file, text in switched.items():
        (checkout / file).write_text(text, encoding="latin-1")
    own = {"FASTFLOW_REQUIRE_EXT": "1", "CFLAGS": f"-w -include {checkout}/kernels/broken.h"}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=checkout, env=os.environ | own, check=True)
    if fails(checkout, ["kernels"]):
        raise click.ClickException("tests fail with no rule broken")


def copy_checkout(folder: str) -> Path:
    """Copy the checkout into ``folder``; the other rooms are folders of fastflow in the copy."""
    copy = Path(shutil.copytree(ROOT, f"{folder}/copy", ignore=shutil.ignore_patterns(".*", "build", "__pycache__")))
    for room in ("kernels", "train", "bench"):
        (copy / "fastflow" / room).symlink_to(copy / room)
    return copy


def fails(checkout: Path, words: list[str], number: int = 0) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "--cases", "0", *words]
    own = os.environ | {"PYTHONPATH": str(checkout), "FF_BROKEN": str(number)}
    try:
        ran = subprocess.run(command, cwd=checkout / "tests", env=own, capture_output=True, timeout=900, check=False)
    except subprocess.TimeoutExpired:
        return True
    return ran.returncode != 0


def judge(checkout: Path, rule: Rule, number: int, text: str) -> str:
    """Say which tests fail without ``rule``: its own (red), others of the folder, or none (GREEN)."""
    own, others, path = ["kernels"], [*ABOVE, "--cases", "2"], checkout / rule.file
    if path.suffix == ".py":
        own = [*pick_tests(rule.file), "-m", "not whole and not compile"]
        others = [file.relative_to(TESTS).as_posix() for file in sorted(folder_of(rule.file).glob("test_*.py"))]
        path.write_text(break_rule(text, rule), encoding="latin-1")
    word = "red" if fails(checkout, own, number) else "other" if fails(checkout, others, number) else "GREEN"
    if path.suffix == ".py":
        path.write_text(text, encoding="latin-1")
    return word


@click.command()
@click.option("--seed", default=0, show_default=True)
@click.option("--count", default=20, show_default=True)
@click.option("--only", default="", help="Break rules of files whose path begins so.")
def main(seed: int, count: int, only: str) -> None:
    compiled = [path.relative_to(ROOT).as_posix() for end in COMPILED for path in ROOT.glob(f"kernels/c/**/*{end}")]
    files = [file for file in (*MODULES, *sorted(compiled)) if file.startswith(only)]
    files = [file for file in files if not re.search("research/|neon|/amx[.]c", file)]  # others' processors
    with TemporaryDirectory() as folder:
        checkout = copy_checkout(folder)
        texts = {file: (checkout / file).read_text(encoding="latin-1") for file in files}
        found = [rule for file in files for rule in find_rules(file, texts[file])]
        drawn, words = random.Random(seed).sample(found, min(count, len(found))), []
        chosen = {(rule.file, rule.start): rule for rule in drawn}.values()  # one of an expression
        numbers = {n: rule for n, rule in enumerate(chosen, 1) if rule.file.endswith(COMPILED)}
        if numbers:
            build(checkout, texts, numbers)
        for number, rule in enumerate(chosen, 1):
            words.append(judge(checkout, rule, number, texts[rule.file]))
            line = texts[rule.file].count("\n", 0, rule.start) + 1
            click.echo(f"{words[-1]:5} {rule.file}:{line}: {' '.join(rule.said.split())}")
    counts = ", ".join(f"{words.count(word)} {word}" for word in ("red", "other", "GREEN"))
    click.echo(f"{counts}, of {len(found):,} rules")


if __name__ == "__main__":
    main()
