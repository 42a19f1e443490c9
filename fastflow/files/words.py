"""The tables of a .db beside its texts: FTS5 for word search, ranked by BM25, and ``duplicates``.

SQLite keeps the table of words in step by triggers. Its tokenizer is chosen once, by the language of the first texts.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from fastflow.errors import UsageError

DUPLICATES = "duplicates"  # the table of fastflow duplicates
TABLE, WORDS = "texts", "texts_words"  # the names of the parts of WORDS begin with it
SAMPLE = 1000  # texts that decide the language
TOKENIZERS = {"porter": "porter unicode61", "words": "unicode61", "trigram": "trigram"}  # kind -> FTS5's tokenizer
SPACELESS = {"Chinese", "Japanese", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan"}  # languages without spaces
MADE = {
    f"CREATE VIRTUAL TABLE {WORDS} USING fts5(text, content='{TABLE}', content_rowid='row', tokenize='{name}')": kind
    for kind, name in TOKENIZERS.items()
}
ADD = f"INSERT INTO {WORDS}(rowid, text) VALUES (new.row, new.text);"  # noqa: S608 (fixed names, as below)
TAKE = f"INSERT INTO {WORDS}({WORDS}, rowid, text) VALUES ('delete', old.row, old.text);"  # noqa: S608
TRIGGERS = [
    f"CREATE TRIGGER {WORDS}_{name} AFTER {event} ON {TABLE} BEGIN {change} END"
    for name, event, change in (
        ("insert", "INSERT", ADD),
        ("delete", "DELETE", TAKE),
        ("update", "UPDATE OF row, text", TAKE + ADD),
    )
]
COMMON = (  # English words that a query leaves out
    " a about an and any are as at be been but by can could did do does for from had has have he her his how i if in "
    "into is it its me my not of on or our she so than that the their them there they this to was we were what when "
    "where which who why will with would you your "
)
PIECE = 3  # characters of a trigram


def create_words(db: sqlite3.Connection) -> None:
    """Make the FTS5 table of all texts, and its triggers."""
    from fastflow.model.tokenizer.fragmentation import take_words
    from fastflow.model.tokenizer.languages import recognise

    texts = [text for (text,) in db.execute(f"SELECT text FROM {TABLE} ORDER BY row LIMIT {SAMPLE}")]  # noqa: S608
    found = recognise(take_words(texts), lambda name: True)
    name = None if found is None or found.part else found.name
    kind = "porter" if name == "English" else "trigram" if name in SPACELESS else "words"
    db.execute(next(sql for sql, each in MADE.items() if each == kind))
    db.execute(f"INSERT INTO {WORDS}({WORDS}) VALUES ('rebuild')")  # noqa: S608 (a fixed name)
    for sql in TRIGGERS:
        db.execute(sql)


def read_kind(db: sqlite3.Connection) -> str | None:
    """Return the kind of tokenizer of the words of ``db``; None without such a table of ours."""
    made = db.execute("SELECT sql FROM sqlite_master WHERE name = ?", (WORDS,)).fetchone()
    return None if made is None else MADE.get(made[0])


def trust_triggers(db: sqlite3.Connection) -> None:
    """Trust the schema if its words are ours: else triggers may not write to FTS5."""
    db.execute(f"PRAGMA trusted_schema = {'OFF' if read_kind(db) is None else 'ON'}")


def quote_query(text: str, kind: str) -> str:
    """Return a MATCH expression: each word a quoted phrase, joined by OR; "" if ``text`` has no word.

    English stop words are left out, unless all words are. Trigrams take the place of words in ``kind`` trigram.
    """
    words = text.encode("utf-8", "replace").decode().replace("\0", " ").split()
    if kind == "trigram":
        words = [word[at : at + PIECE] for word in words for at in range(max(1, len(word) - PIECE + 1))]
    elif kind == "porter":
        words = [word for word in words if f" {word.lower().strip('.,;:!?')} " not in COMMON] or words
    return " OR ".join('"' + word.replace('"', '""') + '"' for word in dict.fromkeys(words))


def find_words(
    db: sqlite3.Connection, query: str, k: int, allow: Callable[[int], bool] | None = None
) -> list[tuple[int, float]]:
    """Return the ``k`` best rows for a MATCH expression that ``allow`` takes, with their BM25; higher is better."""
    limit = f" LIMIT {k}" if allow is None else ""
    sql = f"SELECT rowid, -rank FROM {WORDS} WHERE {WORDS} MATCH ? ORDER BY rank, rowid{limit}"  # noqa: S608
    rows = db.execute(sql, (query,)) if query else ()
    return list(islice((row for row in rows if allow is None or allow(row[0])), k))


def create_duplicates(db: sqlite3.Connection, path: Path, columns: Sequence[str]) -> None:
    """Make the table ``duplicates`` anew; raises a UsageError if another program made it."""
    if (found := db.execute("SELECT sql FROM sqlite_master WHERE name = ?", [DUPLICATES]).fetchone()) is not None:
        if not is_duplicates(DUPLICATES, found[0]):
            raise UsageError(f"{path} has a table {DUPLICATES} of another program: choose another output with -o")
        db.execute(f"DROP TABLE {DUPLICATES}")
    db.execute(f"CREATE TABLE {DUPLICATES} ({', '.join(columns)})")


def is_duplicates(name: str, sql: str | None) -> bool:
    """Whether fastflow made the table ``name`` of duplicates."""
    return (
        name == DUPLICATES
        and re.fullmatch(rf"CREATE TABLE {DUPLICATES} \(row, .*cosine, exact\)", sql or "") is not None
    )
