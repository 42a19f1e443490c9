"""The loop of a run: interrupted at any block and continued, its file has the bytes of a run that was not."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import pytest

from fastflow.files.run import write
from fastflow.files.write.growing import growing
from fastflow.files.write.partial import State
from fastflow.files.write.printing import Block, StandardOutput
from fastflow.files.write.writers import writer_for
from fastflow.progress import Progress

from support.outputs import META, block, vectors_of

VECTORS = vectors_of("float32", rows=17)
SIZE = 4  # rows of a block


class Rows:
    """The rows of VECTORS; an interruption before the block of number ``stop``."""

    def __init__(self, finished: int = 0, stop: int | None = None) -> None:
        self.finished, self.stop = finished, stop

    def before(self, rows: int) -> Iterator[Block]:
        assert rows == self.finished
        yield Block(range(rows), [f"text {i}" for i in range(rows)], None, np.zeros((0, 0)))

    def empty(self) -> Block:
        return block(VECTORS[:0])

    def blocks(self) -> Iterator[tuple[Block, float | None]]:
        for start in range(self.finished, len(VECTORS), SIZE):
            if start // SIZE == self.stop:
                raise KeyboardInterrupt
            yield block(VECTORS[start : start + SIZE], start), (start + SIZE) / len(VECTORS)


def run(target, resume=False, stop=None) -> int:
    """A run of its own; the rows that were finished before it."""
    state = State(target, "an input", META)
    with writer_for(target)(target, META) as writer, growing(writer, state, resume) as finished:
        write(Rows(finished, stop), writer, state, finished, Progress("rows", None, "rows", shown=False))
    return finished


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".jsonl", ".safetensors"])
@pytest.mark.parametrize("stop", range(5))
def test_continued_it_is_as_if_it_had_not_stopped(tmp_path, suffix, stop):
    whole, target = tmp_path / f"whole{suffix}", tmp_path / f"out{suffix}"
    assert run(whole) == 0
    with pytest.raises(KeyboardInterrupt):
        run(target, stop=stop)
    assert not target.exists()
    assert run(target, resume=True) == stop * SIZE
    assert target.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([whole.name, target.name])


def test_standard_output_keeps_no_state(capsys):
    write(Rows(), StandardOutput(), None, 0, Progress("rows", None, "rows", shown=False))
    assert len(capsys.readouterr().out.splitlines()) == len(VECTORS)


def test_progress_follows_the_share():
    shown = io.StringIO()
    seconds = iter(range(0, 1000, 20))
    progress = Progress("rows", None, "rows", stream=shown, clock=lambda: float(next(seconds)), share=0.0)
    write(Rows(), StandardOutput(), None, 0, progress)
    assert "rows: 17 rows" in shown.getvalue()
    assert "(24 %)" in shown.getvalue()
