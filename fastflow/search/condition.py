"""An SQL condition that a user gives: checked to be one condition."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fastflow.errors import UsageError
from fastflow.files.write.database_schema import fold_case
from fastflow.values import short

TOKEN = re.compile(
    r"""'(?:[^']|'')*' | "(?P<name>(?:[^"]|"")*)" | `[^`]*` | \[[^\]]*\] | --[^\n]* | /\*.*?\*/
    | (?P<round>[()]) | .""",
    re.S | re.X,
)


def checked(where: str, columns: Sequence[str]) -> str:
    """``where`` in parentheses; raises a UsageError unless it is one condition on ``columns``.

    SQLite takes a name in double quotes that no column has for a text, and would find no row or all.
    """
    depth, known = 0, {fold_case(name) for name in columns}
    for token in TOKEN.finditer(where):
        depth += {"(": 1, ")": -1}.get(token["round"] or "", 0)
        if depth < 0:
            break
        name = token["name"]
        if name is not None and fold_case(name.replace('""', '"')) not in known:
            raise refused(where, f"no column is called {name!r} (a text needs single quotes)", columns)
    if depth or not where.strip():
        raise refused(where, "its parentheses do not match" if depth else "it is empty", columns)
    return f"(\n{where}\n)"  # a comment at its end is over before the parenthesis


def refused(where: str, why: object, columns: Sequence[str]) -> UsageError:
    """The sentence for a condition that SQLite cannot run."""
    names = ", ".join(columns[:20]) + ", …" * (len(columns) > 20)
    why = " ".join(str(why).split())  # SQLite quotes the line end that we put after it
    if why.startswith("unrecognized token: ") and why[20:22] in (
        "\"'",
        '""',
        '"`',
        '"[',
    ):  # it quotes what we put after it
        why = "a quote is not closed"
    if why.startswith("no such column: "):
        why += " (a text needs single quotes)"
    if why == 'near ")": syntax error' and ")" not in where:  # the parenthesis is ours
        why = "it ends too soon"
    return UsageError(f"the condition {short(where)} cannot be used: {why}; the columns are {names}")
