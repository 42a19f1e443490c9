"""Locks on files that are replaced meanwhile."""

from __future__ import annotations

import os

from fastflow.files.reuse import cache
from fastflow.files.write import locks

KEYS = ["a" * 64, "b" * 64, "c" * 64]


def test_a_file_replaced_while_it_is_waited_for_is_not_taken_for_the_new_one(tmp_path, monkeypatch):
    path, waited = tmp_path / f"{KEYS[0]}.partial", []
    with cache.locked(path, lambda: None) as first:
        os.write(first.fileno(), b"first")

        def end(seconds):
            path.rename(tmp_path / "done")

        monkeypatch.setattr(cache.time, "sleep", end)
        with cache.locked(path, lambda: waited.append(1)) as second:
            assert os.fstat(second.fileno()).st_size == 0
    assert waited == [1]
    assert (tmp_path / "done").read_bytes() == b"first"


def test_a_file_replaced_between_opening_and_locking_is_let_go_of(tmp_path, monkeypatch):
    path, lock = tmp_path / f"{KEYS[0]}.partial", locks.try_lock

    def late(handle):
        if not (tmp_path / "done").exists():
            path.rename(tmp_path / "done")
        return lock(handle)

    monkeypatch.setattr(locks, "try_lock", late)
    with cache.locked(path, lambda: None) as handle:
        assert os.path.samestat(os.fstat(handle.fileno()), os.stat(path))
