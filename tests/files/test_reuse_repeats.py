"""The store of --dedupe: a table on disk that finds every key and no other, in memory that does not grow."""

from __future__ import annotations

import os
import tracemalloc

import numpy as np
import pytest

from fastflow.errors import FastflowError
from fastflow.files.reuse import repeats
from fastflow.files.reuse.repeats import FULLEST, Repeats, Slots
from fastflow.files.reuse.store import KEY


def keys_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, (count, 2), np.uint64)


def test_a_table_finds_every_key_and_no_other(tmp_path):
    keys, table = keys_of(5000), Slots(tmp_path, 8)
    for start in range(0, 5000, 700):
        part = np.arange(start, min(start + 700, 5000))
        assert (table.find(keys[part]) == -1).all()
        table.add(keys[part], part)
        assert table.entries <= FULLEST * len(table._slots)
    assert np.array_equal(table.find(keys[::-1]), np.arange(5000)[::-1])
    assert (table.find(keys_of(5000, seed=1)) == -1).all()
    assert table.find(keys[:0]).shape == (0,)
    table.close()


@pytest.mark.parametrize("column", [0, 1])
def test_both_halves_of_a_key_count(tmp_path, column):
    """Keys that begin in one slot, as all that agree in their first half do."""
    keys, table = keys_of(300), Slots(tmp_path, 1024)
    keys[:, 0] = 1023  # the last slot: probing goes on at the first
    table.add(keys[:200], np.arange(200))
    assert np.array_equal(table.find(keys), [*range(200), *[-1] * 100])
    other = keys[:200].copy()
    other[:, column] ^= np.uint64(1 << 63)
    assert (table.find(other) == -1).all()
    table.close()


def test_a_key_of_zeros_is_not_a_free_slot(tmp_path):
    zeros, table = np.zeros((1, 2), np.uint64), Slots(tmp_path, 8)
    assert table.find(zeros)[0] == -1
    table.add(zeros, np.array([0]))
    assert table.find(zeros)[0] == 0
    table.close()


def test_rows_come_back_and_nothing_lies_in_the_folder(tmp_path):
    store = Repeats(tmp_path, 5)
    rows = {os.urandom(KEY): os.urandom(5) for _ in range(1000)}
    listed = list(rows)
    assert store.find(listed) == {}
    store.add({key: rows[key] for key in listed[:600]})
    store.add({})
    store.add({key: rows[key] for key in listed[600:900]})
    assert store.find(listed[::-1]) == {key: rows[key] for key in listed[:900]}
    assert list(tmp_path.iterdir()) == []  # nothing to be left by a process that is killed
    store.close()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_texts(tmp_path, monkeypatch):
    """Bytes that the interpreter and NumPy allocate, counted; four times as many texts, and the table grows twice."""
    monkeypatch.setattr(repeats, "FIRST_SLOTS", 1 << 10)

    def peak(windows: int) -> int:
        store = Repeats(tmp_path, 400)
        tracemalloc.start()
        try:
            for _ in range(windows):
                rows = {os.urandom(KEY): bytes(400) for _ in range(500)}
                assert store.find(list(rows)) == {}
                store.add(rows)
            assert len(store.find(list(rows))) == 500
            assert store._table.entries == 500 * windows
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            store.close()

    monkeypatch.setattr(repeats, "MOVED", 1 << 9)
    peak(2)
    few, many = peak(20), peak(80)
    assert many <= 1.02 * few + 20_000, (
        "a text more must not cost a byte more; 30,000 more texts are 720,000 entries' bytes"
    )


@pytest.mark.parametrize("at", ["table", "rows"])
def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch, at):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    if at == "table":
        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(FastflowError, match=r"temporary file of --dedupe\) cannot be written: No space left on"):
            Repeats(tmp_path, 5)
    else:
        store = Repeats(tmp_path, 5)
        monkeypatch.setattr(store._table, "add", full)
        with pytest.raises(FastflowError, match="No space left on device; free some space or choose another place"):
            store.add({bytes(KEY): bytes(5)})
        store.close()


def test_a_file_that_lost_its_end_is_an_error(tmp_path):
    store = Repeats(tmp_path, 5)
    store.add({bytes(KEY): bytes(5)})
    store._rows.truncate(3)
    with pytest.raises(FastflowError, match="was cut short"):
        store.find([bytes(KEY)])
    store.close()
