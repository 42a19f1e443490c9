"""The runs that write a file, as subjects of one contract, and ways to disturb them between two blocks."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from fastflow import Runtime
from fastflow.files import embed
from fastflow.files.write.outputs import WRITERS, OutputFile, writer_for

from support.builders import make_sentences
from support.commands import run
from support.matrices import make_vectors

SIZE = 8  # rows of a block
ROWS = 70  # of an input; a shard of 35 rows has four blocks and a part of one
SENTENCES = make_sentences(ROWS)
TEXTS = [*SENTENCES[:30], "", *SENTENCES[:8], "dog " * 80, *SENTENCES[40:]]  # some come again; one is empty, one cut
VECTORS = make_vectors(ROWS)


@dataclass(frozen=True)
class Subject:
    """A run: the words of its command but for model and output, and the formats that it can write."""

    name: str
    words: tuple[str, ...]
    suffixes: tuple[str, ...] = tuple(WRITERS)
    rows: range = range(ROWS)

    @property
    def inputs(self) -> list[str]:
        return [word for word in self.words if word.endswith((".jsonl", "in.npy"))]

    def command(self, model: Path, target: Path) -> list[str]:
        """All words; ids and fields are kept if the format has a place for them."""
        keeps = writer_for(target).keeps_fields and self.words[0] == "embed"
        kept = ["--id-field", "key", "--keep", "n,title"] if keeps else []
        return [*self.words, *kept, "-m", str(model), "-o", str(target)]

    def wanted(self, model: Path, **options: Any) -> np.ndarray:
        with Runtime(model) as runtime, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of the text that is cut
            if self.words[0] == "transform":
                return runtime.transform(VECTORS, **options)[self.rows]
            return runtime.encode(TEXTS, **options)[self.rows]


SUBJECTS = [
    Subject("embed", ("embed", "in.jsonl")),
    Subject("inputs", ("embed", "b.jsonl", "a.jsonl", "c.jsonl")),
    Subject("shard", ("embed", "in.jsonl", "--shard", "2/2"), rows=range(ROWS // 2, ROWS)),
    Subject("dedupe", ("embed", "in.jsonl", "--dedupe")),
    Subject("cache", ("embed", "in.jsonl", "--cache", "c.cache")),
    Subject("only-new", ("embed", "in.jsonl", "--cache", "c.cache", "--only-new")),
    Subject("transform", ("transform", "in.npy"), (".npy",)),
]


def cases(subjects: list[Subject]) -> list[Any]:
    """Every subject with each of its formats; reused vectors in all formats are slow cases."""
    found = []
    for each in subjects:
        for suffix in each.suffixes:
            slow = each.name in ("dedupe", "cache", "only-new") and suffix != each.suffixes[0]
            found.append(pytest.param((each, suffix), id=f"{each.name}{suffix}", marks=[pytest.mark.slow] * slow))
    return found


@dataclass
class Desk:
    """A folder with the inputs of every subject, which is the working directory, and runs of ``subject`` in it."""

    folder: Path
    subject: Subject
    model: Path
    suffix: str

    @property
    def target(self) -> Path:
        return self.folder / "out" / f"x{self.suffix}"

    @property
    def partial(self) -> Path:
        return self.target.with_name(self.target.name + ".partial")

    def run(self, *options: str) -> Result:
        return run(*self.subject.command(self.model, self.target), "--quiet", *options)

    def whole(self) -> bytes:
        """The bytes of a run that nobody disturbs, which is removed again."""
        assert (done := self.run()).exit_code == 0, done.stderr
        content = self.target.read_bytes()
        self.clear()
        return content

    def clear(self) -> None:
        shutil.rmtree(self.target.parent)
        self.target.parent.mkdir()
        (self.folder / "c.cache").unlink(missing_ok=True)

    def left(self) -> list[str]:
        """The files beside the outputs, without the manifest of a shard or the record of a run with --resume."""
        ends = (".shard.json", ".run.json")
        return sorted(path.name for path in self.target.parent.iterdir() if not path.name.endswith(ends))


def desk_of(folder: Path, subject: Subject, model: Path, suffix: str, patch: pytest.MonkeyPatch) -> Desk:
    patch.chdir(folder)
    patch.setattr(embed, "WINDOW", SIZE)
    patch.setattr(embed, "ROWS", SIZE)
    (folder / "out").mkdir()
    fields = [{"n": i if i > 4 else f"n{i}", "title": f"ü{i}"} for i in range(ROWS)]  # n is text in early rows alone
    lines = [json.dumps({"key": f"k{i}", "text": TEXTS[i], **more}) for i, more in enumerate(fields)]
    parts = {"in": lines, "b": lines[:20], "a": lines[20:55], "c": lines[55:]}
    for name, part in parts.items():
        (folder / f"{name}.jsonl").write_text("".join(line + "\n" for line in part))
    np.save(folder / "in.npy", VECTORS)
    return Desk(folder, subject, model, suffix)


def before_block(patch: pytest.MonkeyPatch, seen: Callable[[int], object]) -> None:
    """Call ``seen(number)`` before a block of rows is written; the number counts the blocks from 0."""
    plain, numbers = OutputFile.write, count()

    def write(self, block):
        if len(block.rows):
            seen(next(numbers))
        plain(self, block)

    patch.setattr(OutputFile, "write", write)


@contextmanager
def stopped_at(block: int, error: BaseException | None = None) -> Iterator[None]:
    """Runs inside end with ``error``, without one with Ctrl-C, before they write ``block``."""

    def stop(number: int) -> None:
        if number == block:
            raise error or KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        before_block(patch, stop)
        yield


def interrupted(desk: Desk, block: int, *options: str, error: BaseException | None = None) -> Result:
    with stopped_at(block, error):
        done = desk.run(*options)
    assert done.exit_code != 0
    return done


def check_parts(suffix: str, of: int, *words: object) -> Result:
    """Check that ``of`` parts of a command join to the bytes of one run; returns what merging said.

    Leaves whole.SUFFIX, parts/NUMBER.SUFFIX and out.SUFFIX in the working directory.
    """
    assert (done := run(*words, "--quiet", "-o", f"whole{suffix}")).exit_code == 0, done.stderr
    for number in range(1, of + 1):
        part = run(*words, "--quiet", "--shard", f"{number}/{of}", "-o", f"parts/{number}{suffix}")
        assert part.exit_code == 0, part.stderr
    result = run("merge", "parts", "-o", f"out{suffix}")
    assert result.exit_code == 0, result.stderr
    assert Path(f"out{suffix}").read_bytes() == Path(f"whole{suffix}").read_bytes()
    return result
