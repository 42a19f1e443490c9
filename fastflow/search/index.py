"""``Index``: a file of embeddings to search."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.files import EmbedConfig
from fastflow.files.database import reading, run_of
from fastflow.files.embed import describe_file, numbers_of
from fastflow.files.read import InputFormat, Record
from fastflow.files.read.sources import Row
from fastflow.files.windows import WindowEncoder, characters
from fastflow.files.write import Block
from fastflow.files.write.appending import AppendedFile, has_run
from fastflow.options import WINDOW, check_texts, cut_windows, iterate_in_order
from fastflow.runtime import Runtime
from fastflow.search.scan import SIGNS, Best, MemoryIndex
from fastflow.search.source import Database, Hit, MatrixSource, Source
from fastflow.stages.vectors import check_count, check_vectors
from fastflow.values import short

if TYPE_CHECKING:
    from fastflow.types import QueryOptions


class Index:
    """The rows of a file of embeddings; a search compares the query with every row.

    Safe to call from several threads. Use it as a context manager, or call ``close``.

    Args:
        path: A .db of ``fastflow embed``, of any precision; or a .npy of floats (N, D), such as ``numpy.save`` of
            ``encode_document``'s vectors.
        runtime: The model that embeds queries with its prompt for queries. Its similarity ranks the rows, and its
            fingerprint must match the fingerprint in a .db; for a .npy give the model that made it. None: queries are
            vectors, and rows are ranked by cosine.
        texts: The file that was embedded into a .npy: a .txt of one text a line, or another that ``fastflow embed``
            reads.
        hold: None reads the file for each search, in constant memory. ``vectors`` holds rows as float32, or as the
            int8 or bits of a .db. ``int8`` holds codes, a quarter of float32; each search compares the best rows in
            full.
        threads: The threads of a search. None: the cores that this process may use.

    Raises:
        FastflowError: The file cannot be searched with this model.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        runtime: Runtime | None = None,
        *,
        texts: str | os.PathLike[str] | None = None,
        hold: str | None = None,
        threads: int | None = None,
    ) -> None:
        if not isinstance(path, str | os.PathLike):
            raise UsageError(f"Index takes the path of a .db or .npy file, not {type(path).__name__}")
        if not isinstance(runtime, Runtime | None):
            raise UsageError(f"runtime must be a fastflow.Runtime, not {type(runtime).__name__}; give Runtime(MODEL)")
        if not isinstance(texts, str | os.PathLike | None):
            raise UsageError(f"texts must be the path of a file of texts, not {type(texts).__name__}")
        self._runtime, self._threads, self._how = runtime, threads, hold
        self._source = _open(Path(path), None if texts is None else Path(texts))
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
    def id_column(self) -> str | None:
        """The column of the ids; None if the file has no ids."""
        return self._source.id_column

    @overload
    def search(  # type: ignore[overload-overlap]
        self, queries: str, k: int = ..., where: str | None = ...
    ) -> list[Hit]: ...

    @overload
    def search(self, queries: Sequence[str], k: int = ..., where: str | None = ...) -> list[list[Hit]]: ...

    @overload
    def search(self, queries: ArrayLike, k: int = ..., where: str | None = ...) -> list[Hit] | list[list[Hit]]: ...

    def search(self, queries: Any, k: int = 10, where: str | None = None) -> list[Hit] | list[list[Hit]]:
        """Find the best rows, best first; of equal rows the lower one first.

        Args:
            queries: A text or a vector (D,); or texts or vectors (q, D).
            k: The rows to return.
            where: An SQL condition on the columns of a .db; other rows are skipped.

        Returns:
            A list of Hit for one query; a list of such lists for several. A Hit has ``row``, ``score``, ``text``,
            ``id`` and ``fields``, the kept columns. Text and id are None if the file has none; a .npy has no ids.

        Raises:
            FastflowError: The queries have another width, or SQLite cannot run the condition.
        """
        check_count("k", k)
        single = isinstance(queries, str)
        vectors = self._embed([queries] if single else queries)
        single = single or (not _is_text(queries) and np.ndim(queries) == 1 and len(vectors) == 1)
        found = self._find(vectors, k, where) if len(vectors) else []
        hits = self._describe(found)
        return hits[0] if single else hits

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
            FastflowError: The file is not a .db or was opened without a model, an id comes twice, or columns differ.
        """
        self._check_writable("add")
        if self._runtime is None:
            raise UsageError(f"{self._source.path} was opened without a model: add needs runtime=")
        path, runtime, fields = self._source.path, self._runtime, fields or {}
        texts = list(check_texts(iterate_in_order(texts)))
        for name, values in (("ids", ids), *fields.items()):
            if values is not None and len(values) != len(texts):
                raise UsageError(f"{name} has {len(values)} values for {len(texts)} texts: give one for each text")
        run = _read_run(path)
        if (ids is None) != (run["id_field"] is None):
            raise UsageError(f"{path} has {'no ids: leave ids out' if run['id_field'] is None else 'ids: give ids='}")
        layout = InputFormat(field=run["text_field"], id_field=run["id_field"], keep=tuple(fields))
        given = run["precision"], run["truncate_dim"], bool(run["normalized"])
        settings = EmbedConfig(layout, *given, prompt=run["prompt"])
        encoder = WindowEncoder(runtime, settings, WINDOW)

        def embed(at: Sequence[int]) -> Block:
            some = [texts[i] for i in at]
            named = {} if ids is None else {str(run["id_field"]): [ids[i] for i in at]}
            return Block(at, some, encoder(some), named, {name: [v[i] for i in at] for name, v in fields.items()})

        key = numbers_of(runtime, settings.precision, settings.normalize)
        with AppendedFile(path, key, layout, "text", False) as writer:
            writer.about = describe_file(runtime, settings)
            writer.write(embed([]))
            kept = zip(*fields.values(), strict=True) if fields else [()] * len(texts)
            records = zip(texts, ids or [None] * len(texts), kept, strict=True)
            rows = (Row(i, "Index.add", Record((text,), each, i, more)) for i, (text, each, more) in enumerate(records))
            for window in cut_windows(writer.pick_changed(rows, WINDOW), WINDOW, characters):
                writer.write(embed([row.number for row in window]))
            writer.finish()
        self._reopen()
        return writer.counts

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
        layout = InputFormat(id_field=_read_run(self._source.path)["id_field"])
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
        whole = self._runtime is None or self._runtime.dim == self.dim
        cut = self._source.truncated or not whole  # truncate_dim would rotate whole vectors
        return {"normalize_embeddings": self._source.normalized, "truncate_dim": self.dim if cut else None}

    def __len__(self) -> int:
        return self._source.count()

    def _hold(self) -> MemoryIndex | None:
        return None if self._how is None else MemoryIndex(self._source, self._how, self.similarity, self._threads)

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _find(self, queries: NDArray[Any], k: int, where: str | None) -> list[list[tuple[int, float]]]:
        if self._held is not None:
            return self._held.find(queries, k, where)
        best = Best(queries, k, self.similarity, self._threads)
        for rows, vectors in self._source.blocks(where):
            best.add(rows, vectors)
        return best.list_best()

    def _describe(self, found: Sequence[Sequence[tuple[int, float]]]) -> list[list[Hit]]:
        hits = iter(self._source.hits([each for of_one in found for each in of_one]))
        return [[next(hits) for _ in of_one] for of_one in found]

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
        if made is not None and made != runtime.fingerprint:
            raise FastflowError(
                f"{path} was made with another model, of the fingerprint {made[:12]}…, and this is "
                f"{runtime.info()['model']}, {runtime.fingerprint[:12]}…: give the model that made it with -m"
            )
        if self.dim > runtime.dim:
            raise FastflowError(
                f"{path} has {self.dim} dimensions, and {runtime.info()['model']} gives {runtime.dim}: give the model "
                "that made it with -m"
            )


def _open(path: Path, texts: Path | None) -> Source:
    if path.suffix == ".npy":
        return MatrixSource(path, texts)
    if path.suffix != ".db":
        raise UsageError(f"{path}: {short(path.suffix)} cannot be searched; make a .db with fastflow embed -o OUT.db")
    if texts is not None:
        raise UsageError(f"{path} has the texts itself: leave out {texts}")
    return Database(path)


def _is_text(queries: Any) -> bool:
    if isinstance(queries, str):
        return True
    return isinstance(queries, Sequence) and len(queries) > 0 and isinstance(queries[0], str)


def _read_run(path: Path) -> dict[str, Any]:
    has_run(path)
    with reading(path) as db:
        return dict.fromkeys(("id_field", "text_field", "truncate_dim", "normalized", "prompt")) | run_of(db, path)
