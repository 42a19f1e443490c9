"""``Index``: a file of embeddings to search."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.files.embed import append_texts
from fastflow.files.read import InputFormat
from fastflow.files.write.appending import AppendedFile, read_run_fields
from fastflow.model.locate import is_same_model
from fastflow.options import check_texts, iterate_in_order
from fastflow.runtime import Runtime
from fastflow.search.scan import BY, DEPTH, SHARES, SIGNS, Best, MemoryIndex, find_kind, join_lists
from fastflow.search.source import Database, Hit, Where, group_equal, open_source
from fastflow.transforms.vectors import check_count, check_vectors
from fastflow.values import short

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fastflow.types import QueryOptions, SearchOptions


class Index:
    """The rows of a file of embeddings; a search compares the query with every row.

    Safe to call from several threads. Use it as a context manager, or call ``close``.

    Args:
        path: A .db of ``fastflow embed``, of any precision; or a .npy of floats (N, D), such as ``numpy.save`` of
            ``encode_document``'s vectors; or such an array, list or table.
        runtime: The model that embeds queries with its prompt for queries. Its similarity ranks the rows, and its
            fingerprint must match the fingerprint in a .db; for a .npy give the model that made it. None: queries are
            vectors, and rows are ranked by cosine.
        texts: The file that was embedded into a .npy: a .txt of one text a line, or another that ``fastflow embed``
            reads. The N texts of an array.
        hold: None reads the file for each search, in constant memory. ``vectors`` holds rows as float32, or as the
            int8 or bits of a .db. ``int8`` holds codes, a quarter of float32; each search compares the best rows in
            full.
        threads: The threads of a search. None: the cores that this process may use.

    Raises:
        FastflowError: The file cannot be searched with this model.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | ArrayLike,
        runtime: Runtime | None = None,
        *,
        texts: str | os.PathLike[str] | Iterable[str] | None = None,
        hold: str | None = None,
        threads: int | None = None,
    ) -> None:
        if not isinstance(runtime, Runtime | None):
            raise UsageError(f"runtime must be a fastflow.Runtime, not {type(runtime).__name__}; give Runtime(MODEL)")
        self._runtime, self._threads, self._how = runtime, threads, hold
        self._kind = "tuned" if runtime is None else find_kind(runtime.session)
        self._source = open_source(path, texts)
        try:
            self.similarity = self._choose_similarity(runtime)
            if runtime is not None:
                self._check_model(runtime)
            self._held = self._hold()
        except BaseException:
            self._source.close()
            raise

    def __repr__(self) -> str:
        rows = f"{len(self):,} rows of {self.dim} dimensions"
        return f"<Index: {self._source.path}, {rows}, {self.precision}, ranked by {self.similarity}>"

    @property
    def dim(self) -> int:
        """The width of a query."""
        return self._source.dim

    @property
    def precision(self) -> str:
        """The numbers that the file holds: float32, float16, int8, uint8, binary or ubinary."""
        return self._source.precision

    @property
    def columns(self) -> Sequence[str]:
        """The columns of a .db, without the vectors."""
        return self._source.columns

    @property
    def has_words(self) -> bool:
        """Whether the file can be searched by words."""
        return self._source.words is not None

    @property
    def id_column(self) -> str | None:
        """The column of the ids; None if the file has no ids."""
        return self._source.id_column

    @overload
    def search(  # type: ignore[overload-overlap]
        self, queries: str, k: int = ..., where: Where | None = ..., **options: Unpack[SearchOptions]
    ) -> list[Hit]: ...

    @overload
    def search(
        self, queries: Sequence[str], k: int = ..., where: Where | None = ..., **options: Unpack[SearchOptions]
    ) -> list[list[Hit]]: ...

    @overload
    def search(
        self, queries: ArrayLike, k: int = ..., where: Where | None = ..., **options: Unpack[SearchOptions]
    ) -> list[Hit] | list[list[Hit]]: ...

    def search(
        self,
        queries: Any,
        k: int = 10,
        where: Where | None = None,
        *,
        by: str = "auto",
        min_score: float | None = None,
        distinct: bool = True,
        vectors: ArrayLike | None = None,
    ) -> list[Hit] | list[list[Hit]]:
        """Find the best texts, best first; of equal scores the lower row first.

        Args:
            queries: A text or a vector (D,); or texts or vectors (q, D).
            k: The hits to return.
            where: An SQL condition on the columns of a .db, or a value or a list of values for each column by its
                name; other rows are skipped.
            by: ``vectors`` ranks by similarity, ``words`` by BM25, ``both`` by their weighted sum, each scaled to 0..1
                over its best hundred rows. ``auto`` is ``both`` for texts, a .db with word search, and a model of the
                package or a token table; else ``vectors``.
            min_score: The least score of a hit.
            distinct: Whether rows of equal texts are one hit, with their numbers in ``rows``.
            vectors: The vectors (q, D) of the texts in ``queries``, if they are known.

        Returns:
            A list of Hit for one query; a list of such lists for several. A Hit has ``row``, ``score``, ``text``,
            ``id``, ``fields`` (the kept columns) and ``rows``; by ``both`` also ``similarity`` and ``words`` (BM25).
            Text and id are None if the file has none; a .npy has no ids.

        Raises:
            FastflowError: The queries have another width, the file has no word search, or SQLite cannot run the
                condition.
        """
        check_count("k", k)
        single = isinstance(queries, str)
        texts = list(iterate_in_order([queries] if single else queries)) if _is_text(queries) else None
        by = self.resolve_by(by, texts is not None)
        embedded = None if by == "words" else self._embed((texts or queries) if vectors is None else vectors)
        count = len(texts) if embedded is None and texts is not None else len(embedded)  # type: ignore[arg-type]
        single = single or (texts is None and np.ndim(queries) == 1 and count == 1)
        hits = self._find_hits(texts, embedded, count, k, where, by, distinct)
        if min_score is not None:
            hits = [[hit for hit in each if hit.score >= min_score] for each in hits]
        return hits[0] if single else hits

    def search_row(
        self, row: int, k: int = 10, where: Where | None = None, *, by: str = "vectors", min_score: float | None = None,
        distinct: bool = True,
    ) -> list[Hit]:  # fmt: skip
        """Find other texts most like a row of the file.

        Args:
            row: Its number.
            k: The hits to return.
            where: As for ``search``, like all other arguments.
            by: As for ``search``.
            min_score: As for ``search``.
            distinct: As for ``search``.

        Returns:
            A list of Hit.
        """
        check_count("k", k)
        (own,) = self._source.hits([(row, 0.0)])
        vector = self._source.vectors(np.array([row], np.int64))
        if self._source.kind == "bits":
            vector = np.unpackbits(vector, axis=1)[:, : self.dim] - np.float32(0.5)
        queries: Any = vector if own.text is None else [own.text]
        options: Any = {"by": by, "min_score": min_score, "distinct": distinct, "vectors": vector}
        (found,) = self.search(queries, k + 1, where, **options)
        return [hit for hit in found if row not in hit.rows][:k]

    def resolve_by(self, by: str, texts: bool) -> str:
        """Resolve the option ``by`` of ``search``.

        Args:
            by: The option.
            texts: Whether the queries are texts.

        Returns:
            ``vectors``, ``words`` or ``both``.
        """
        if by not in ("auto", *BY):
            raise UsageError(f"by must be auto, {', '.join(BY)}, not {short(by)}")
        if by == "auto":
            return "both" if texts and self._source.words is not None and self._kind != "tuned" else "vectors"
        if by != "vectors" and not texts:
            raise UsageError(f"a search by {by} needs texts, and the queries are vectors: search by vectors")
        if by != "vectors" and self._source.words is None:
            raise UsageError(
                f"{self._source.path} has no word search: search by vectors, or make a .db without --no-words"
            )
        return by

    def _find_hits(
        self, texts: list[str] | None, vectors: NDArray[Any] | None, queries: int, k: int, where: Where | None, by: str,
        distinct: bool,
    ) -> list[list[Hit]]:  # fmt: skip
        found: list[list[Hit]] = [[] for _ in range(queries)]
        left, count = list(range(queries)), k + distinct  # a further text shows that the k-th one has no further row
        while left:
            some = None if texts is None else [texts[i] for i in left]
            ranked = self._rank(some, None if vectors is None else vectors[left], count, where, by)
            again = []
            for i, hits in zip(left, self._describe(ranked), strict=True):
                groups = group_equal(hits) if distinct else hits
                if distinct and len(groups) <= k and len(hits) == count:
                    again.append(i)
                found[i] = groups[:k]
            left, count = again, 4 * count
        return found

    def _rank(
        self, texts: list[str] | None, vectors: NDArray[Any] | None, count: int, where: Where | None, by: str
    ) -> list[list[Hit]]:
        """Return the best ``count`` rows of each query."""
        depth = max(count, DEPTH) if by == "both" else count
        near = [] if vectors is None else self._find(vectors, depth, where)
        if by == "vectors" or texts is None:
            return [[Hit(row, score) for row, score in each] for each in near]
        worded = [self._source.find_words(text, depth, where) for text in texts]
        if by == "words":
            return [[Hit(row, score) for row, score in each] for each in worded]
        return [join_lists(*lists, SHARES[self._kind])[:count] for lists in zip(near, worded, strict=True)]

    def add(
        self, texts: Sequence[str], ids: Sequence[Any] | None = None, fields: Mapping[str, Sequence[Any]] | None = None
    ) -> dict[str, int]:
        """Embed texts and write them into the .db, as ``fastflow embed --append`` does; searches then find them.

        Args:
            texts: B texts, embedded with the model and the options of the file.
            ids: Their ids, if the file has ids: a known id with another text is replaced. In a file without ids a known
                text is left out.
            fields: The B values of every kept column, by name.

        Returns:
            The numbers of rows ``added``, ``replaced``, ``same`` and ``deleted`` (0).

        Raises:
            FastflowError: The file is not a .db or was opened without a model, an id is given twice, or columns differ.
        """
        self._check_writable("add")
        if self._runtime is None:
            raise UsageError(f"{self._source.path} was opened without a model: add needs runtime=")
        path, runtime, fields = self._source.path, self._runtime, fields or {}
        texts = list(check_texts(iterate_in_order(texts)))
        for name, values in (("ids", ids), *fields.items()):
            if values is not None and len(values) != len(texts):
                raise UsageError(f"{name} has {len(values)} values for {len(texts)} texts: give one for each text")
        counts = append_texts(path, runtime, texts, ids, fields, read_run_fields(path))
        self._reopen()
        return counts

    def delete(self, keys: Sequence[Any]) -> int:
        """Delete rows of the .db.

        Args:
            keys: Ids, or in a file without ids texts.

        Returns:
            The number of rows deleted.

        Raises:
            FastflowError: The file is not a .db.
        """
        self._check_writable("delete")
        layout = InputFormat(id_field=read_run_fields(self._source.path)["id_field"])
        with AppendedFile(self._source.path, {}, layout, "text", False) as writer:
            count = writer.delete(list(iterate_in_order(keys)))
        self._reopen()
        return count

    def _check_writable(self, name: str) -> None:
        if not isinstance(self._source, Database):
            raise UsageError(f"{self._source.path}: {name} changes a .db, and this is a file of vectors only")

    def _reopen(self) -> None:
        self._source = Database(self._source.path)
        self._held = self._hold()

    def query_options(self) -> QueryOptions:
        """The options of ``Runtime.encode_query`` that make vectors like the file's.

        Returns:
            ``normalize_embeddings`` and ``truncate_dim``.
        """
        cut = self._source.truncated or (
            self._runtime is not None and self._runtime.dim != self.dim
        )  # truncate_dim would rotate whole vectors
        return {"normalize_embeddings": self._source.normalized, "truncate_dim": self.dim if cut else None}

    def __len__(self) -> int:
        return self._source.count()

    def _hold(self) -> MemoryIndex | None:
        return None if self._how is None else MemoryIndex(self._source, self._how, self.similarity, self._threads)

    def is_changed(self) -> bool:
        """Ask whether the file must be opened again.

        Returns:
            Whether the .db was changed or replaced since it was opened.
        """
        return self._source.is_changed()

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _find(self, queries: NDArray[Any], k: int, where: Where | None) -> list[list[tuple[int, float]]]:
        if self._held is not None:
            return self._held.find(queries, k, where)
        best = Best(queries, k, self.similarity, self._threads)
        for rows, vectors in self._source.blocks(where):
            best.add(rows, vectors)
        return best.list_best()

    def _describe(self, found: Sequence[Sequence[Hit]]) -> list[list[Hit]]:
        hits = iter(self._source.hits([each[:2] for of_one in found for each in of_one]))
        return [
            [next(hits)._replace(rows=(each.row,), similarity=each.similarity, words=each.words) for each in of_one]
            for of_one in found
        ]

    def _embed(self, queries: Any) -> NDArray[Any]:
        if not _is_text(queries):
            if len(queries) == 0:
                return np.zeros((0, self.dim))
            vectors = check_vectors(queries, np.float32)
            if vectors.shape[1] != self.dim:
                raise UsageError(f"{self._source.path} has {self.dim} dimensions, and the query {vectors.shape[1]}")
            return vectors
        if self._runtime is None:
            raise UsageError(f"{self._source.path} was opened without a model: search with vectors, or give runtime=")
        return np.asarray(self._runtime.encode_query(list(iterate_in_order(queries)), **self.query_options()))

    def _choose_similarity(self, runtime: Runtime | None) -> str:
        name = "cosine" if runtime is None else str(runtime.info()["similarity"])
        if self._source.kind != "floats" and name != "cosine":
            raise FastflowError(
                f"{self._source.path} holds {self._source.precision}, of which cosines can be computed, and the model "
                f"compares by {name}: embed with --precision float32"
            )
        return SIGNS if self._source.kind == "bits" else name

    def _check_model(self, runtime: Runtime) -> None:
        path, made = self._source.path, self._source.fingerprint
        if made is not None and not is_same_model(made, runtime.fingerprint):
            raise FastflowError(
                f"{path} was made with another model, {made[:12]}…, and this is {runtime.info()['model']}, "
                f"{runtime.fingerprint[:12]}…: give the model that made it{self._source.maker}"
            )
        if self.dim > runtime.dim:
            raise FastflowError(
                f"{path} has {self.dim} dimensions, and {runtime.info()['model']} gives {runtime.dim}: give the model "
                "that made it with -m"
            )


def _is_text(queries: Any) -> bool:
    if isinstance(queries, str):
        return True
    return isinstance(queries, Sequence) and len(queries) > 0 and isinstance(queries[0], str)
