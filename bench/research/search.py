"""Searching a million rows: times and recall of each way to hold them, beside usearch and sqlite-vec.

    python -m fastflow.bench.research.search --data DIR --work DIR --prepare
    python -m fastflow.bench.research.search --data DIR --work DIR --out bench/results/search

The first command embeds the sentences of CORPORA, enlarges them to a million rows and writes the files of all engines
to the folder of --work; the second, on a quiet machine, measures. Both need usearch, and sqlite-vec with a Python whose
sqlite3 loads extensions.
"""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fastflow import Runtime
from fastflow.bench.measure.machine import describe
from fastflow.files.database import DatabaseFile
from fastflow.files.printing import Block
from fastflow.search import Index
from fastflow.search.codes import Bits, Bytes, Codes, largest
from fastflow.search.scan import exact

Array = NDArray[Any]
CORPORA = (
    "nli-flickr30k-premises.txt.gz",
    "nli-snli-dev-test.txt",
    "nli-qnli-dev-test.txt",
    "leipzig-eng-news-2016-10k.txt",
)
QUERIES, K, NOISE = 500, 10, 0.3
FACTORS = {"int8": (1, 2, 4, 8), "bits": (1, 8, 16, 32, 64, 128)}
ROUNDS = 10
TURNS = {"fast": 10, "slow": 1}  # queries of an engine in a round
CHECKED = {"fast": 50, "slow": 3}  # queries whose rows are compared with the true ones


def sentences(data: Path) -> list[str]:
    """The distinct lines of CORPORA, in an order drawn once."""
    lines: dict[str, None] = {}
    for name in CORPORA:
        path = data / "corpora" / name
        with gzip.open(path, "rt") if name.endswith(".gz") else path.open() as handle:
            lines |= dict.fromkeys(line.strip() for line in handle if line.strip())
    found = list(lines)
    random.Random(0).shuffle(found)
    return found


def enlarged(real: Array, rows: int) -> Array:
    """``rows`` vectors: the real ones, then real ones with noise of NOISE times the spread of each dimension."""
    rng, out = np.random.default_rng(0), np.empty((rows, real.shape[1]), np.float32)
    out[: len(real)] = real[:rows]
    spread = NOISE * real.std(axis=0)
    for start in range(len(real), rows, 65_536):
        part = out[start : start + 65_536]
        noise = rng.standard_normal(part.shape, np.float32) * spread
        part[:] = real[rng.integers(0, len(real), len(part))] + noise
    return out


def truth(vectors: Array, queries: Array) -> Array:
    """(q, K) rows with the largest cosines, in float64."""
    scores = np.full((len(queries), K), -np.inf)
    best = np.zeros((len(queries), K), np.int64)
    unit = queries / np.linalg.norm(queries, axis=1, keepdims=True).astype(np.float64)
    for start in range(0, len(vectors), 20_000):
        x = vectors[start : start + 20_000].astype(np.float64)
        found = (x @ unit.T / np.linalg.norm(x, axis=1)[:, None]).T
        top = np.argpartition(-found, K, axis=1)[:, :K]
        both = np.concatenate([scores, np.take_along_axis(found, top, axis=1)], axis=1)
        rows = np.concatenate([best, top + start], axis=1)
        order = np.argsort(-both, axis=1, kind="stable")[:, :K]
        scores, best = np.take_along_axis(both, order, axis=1), np.take_along_axis(rows, order, axis=1)
    return best


def recall(found: Array, want: Array) -> float:
    """The share of the K best rows that were found, mean over queries."""
    return float(np.mean([len(set(a) & set(b)) / K for a, b in zip(found.tolist(), want.tolist(), strict=True)]))


def prepare(data: Path, work: Path, rows: int, threads: int) -> None:
    """Write what is not in ``work`` yet: vectors, queries, their best rows, the .db, and the files of the others."""
    work.mkdir(parents=True, exist_ok=True)
    texts = sentences(data)
    if not (work / "real.npy").exists():
        np.save(work / "real.npy", Runtime().encode(texts))
    if not (work / "rows.npy").exists():
        real = np.load(work / "real.npy")
        np.save(work / "queries.npy", real[:QUERIES])
        np.save(work / "rows.npy", enlarged(real[QUERIES:], rows))
        np.save(work / "truth.npy", truth(np.load(work / "rows.npy", mmap_mode="r"), real[:QUERIES]))
    if not (work / "rows.db").exists():
        write_database(work / "rows.db", np.load(work / "rows.npy", mmap_mode="r"), texts[QUERIES:])
    if not (work / "recalls.json").exists():
        queries, want = np.load(work / "queries.npy"), np.load(work / "truth.npy")
        (work / "recalls.json").write_text(json.dumps(recalls(work, threads, queries, want)))
    if not (work / "vec0.db").exists():
        write_vec0(work / "vec0.db", np.load(work / "rows.npy", mmap_mode="r"))
    if not (work / "rows.usearch").exists():
        from usearch.index import Index as Graph

        graph = Graph(ndim=np.load(work / "rows.npy", mmap_mode="r").shape[1], metric="cos", dtype="i8")
        graph.add(np.arange(rows), np.load(work / "rows.npy"), threads=threads)
        graph.save(str(work / "rows.usearch"))


def write_database(path: Path, vectors: Array, texts: list[str]) -> None:
    """The rows as fastflow embed writes them."""
    about = {"fingerprint": Runtime().fingerprint, "precision": "float32", "normalized": False}
    with DatabaseFile(path, about) as writer:
        writer.begin()
        for start in range(0, len(vectors), 4096):
            at = range(start, min(start + 4096, len(vectors)))
            writer.write(Block(at, [texts[row % len(texts)] for row in at], None, np.array(vectors[start : at.stop])))
        writer.finish()


def write_vec0(path: Path, vectors: Array) -> None:
    """The rows in sqlite-vec's own table."""
    path.unlink(missing_ok=True)
    with closing(with_vec(sqlite3.connect(path, isolation_level=None))) as db:
        db.execute("PRAGMA journal_mode = off")
        db.execute(f"CREATE VIRTUAL TABLE t USING vec0(v float[{vectors.shape[1]}] distance_metric=cosine)")
        db.execute("BEGIN")
        db.executemany("INSERT INTO t(rowid, v) VALUES (?, ?)", ((i, v.tobytes()) for i, v in enumerate(vectors)))
        db.execute("COMMIT")


def with_vec(db: sqlite3.Connection) -> sqlite3.Connection:
    """``db`` with the functions of sqlite-vec."""
    import sqlite_vec

    db.enable_load_extension(True)
    sqlite_vec.load(db)
    return db


def engines(work: Path, threads: int) -> Iterator[tuple[str, str, Callable[[Array], list[int]]]]:
    """Name, ``fast`` or ``slow``, and the rows of one query."""
    from usearch.index import Index as Graph
    from usearch.index import MetricKind
    from usearch.index import search as exhaustive

    for hold in ("vectors", "int8"):
        index = Index(work / "rows.db", hold=hold, threads=threads)
        yield f"fastflow, {hold} in memory", "fast", lambda q, i=index: [hit.row for hit in i.search(q, K)]
    yield f"bits in memory, {FACTORS['bits'][-1]} k rows in full", "fast", by_bits(work, threads)
    for name in ("rows.db", "rows.npy"):
        index = Index(work / name)
        yield f"fastflow, {name} read", "slow", lambda q, i=index: [hit.row for hit in i.search(q, K)]
    whole = np.load(work / "rows.npy")
    yield (
        "usearch, exact, float32", "fast",
        lambda q: exhaustive(whole, q, K, MetricKind.Cos, exact=True, threads=threads).keys.tolist(),
    )  # fmt: skip
    if (work / "rows.usearch").exists():
        graph = Graph.restore(str(work / "rows.usearch"))
        yield "usearch, HNSW of int8", "fast", lambda q: graph.search(q, K, threads=threads).keys.tolist()
    plain = sqlite3.connect(work / "rows.db", isolation_level=None)
    with_vec(plain)
    ordered = "SELECT row FROM texts ORDER BY vec_distance_cosine(vector, ?) LIMIT 10"
    yield "sqlite-vec on our table", "slow", lambda q: [row for (row,) in plain.execute(ordered, (q.tobytes(),))]
    own = with_vec(sqlite3.connect(work / "vec0.db"))
    matched = "SELECT rowid FROM t WHERE v MATCH ? AND k = 10 ORDER BY distance"
    yield "sqlite-vec, vec0", "slow", lambda q: [row for (row,) in own.execute(matched, (q.tobytes(),))]


def by_bits(work: Path, threads: int) -> Callable[[Array], list[int]]:
    """A search that fastflow does not offer, for its recall is low: bits choose rows that are compared in full."""
    vectors = np.load(work / "rows.npy", mmap_mode="r")
    bits = Bits(*vectors.shape, threads)
    for start in range(0, len(vectors), 20_000):
        bits.put(start, np.packbits(vectors[start : start + 20_000] > 0, axis=1))

    return lambda query: in_full(bits.scores(query), query, vectors, FACTORS["bits"][-1]).tolist()


def in_full(scores: Array, query: Array, vectors: Array, factor: int) -> Array:
    """The K best rows among the ``factor`` K of the largest ``scores`` of codes, by their cosines."""
    chosen = largest(scores, K * factor)
    order = np.argsort(-exact(query.astype(np.float64), vectors[chosen], "cosine"), kind="stable")
    return chosen[order[:K]]


def recalls(work: Path, threads: int, queries: Array, want: Array) -> list[dict[str, Any]]:
    """Recall of codes by the number of rows that are compared in full, in multiples of K."""
    vectors = np.load(work / "rows.npy", mmap_mode="r")
    codes: dict[str, Codes] = {"int8": Bytes(*vectors.shape, threads, "cosine"), "bits": Bits(*vectors.shape, threads)}
    for start in range(0, len(vectors), 20_000):
        block = np.array(vectors[start : start + 20_000])
        codes["int8"].put(start, block)
        codes["bits"].put(start, np.packbits(block > 0, axis=1))
    rows: list[dict[str, Any]] = []
    for name, of in codes.items():
        scores = [of.scores(query) for query in queries]
        for factor in FACTORS[name]:
            found = [in_full(each, query, vectors, factor) for query, each in zip(queries, scores, strict=True)]
            used = name == "int8" and factor == of.factor
            rows.append({"codes": name, "factor": factor, "used": used, "recall": recall(np.array(found), want)})
    return rows


def timed(work: Path, threads: int, queries: Array, want: Array) -> list[dict[str, Any]]:
    """Milliseconds a query of every engine, by the wall and of all its threads; their rows are compared first."""
    ready = list(engines(work, threads))
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name, _, _ in ready}
    rows = []
    for name, speed, search in ready:
        some = CHECKED[speed]
        found = np.array([search(query) for query in queries[:some]])
        rows.append({"engine": name, "recall": recall(found, want[:some]), "recall_queries": some})
        click.echo(f"{name}: recall {rows[-1]['recall']:.3f}", err=True)
    at = 0
    for _ in range(ROUNDS):  # in turns, so that what disturbs the machine disturbs all
        for name, speed, search in ready:
            for _ in range(TURNS[speed]):
                query, at = queries[at % len(queries)], at + 1
                wall, busy = time.perf_counter(), time.process_time()
                search(query)
                measured[name].append((1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - busy)))
    for row in rows:
        times = measured[row["engine"]]
        wall, busy = np.array(times).T
        row |= {"queries": len(times), "p50_ms": np.quantile(wall, 0.5), "p99_ms": np.quantile(wall, 0.99)}
        row["processor_ms"] = np.quantile(busy, 0.5)
    return rows


def commands(work: Path) -> list[dict[str, Any]]:
    """Seconds of whole processes of ``fastflow search``."""
    rows = []
    for file in ("rows.db", "rows.npy"):
        times = []
        for _ in range(5):
            began = time.perf_counter()
            command = ["fastflow", "search", str(work / file), "a dog runs on the beach", "--quiet"]
            subprocess.run(command, check=True, capture_output=True)
            times.append(time.perf_counter() - began)
        rows.append({"file": file, "median_s": float(np.median(times)), "worst_s": max(times)})
    return rows


def without_walls(result: dict[str, Any]) -> dict[str, Any]:
    """Without times by the wall, which say nothing of a machine that others use meanwhile."""
    engines = [
        {name: value for name, value in row.items() if name[:3] not in ("p50", "p99")} for row in result["engines"]
    ]
    return result | {"engines": engines, "commands": []}


def page(result: dict[str, Any]) -> str:
    """The tables, as Markdown."""
    walls = bool(result["commands"])
    columns = ["engine", "recall@10", *["p50, ms", "p99, ms"] * walls, "processor time, ms", "queries"]
    lines = [HEAD.format(**result), *([] if walls else [SHARED, ""])]
    lines += [f"| {' | '.join(columns)} |", "| --- |" + " ---: |" * (len(columns) - 1)]
    for row in result["engines"]:
        times = [f"{row[name]:.1f}" for name in ("p50_ms", "p99_ms", "processor_ms") if name in row]
        lines.append(f"| {' | '.join([row['engine'], format(row['recall'], '.3f'), *times, str(row['queries'])])} |")
    lines += ["", "Recall by the number of rows that are compared in full, in multiples of k; bold is in use:", ""]
    lines += ["| codes | factor | recall@10 |", "| --- | ---: | ---: |"]
    for row in result["recalls"]:
        factor = f"**{row['factor']}**" if row["used"] else row["factor"]
        lines.append(f"| {row['codes']} | {factor} | {row['recall']:.4f} |")
    if walls:
        lines += ["", "`fastflow search FILE QUERY`, whole processes:", ""]
        lines += ["| file | median, s | worst of 5, s |", "| --- | ---: | ---: |"]
        lines += [f"| {row['file']} | {row['median_s']:.2f} | {row['worst_s']:.2f} |" for row in result["commands"]]
    return "\n".join([*lines, ""])


HEAD = """# Searching a million rows

`python -m fastflow.bench.research.search --data DIR --work DIR --prepare`,
then the same with `--out bench/results/search` in place of `--prepare`

{rows:,} rows of {dim} dimensions: {real:,} sentences (Flickr30k, SNLI, QNLI, news) embedded with the model in the
package, and {made:,} copies of these vectors with noise of 0.3 times the spread of each dimension. Queries are
sentences that are not among the rows. Recall is the share of the 10 rows with the largest cosine in float64 that an
engine finds. {threads} threads for every engine; sqlite-vec has one. The engines take turns in one process. The
processor time is the median over queries of the time of all threads, waiting in a loop included.
"""
SHARED = """**Measured while other work used the machine** (`--shared`): times by the wall were not kept. Processor
time grows too where others take the caches, so it orders engines that are far apart and no others."""


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds corpora/.")
@click.option("--work", required=True, type=click.Path(path_type=Path), help="Keeps 4 GB of files.")
@click.option("--rows", default=1_000_000, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--prepare", "only", is_flag=True, help="Write the files, and measure nothing.")
@click.option("--shared", is_flag=True, help="Others use the machine: keep processor times alone.")
@click.option("--out", type=click.Path(path_type=Path), help="Writes OUT.json and OUT.md.")
def main(data: Path, work: Path, rows: int, threads: int, only: bool, shared: bool, out: Path | None) -> None:
    """Prepare, or measure."""
    if only or out is None:
        prepare(data, work, rows, threads)
        return
    queries, want = np.load(work / "queries.npy"), np.load(work / "truth.npy")
    real = len(np.load(work / "real.npy", mmap_mode="r")) - QUERIES
    shape = np.load(work / "rows.npy", mmap_mode="r").shape
    result: dict[str, Any] = {
        "rows": shape[0],
        "dim": shape[1],
        "real": real,
        "made": shape[0] - real,
        "threads": threads,
    }
    result |= {"commands": commands(work), "engines": timed(work, threads, queries, want)}
    result |= {"recalls": json.loads((work / "recalls.json").read_text()), "machine": describe()}
    result = without_walls(result) if shared else result
    out.with_suffix(".json").write_text(json.dumps(result, indent=1, default=float) + "\n")
    out.with_suffix(".md").write_text(page(result))


if __name__ == "__main__":
    main()
