"""``fastflow duplicates``: compare all pairs in a folder that --resume continues, and write what was found."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.atomic import replace_bytes
from fastflow.console import add_note
from fastflow.errors import FastflowError, UsageError, missing_extra
from fastflow.files import Run, check_replaceable
from fastflow.files.read import InputFormat
from fastflow.files.read.matrix import MatrixFile
from fastflow.files.words import DUPLICATES, create_duplicates
from fastflow.files.write.partial import State, cannot_write, identify, partial_path, renew_run
from fastflow.progress import Progress
from fastflow.runtime import Runtime
from fastflow.search.compared import ComparedTexts, check_kept
from fastflow.search.pairs import Comparison, Duplicates, NearPairs

LIMITS = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6)
TABLE = (".csv", ".jsonl", ".parquet", ".db")
SHOWN = 3  # pairs


class Folder:
    """The folder of a comparison, OUT.partial: vectors, and strips that are compared; ``state`` says of what.

    It is removed at the end, and after an error of the user; a signal or a full disk leaves it for --resume.
    """

    def __init__(self, path: Path, state: State | None, resume: bool) -> None:
        self.path, self._state = path, state
        if state is not None and path.exists():
            if not (path.is_dir() and state.path.is_file()):
                raise UsageError(f"{path} is no folder of fastflow duplicates: choose another -o")
            if resume:
                state.load()
            else:
                shutil.rmtree(path)
        path.mkdir(exist_ok=True)
        if state is not None:
            state.save(0, 0)

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or (isinstance(error, FastflowError) and not isinstance(error.__cause__, OSError)):
            shutil.rmtree(self.path)
            if self._state is not None:
                self._state.forget()
        elif self._state is not None and not getattr(error, "__notes__", ()):
            add_note(error, f"finished work is in {self.path}; the same command with --resume continues after it")

    def strip(self, number: int) -> Path:
        return self.path / f"strip-{number:05}.npy"

    def compare(self, run: Comparison, number: int) -> None:
        """Compare a strip, unless an earlier run did."""
        if not self.strip(number).exists():
            out = io.BytesIO()
            np.save(out, run.compare_strip(number))
            replace_bytes(self.strip(number), out.getvalue())

    def compare_all(self, run: Comparison, ray: str | None, shown: bool) -> Iterator[NDArray[Any]]:
        """Yield the EDGEs of all strips, with progress and the time left; the cluster ``ray`` compares them first."""
        if ray is not None:
            from fastflow.integrations.ray import run_on_cluster

            run.save(self.path / "plan.npz")
            left = [number for number in range(len(run.strips)) if not self.strip(number).exists()]
            with Progress("compare", len(left), "strips", shown) as progress:
                for _ in run_on_cluster(compare_strip, str(self.path.absolute()), left, ray, run.threads or 1):
                    progress.advance(1)
        with Progress("compare", run.count(0, len(run.strips)), "pairs", shown and ray is None) as progress:
            for number in range(len(run.strips)):
                self.compare(run, number)
                progress.advance(run.count(number, number + 1))
                yield np.load(self.strip(number))


@dataclass(frozen=True)
class DuplicatesConfig:
    """The options of a run; ``wanted`` is --to. ``above`` and ``wanted`` None: a preview."""

    layout: InputFormat
    model: str | None = None
    above: float | None = None
    wanted: int | None = None
    against: Path | None = None
    order: str | None = None
    kept: Path | None = None
    texts: Path | None = None
    output: Path | None = None
    ray: str | None = None
    threads: int | None = None
    resume: bool = False
    quiet: bool = False

    def check(self, paths: Sequence[str]) -> None:
        """Raise a UsageError for options that exclude each other, or that an input or output cannot have."""
        if self.above is not None and self.wanted is not None:
            raise UsageError("--to finds the limit that --above gives: leave out one of them")
        for option, value in (("--resume", self.resume), ("--ray", self.ray)):
            if value and self.output is None:
                raise UsageError(f"{option} needs an output file: -o OUT")
        if self.output is not None:
            check_table(self.output)
        if self.kept is not None:
            check_kept(paths, self.texts, self.layout, self.kept)

    def open_state(self, paths: Sequence[str], overwrite: bool) -> State | None:
        """Return the record of OUT, None without one; raises if OUT may not be replaced or is of another run."""
        if self.kept is not None and self.kept.exists() and not (overwrite or self.is_finished()):
            raise UsageError(f"--kept {self.kept} exists; name another file, or replace it with --overwrite")
        if self.output is None:
            return None
        sources = [*paths, *([] if self.against is None else [str(self.against)])]
        names = ("model", "above", "wanted", "against", "order", "texts", "kept")
        options = self.layout._asdict() | {name: str(getattr(self, name)) for name in names}
        found = [identify(Path(path)) if Path(path).is_file() else None for path in sources]
        state = State(self.output, found, {"options": options}, sources)
        if self.is_finished():
            state.is_done()
        elif self.output.suffix != ".db" and not (self.resume and partial_path(self.output).is_dir()):
            check_replaceable(self.output, overwrite)
        return state

    def is_finished(self) -> bool:
        """Whether OUT is whole, and --resume has nothing to do."""
        if not self.resume or self.output is None or self.output.suffix == ".db":
            return False
        whole = self.output.exists() and not partial_path(self.output).exists()
        return whole and (self.kept is None or self.kept.exists())


class Compared(NamedTuple):
    """The pairs of texts, or of texts of ``other`` with them."""

    pairs: NearPairs
    own: ComparedTexts
    other: ComparedTexts


@contextmanager
def compare_files(
    paths: Sequence[str], config: DuplicatesConfig, state: State | None, open_model: Callable[[], Runtime]
) -> Iterator[Compared]:
    """Embed the texts of ``paths``, or read their vectors, and compare all pairs."""
    with ExitStack() as stack:
        if config.output is not None:
            where = partial_path(config.output)
        else:
            where = Path(stack.enter_context(TemporaryDirectory(prefix="fastflow-"))) / "run"
        folder = stack.enter_context(Folder(where, state, config.resume))
        run = Run(resume=config.resume, quiet=config.quiet, overwrite=True)
        field = None if config.order in (None, "longest") else str(config.order).removeprefix("-")
        own = other = ComparedTexts(paths, config.texts, config.layout, field, where / "own", stack, open_model, run)
        others: tuple[Any, Any] = (None, None)
        if config.against is not None:
            layout = config.layout  # a .txt has no fields
            layout = layout._replace(field=None, id_field=None) if config.against.suffix == ".txt" else layout
            other = ComparedTexts([str(config.against)], None, layout, None, where / "against", stack, open_model, run)
            others = other.vectors, other.keys
            if None not in (own.fingerprint, other.fingerprint) and own.fingerprint != other.fingerprint:
                raise UsageError(f"{own.name} and {other.name} were made with different models: embed both with one")
        pairs = Comparison(own.vectors, own.keys, own.sort(config.order), *others)
        pairs.prepare(config.above or min(LIMITS), config.threads)
        strips = folder.compare_all(pairs, config.ray, not config.quiet)
        yield Compared(pairs.collect(strips, () if config.above else LIMITS), own, other)


@lru_cache(maxsize=1)
def _open_comparison(place: str, threads: int) -> Comparison:
    """Open the comparison of a folder, which a process of a cluster keeps for its strips."""
    with np.load(Path(place) / "plan.npz") as saved:
        own, *other = (MatrixFile(path).matrix for path in saved["vectors"].tolist())
        found = Comparison(own, None, saved["order"], other[0] if other else None)
        found.first = saved["first"]
        found.prepare(float(saved["above"]), threads)
        return found


def compare_strip(place: str, number: int, threads: int) -> None:
    """Compare a strip of the folder ``place`` in a process of a cluster."""
    Folder(Path(place), None, False).compare(_open_comparison(place, threads), number)


def find_limit(pairs: NearPairs, wanted: int) -> Duplicates:
    """Return the duplicates at the highest limit that leaves at most ``wanted`` rows."""
    limits = np.unique([*pairs.edges["cosine"], 1.0])
    low, high = 0, len(limits)  # limits[low] leaves few enough, limits[high] too many
    found = pairs.keep_first(float(limits[0]))
    if len(found.kept) > wanted:
        raise FastflowError(
            f"{len(found.kept):,} texts stay at the limit {pairs.above:g}, the lowest of --to: give that number or more"
        )
    while high - low > 1:
        middle = (low + high) // 2
        one = pairs.keep_first(float(limits[middle]))
        low, high, found = (middle, high, one) if len(one.kept) <= wanted else (low, middle, found)
    return found


def describe_limits(found: Compared) -> list[dict[str, Any]]:
    """Return for each of LIMITS the rows to remove, and texts of three pairs between it and the next one."""
    pairs, rows = found.pairs, found.pairs.of.rows
    edges = pairs.edges[np.argsort(pairs.edges["cosine"], kind="stable")]
    shown, last = list[tuple[float, NDArray[Any]]](), len(edges)
    for limit in (each for each in LIMITS if each >= pairs.above):
        first = int(np.searchsorted(edges["cosine"], limit))
        shown.append((limit, edges[first : min(first + SHOWN, last)]))
        last = first
    every = np.concatenate([np.empty(0, edges.dtype), *(some for _, some in shown)])
    earlier, later = found.other.pick(rows[every["earlier"]]), found.own.pick(rows[every["later"]])
    return [
        {
            "limit": limit,
            "removed": len(pairs.keep_first(limit).removed),
            "pairs": [
                {"cosine": cosine, "texts": [earlier.get(rows[a]), later.get(rows[b])]}
                for a, b, cosine in some.tolist()
            ],
        }
        for limit, some in shown
    ]


def describe_groups(found: Duplicates, own: ComparedTexts, other: ComparedTexts) -> list[dict[str, Any]]:
    """Return each kept text with the texts removed for it, the largest group first; ``size``: of texts of ``own``."""
    groups, cosine = found.groups(), dict(zip(found.removed.tolist(), found.cosine.tolist(), strict=True))
    first, rest = other.pick(found.of), own.pick(found.removed)
    return [
        {
            **other.name_row(kept),
            "text": first.get(kept),
            "size": len(removed) + (other is own),
            "removed": [own.name_row(place) | {"text": rest.get(place), "cosine": cosine[place]} for place in removed],
        }
        for kept, *removed in (group.tolist() for group in groups)
    ]


def tabulate(found: Duplicates, own: ComparedTexts, other: ComparedTexts) -> dict[str, list[Any]]:
    """Return the columns of OUT, by row; ids only if the input has them."""
    order = np.argsort(found.removed, kind="stable")
    removed, of = found.removed[order], found.of[order]
    columns = {"row": own.numbers[removed].tolist()}
    if own.id_field is not None:
        columns["id"] = [own.ids[place] for place in removed.tolist()]
    columns["kept_row"] = other.numbers[of].tolist()
    if own.id_field is not None and other.id_field is not None:
        columns["kept_id"] = [other.ids[place] for place in of.tolist()]
    return columns | {"cosine": found.cosine[order].tolist(), "exact": found.exact[order].tolist()}


def check_table(target: Path) -> None:
    """Raise a UsageError unless ``target`` can be written as a table."""
    if target.suffix not in TABLE:
        raise UsageError(f"{target}: unknown suffix {target.suffix!r}; the output can be {', '.join(TABLE)}")
    if target.suffix == ".parquet":
        try:
            import pyarrow as pyarrow
        except ImportError as error:
            raise missing_extra("parquet", str(error.name), str(target)) from None


def write_table(columns: Mapping[str, Sequence[Any]], target: Path, state: State | None) -> None:
    """Write columns of equal length; into a .db as the table ``duplicates``."""
    rows = list(zip(*columns.values(), strict=True))
    try:
        if target.suffix == ".db":
            before = target.stat() if target.exists() else None
            with closing(sqlite3.connect(target)) as db, db:
                create_duplicates(db, target, list(columns))
                db.executemany(f"INSERT INTO {DUPLICATES} VALUES ({', '.join('?' * len(columns))})", rows)  # noqa: S608
            renew_run(target, before)
            return
        replace_bytes(target, _encode(columns, rows, target.suffix))
        if state is not None:
            state.done(target, len(rows))
    except OSError as error:
        raise cannot_write(target, error) from error
    except sqlite3.Error as error:
        raise FastflowError(f"{target} cannot be written: {error}; choose another output with -o") from error


def _encode(columns: Mapping[str, Sequence[Any]], rows: list[tuple[Any, ...]], suffix: str) -> bytes:
    if suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        data = pyarrow.BufferOutputStream()
        parquet.write_table(pyarrow.table(dict(columns)), data)
        return bytes(data.getvalue().to_pybytes())
    out = io.StringIO(newline="")
    if suffix == ".csv":
        writer = csv.writer(out)
        writer.writerow(columns)
        writer.writerows([json.dumps(v) if isinstance(v, bool) else v for v in row] for row in rows)
    else:
        out.writelines(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n" for row in rows)
    return out.getvalue().encode("utf-8")
