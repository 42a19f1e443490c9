"""A file that is changed while it is mapped: an error, and zeros where the process would end by SIGBUS."""

from __future__ import annotations

import mmap
import os
import sys

import numpy as np
import pytest

from fastflow.kernels.stored import was_changed, watch

PAGE = mmap.PAGESIZE


def map_sevens(path, count=8):
    """A watched buffer, as an array, of a file of ``count`` pages of sevens."""
    path.write_bytes(b"\7" * count * PAGE)
    os.utime(path, (1, 1))  # else a change within the same tick of the system's clock would have the same time
    with path.open("rb") as handle:
        pages = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(watch(pages, handle.fileno()), np.uint8)


def test_a_whole_file_is_read_as_it_is(tmp_path):
    array = map_sevens(tmp_path / "a")
    assert (array == 7).all()
    assert not array.flags.writeable
    assert not was_changed(array)
    assert not was_changed(np.zeros(3))


def test_lost_pages_read_as_zeros_and_are_noticed(tmp_path):
    array = map_sevens(tmp_path / "a").reshape(8, PAGE)
    rows = array[:, 1:]  # a view of a view
    os.truncate(tmp_path / "a", 3 * PAGE)
    assert (array[:3] == 7).all()
    assert (array[5] == 0).all()
    assert was_changed(rows)
    assert was_changed(array)
    assert (array[3:] == 0).all()
    assert (array[:3] == 7).all()


def test_the_end_of_a_page_is_noticed_without_a_signal(tmp_path):
    array = map_sevens(tmp_path / "a")
    os.truncate(tmp_path / "a", 8 * PAGE - 5)
    assert (array[-5:] == 0).all()
    assert was_changed(array)


def test_writing_in_place_is_noticed(tmp_path):
    array = map_sevens(tmp_path / "a")
    with (tmp_path / "a").open("r+b") as file:
        file.write(b"\7")  # the same, as far as one can see
        assert not was_changed(array)  # it is not in the file yet
    assert was_changed(array)


def test_a_file_that_is_replaced_or_renamed_is_not_changed(tmp_path):
    array = map_sevens(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "c").write_bytes(b"\1")
    (tmp_path / "c").replace(tmp_path / "b")
    assert not was_changed(array)


def test_once_cut_is_always_cut(tmp_path):
    array = map_sevens(tmp_path / "a")
    os.truncate(tmp_path / "a", PAGE)
    assert array[-1] == 0
    os.truncate(tmp_path / "a", 8 * PAGE)
    assert was_changed(array)


def test_a_file_of_its_own_beside_one_that_was_cut(tmp_path):
    kept, other = map_sevens(tmp_path / "kept"), map_sevens(tmp_path / "other")
    os.truncate(tmp_path / "other", 0)
    assert other.sum() == 0
    assert was_changed(other)
    assert (kept == 7).all()
    assert not was_changed(kept)


def test_places_are_free_again(tmp_path):
    for i in range(600):
        array = map_sevens(tmp_path / "a", 1)
        if i % 100 == 0:
            os.truncate(tmp_path / "a", 0)
            assert array[9] == 0
        assert was_changed(array) == (i % 100 == 0)


OTHERS = """
import mmap, os, signal, sys
from pathlib import Path
from fastflow.kernels.stored import watch
path = Path("a")
path.write_bytes(bytes(4 * mmap.PAGESIZE))
with path.open("rb") as handle:
    ours, theirs = (mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) for _ in range(2))
    kept = watch(ours, handle.fileno())
os.truncate(path, 0)
print(memoryview(kept)[0], flush=True)
theirs[0]
"""


@pytest.mark.slow
def test_a_map_that_is_not_ours_ends_the_process_as_before(run_python):
    done = run_python(OTHERS)
    assert done.stdout == "0\n", done.stderr
    assert done.returncode == -7 if sys.platform == "linux" else done.returncode < 0
