"""The watcher of a long run: windows between records of rows, pauses apart, a process that ends with its watcher."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import pytest

from fastflow.bench.research.watched import LOOK, Look, Windows, look, resident_mb, watch
from fastflow.errors import FastflowError


def windows_of(seen: list[tuple[float, int | None, Look]], every: float = 10.0) -> tuple[list[dict], Windows]:
    found: list[dict] = []
    windows = Windows(every, found.append)
    for each in seen:
        windows.see(*each)
    return found, windows


def busy(now: float, memory: float = 50.0, stopped: bool = False) -> Look:
    return Look(memory, 2 * now, 2.5 * now, stopped)


def test_windows_begin_and_end_at_records_of_rows():
    seen = [(t, 1000 * int(t // 4) or None, busy(t)) for t in np.arange(0, 40, 0.5)]
    found, _ = windows_of(seen)
    assert [(w["rows"], w["until"], w["seconds"], w["paused"]) for w in found] == [
        (3000, 5000, 12.0, 0.0),  # from the second record on: the first may be of an earlier process
        (3000, 8000, 12.0, 0.0),
    ]
    assert [(w["processors"], w["others"]) for w in found] == [(2.0, 0.5)] * 2


@pytest.mark.parametrize("how", ["process", "watcher"])
def test_a_pause_is_no_time_of_a_window(how):
    moments = np.arange(0, 60, 0.5)
    if how == "watcher":
        moments = moments[(moments < 13) | (moments > 33)]
    seen, computed = [], 0.0
    for at, t in enumerate(moments):
        stopped = 13 <= t <= 33
        computed += 0.0 if stopped or not at or moments[at] - moments[at - 1] > 1 else 0.5
        seen.append((t, 100 * int(computed // 4) or None, busy(t, stopped=stopped)))
    found, windows = windows_of(seen)
    assert found[0]["paused"] == pytest.approx(20, abs=1.1)
    assert windows.paused == found[0]["paused"]
    rates = [w["rows"] / w["seconds"] for w in found]
    assert rates == pytest.approx([25] * len(rates), rel=0.1)


def test_a_pause_outside_windows_is_counted():
    found, windows = windows_of([(0.0, None, busy(0)), (100.0, None, busy(100))])
    assert found == []
    assert windows.paused == 100


def test_the_peak_is_that_of_the_window():
    seen = [(float(t), 1 + t // 2, busy(t, memory=100 - t)) for t in range(12)]
    found, _ = windows_of(seen, every=3)
    assert [w["peak_mb"] for w in found] == [98, 94]


def test_a_process_is_seen():
    before, held = look(os.getpid()), np.ones(10_000_000)
    now = look(os.getpid())
    assert now.memory - before.memory > 0.9 * held.nbytes / 1e6
    assert now.everybody >= now.own > 0
    assert not now.stopped
    assert look(2**22 + 1) == Look(0, 0, 0, False)
    assert resident_mb(2**22 + 1) == 0
    with subprocess.Popen(["sleep", "60"]) as process:
        process.send_signal(signal.SIGSTOP)
        while not look(process.pid).stopped:
            time.sleep(LOOK)
        process.kill()


def test_a_failure_is_named_and_logged(tmp_path):
    target, log = tmp_path / "x.npy", tmp_path / "log"
    with pytest.raises(FastflowError, match="ended with 1; the same command continues it"):
        watch(["embed", str(tmp_path / "absent.txt"), "-o", str(target), "--quiet"], target, log, 1.0)
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [event["event"] for event in events] == ["start", "stop"]
    assert events[1]["code"] == 1


def test_the_other_process_ends_with_a_watcher_that_is_killed(model, tmp_path):
    """Its input is a pipe that nobody ends."""
    os.mkfifo(tmp_path / "in.txt")
    target = tmp_path / "x.npy"
    arguments = ["embed", str(tmp_path / "in.txt"), "-m", str(model), "-o", str(target), "--quiet"]
    code = "import sys; from pathlib import Path; from fastflow.bench.research.watched import watch; "
    code += f"watch({arguments!r}, Path({str(target)!r}), Path({str(tmp_path / 'log')!r}), 1.0)"
    with subprocess.Popen([sys.executable, "-c", code]) as watcher:
        texts = os.open(tmp_path / "in.txt", os.O_WRONLY)  # when the other process reads
        os.write(texts, b"the dog\n")
        while not (partial := tmp_path / "x.npy.partial").exists() or not partial.stat().st_size:
            assert watcher.poll() is None
        watcher.kill()
        watcher.wait()
        with suppress(BrokenPipeError):
            while True:
                os.write(texts, b"the cat\n")
                time.sleep(LOOK)
        os.close(texts)
