"""The prose of the checkout: docstrings, comments and pages."""

import ast
import io
import re
import subprocess
import tokenize

from support.places import ROOT


def of_python(source: str) -> list[str]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return found + [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]


def of_c(source: str) -> list[str]:
    return re.findall(r"/\*(.*?)\*/", source, re.S)


def of_script(source: str) -> list[str]:
    return re.findall(r"(?:^|\s)#(.*)", source)


KINDS = {  # a file's ending -> its prose
    **dict.fromkeys((".py",), of_python),
    **dict.fromkeys((".c", ".h", ".inc"), of_c),
    **dict.fromkeys((".pyx", ".pxi", ".sh", ".toml", ".yml", "justfile", ".ci/run", "MANIFEST.in"), of_script),
    **dict.fromkeys((".md",), lambda source: [source]),
}


def files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def prose_of(name: str) -> str:
    found = [read for ending, read in KINDS.items() if name.endswith(ending)]
    return "\n".join(found[0]((ROOT / name).read_text(encoding="utf-8"))) if found else ""


def words(text: str) -> int:
    """The number of words in ``text``."""
    return len(re.findall(r"[A-Za-z']+", text))
