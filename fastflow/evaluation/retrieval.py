"""Rank documents for queries by cosine, and by BM25."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.evaluation.analyses import Measure, mean_of
from fastflow.evaluation.rows import check_fields, find_packed, read_rows
from fastflow.files.words import TABLE, create_words, find_words, quote_query, read_kind
from fastflow.transforms.vectors import shorten

CORPUS = "corpus.tsv"
HEADERS = {CORPUS: "id\ttitle\ttext", "queries.tsv": "id\ttext", "qrels.tsv": "query\tdoc\tgrade"}
FIRST, DEPTH = 10, 100  # ranks that count in nDCG, and in recall
COSINES = 1 << 22  # in a block: fewer, larger products are faster
NUMBER = re.compile(r"-?\d+(\.\d+)?")

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Retrieval:
    """Documents, queries, and each query's rows of ``relevant`` and of equal (``own``) documents."""

    name: str
    documents: list[str]
    queries: list[str]
    relevant: list[Rows]
    own: list[Rows]

    kind: ClassVar = "retrieval"

    @property
    def texts(self) -> list[str]:
        return [*self.documents, *self.queries]

    @property
    def size(self) -> dict[str, int]:
        return {"queries": len(self.queries), "documents": len(self.documents)}

    def measures(self, vectors: NDArray[Any]) -> dict[str, Measure]:
        x = shorten(vectors, True, None)
        documents, queries = x[: len(self.documents)], x[len(self.documents) :]
        return self._rank(row for block in compute_cosines(queries, documents) for row in block)

    def bm25(self) -> dict[str, Measure]:
        """Rank by the words, as ``fastflow search --by words`` does."""
        with closing(sqlite3.connect(":memory:")) as db:
            db.execute(f"CREATE TABLE {TABLE} (row INTEGER PRIMARY KEY, text TEXT NOT NULL)")
            db.executemany(f"INSERT INTO {TABLE} VALUES (?, ?)", enumerate(self.documents))  # noqa: S608 (a fixed name)
            create_words(db)
            kind = str(read_kind(db))
            scores = np.full((len(self.queries), len(self.documents)), -np.inf)
            for row, query, own in zip(scores, self.queries, self.own, strict=True):
                for place, score in find_words(db, quote_query(query, kind), DEPTH + len(own)):
                    row[place] = score
        return self._rank(scores)

    def _rank(self, scores: Iterable[NDArray[Any]]) -> dict[str, Measure]:
        gains, recalls = [], []
        for row, relevant, own in zip(scores, self.relevant, self.own, strict=True):
            row[own] = -np.inf
            hits = np.isin(find_best(row, DEPTH), relevant)
            gains.append(ndcg(hits, len(relevant)))
            recalls.append(hits.sum() / len(relevant))
        return {f"ndcg@{FIRST}": mean_of(np.array(gains)), f"recall@{DEPTH}": mean_of(np.array(recalls))}


def compute_cosines(queries: NDArray[Any], documents: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the cosines (b, n) of each block of ``queries`` (m, D) with ``documents`` (n, D), all of length 1."""
    step = max(1, COSINES // len(documents))
    for start in range(0, len(queries), step):
        yield queries[start : start + step] @ documents.T


def find_best(scores: NDArray[Any], count: int) -> Rows:
    """Find the ``count`` highest scores above -inf, best first, of equal ones the lower row."""
    least = np.partition(scores, -count)[-count] if count < len(scores) else -np.inf
    rows = np.flatnonzero(scores >= least)
    found = rows[np.argsort(-scores[rows], kind="stable")][:count]
    return np.asarray(found[scores[found] > -np.inf])


def ndcg(hits: NDArray[np.bool_], relevant: int) -> float:
    """Compute nDCG@10; ``hits`` marks the ranks with one of the ``relevant`` documents."""
    gains = 1 / np.log2(np.arange(2, FIRST + 2))
    return float((hits[:FIRST] * gains[: len(hits)]).sum() / gains[:relevant].sum())


def read_retrieval(folder: Path) -> Retrieval:
    """Read a retrieval folder; a grade above 0 counts as 1; each query ignores documents of its own text."""
    corpus, queries, qrels = (_rows(folder / name) for name in HEADERS)
    places, asked = _rows_by_id(folder / CORPUS, corpus), _rows_by_id(folder / "queries.tsv", queries)
    documents = [text if title == "-" else f"{title} {text}" for _, title, text in corpus]
    relevant: list[set[int]] = [set() for _ in queries]
    for number, (query, document, grade) in enumerate(qrels, 2):
        place = f"{folder / 'qrels.tsv'}, line {number}"
        if query not in asked:
            raise FastflowError(f"{place}: the query {query!r} is not in queries.tsv")
        if document not in places:
            raise FastflowError(f"{place}: the document {document!r} is not in {CORPUS}")
        if not NUMBER.fullmatch(grade):
            raise FastflowError(f"{place}: the grade must be a number, not {grade!r}")
        if float(grade) > 0:
            relevant[asked[query]].add(places[document])
    by_text: dict[str, list[int]] = {}
    for i, text in enumerate(documents):
        by_text.setdefault(text, []).append(i)
    own = [by_text.get(text, []) for _, text in queries]
    kept = [i for i in range(len(queries)) if relevant[i] - set(own[i])]
    if not kept:
        raise FastflowError(f"{folder / 'qrels.tsv'}: no query has another document of a grade above 0")
    return Retrieval(
        folder.name,
        documents,
        [queries[i][1] for i in kept],
        [np.array(sorted(relevant[i] - set(own[i])), np.int64) for i in kept],
        [np.array(own[i], np.int64) for i in kept],
    )


def _rows(path: Path) -> list[list[str]]:
    header, rows = read_rows(find_packed(path), HEADERS[path.name])
    check_fields(path, header, rows)
    return rows


def _rows_by_id(path: Path, rows: list[list[str]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for i, row in enumerate(rows):
        if found.setdefault(row[0], i) != i:
            raise FastflowError(f"{path}, line {i + 2}: the id {row[0]!r} occurs twice; ids must differ")
    return found
