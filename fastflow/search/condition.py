"""An SQL condition from a user."""

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


def check_condition(where: str, columns: Sequence[str]) -> str:
    """Put ``where`` in parentheses; raises a UsageError unless it is one condition on ``columns``.

    SQLite takes an unknown name in double quotes as a text.
    """
    depth, known = 0, {fold_case(name) for name in columns}
    for token in TOKEN.finditer(where):
        depth += {"(": 1, ")": -1}.get(token["round"] or "", 0)
        if depth < 0:
            break
        name = token["name"]
        if name is not None and fold_case(name.replace('""', '"')) not in known:
            raise refuse(where, f"no column is called {name!r} (a text needs single quotes)", columns)
    if depth or not where.strip():
        raise refuse(where, "its parentheses do not match" if depth else "it is empty", columns)
    return f"(\n{where}\n)"  # the line end closes a comment


def refuse(where: str, why: object, columns: Sequence[str]) -> UsageError:
    """Make the error for a condition that SQLite cannot run."""
    names = ", ".join(columns[:20]) + ", …" * (len(columns) > 20)
    why = " ".join(str(why).split())  # SQLite quotes our line end
    if why.startswith("unrecognized token: ") and why[20:22] in ("\"'", '""', '"`', '"['):  # SQLite quotes our ending
        why = "a quote is not closed"
    if why.startswith("no such column: "):
        why += " (a text needs single quotes)"
    if why == 'near ")": syntax error' and ")" not in where:  # the parenthesis is ours
        why = "it ends too soon"
    return UsageError(f"the condition {short(where)} cannot be used: {why}; the columns are {names}")
