"""Hashes of a model's files, computed while it opens."""

import threading

from fastflow.late import start_thread


def test_without_a_thread_the_work_is_done_at_once(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    done = []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    wait = start_thread(lambda: done.append(1), "x")
    assert done == [1]
    wait()
    assert done == [1]
