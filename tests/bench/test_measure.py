"""The parts of a measurement: one comparison, its clock and load, the machine, and rows of the JSON."""

import asyncio
import json
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fastflow.bench.measure.compare import Candidate, Errors, check, check_cosine, compare
from fastflow.bench.measure.load import Load, Outcome, generate
from fastflow.bench.measure.machine import Neighbours, add_floors, describe, measure_ceilings
from fastflow.bench.measure.row import ADDED, BYTES, KEYS, Results, Subject, keeping, make_row
from fastflow.bench.measure.timing import Effort, alternate, count_calls, cuda_watch, summarise, take_turns
from fastflow.errors import FastflowError
from fastflow.kernels.encoder import WORDS

from support.packed import random_encoder
from support.places import ROOT

pytest.importorskip("fastflow.kernels._cpu", reason="the compiled CPU kernels are not built")
KEPT = ROOT / "bench" / "results"
STUDIES = ("ladder",)  # timed too, but in rows of its own


def candidate(name: str, dtype: str = "float32") -> Candidate:
    return Candidate(name, dtype, "x")


def admit(found: Candidate) -> tuple:
    if found.name == "wrong":
        raise FastflowError("wrong differs")
    return (lambda: found.name), len(found.name)


def run(candidates: list, excuse: object) -> tuple:
    timed, left_out = [], []

    def timer(calls: dict) -> dict:
        timed.append(list(calls))
        return {key: call() for key, call in calls.items()}

    measured = compare(candidates, admit, timer, excuse, lambda c, reason: left_out.append((c.key, reason)))
    return [(found.key, accuracy, timing) for found, accuracy, timing in measured], timed, left_out


def test_who_is_excused_is_left_out_and_the_others_are_timed_together():
    four = [candidate("ours"), candidate("wrong"), candidate("peer"), candidate("peer", "int8")]
    measured, timed, left_out = run(four, lambda c, error: f"since {error}")
    assert measured == [("ours float32", 4, "ours"), ("peer float32", 4, "peer"), ("peer int8", 4, "peer")]
    assert timed == [["ours float32", "peer float32", "peer int8"]]
    assert left_out == [("wrong float32", "since wrong differs")]
    with pytest.raises(FastflowError, match="wrong differs"):
        run(four, lambda c, error: None)


def test_a_wrong_result_is_an_error_not_a_row():
    exact = np.random.default_rng(0).standard_normal((4, 8))
    unfused = Errors(1e-7, 1e-7)
    right = exact.astype(np.float32)
    assert check("right", right, exact, unfused).relative_err <= 1e-7
    wrong, missing = right.copy(), right.copy()
    wrong[2, 3] += 1e-3
    missing[0, 0] = np.nan
    for z in (wrong, missing, right[:, :7]):
        with pytest.raises(FastflowError, match="bench: broken"):
            check("broken", z, exact, unfused)
    found = check("ill conditioned", wrong, exact, Errors(1e-3, 1e-3))
    assert found.max_abs_err == pytest.approx(1e-3, rel=1e-3)
    assert found.relative_err <= 4e-3


def test_cosine_bounds_by_precision():
    exact = np.eye(2)
    tilted = exact + np.array([[0, 0.03], [0, 0]])
    assert check_cosine("a", "int8", tilted, exact) == pytest.approx(1 / np.sqrt(1 + 0.03**2))
    assert check_cosine("a", "bfloat16", tilted, exact) >= 0.999
    with pytest.raises(FastflowError, match="a float32 differs"):
        check_cosine("a", "float32", tilted, exact)
    for wrong in (exact[:, :1], np.full((2, 2), np.nan)):
        with pytest.raises(FastflowError, match="bench: a int8"):
            check_cosine("a", "int8", wrong, exact)


class FakeTime:
    """A clock that only work moves: ``costs`` gives the seconds of one call by name."""

    def __init__(self, costs: dict[str, float]) -> None:
        self.now, self.log, self.pauses = 0.0, [], 0
        self.calls = {name: lambda name=name, cost=cost: self.work(name, cost) for name, cost in costs.items()}

    def work(self, name: str, seconds: float) -> None:
        self.now += seconds
        self.log.append(name)

    def watch(self, call: object, calls: int) -> float:
        start = self.now
        for _ in range(calls):
            call()
        return self.now - start

    def pause(self, seconds: float) -> None:
        self.pauses += 1
        self.log.append("|")


def run_alternate(time: FakeTime, effort: Effort) -> dict:
    return alternate(time.calls, effort, time.watch, lambda: time.now, time.pause)


def test_candidates_take_turns_and_every_other_round_goes_backwards():
    time = FakeTime({"a": 1e-4, "b": 3e-3, "c": 0.2})
    timings = run_alternate(time, Effort(budget_s=0, min_runs=4, max_runs=9, sample_s=2e-3))
    samples = [part for part in "".join(time.log).split("|")[1:] if part]
    assert [part[0] for part in samples] == list("abccbaabccba")
    assert all(len(set(part)) == 1 for part in samples)  # nobody runs inside another's sample
    assert {name: timing.calls_per_run for name, timing in timings.items()} == {"a": 20, "b": 1, "c": 1}
    assert {len(part) for part in samples if part[0] == "a"} == {25}  # a quarter untimed, then the sample
    assert {len(part) for part in samples if part[0] == "b"} == {2}
    assert [len(part) for part in samples if part[0] == "c"] == [2, 1, 1, 1]  # too long to be warmed up every time
    assert {timing.runs for timing in timings.values()} == {4}
    assert [timings[name].median_ms for name in "abc"] == pytest.approx([0.1, 3.0, 200.0])
    assert time.pauses == 12


def test_the_budget_ends_the_rounds_but_not_before_min_runs_nor_beyond_max_runs():
    def runs(**limits: float) -> int:  # calls of one second, nothing else costs time
        return run_alternate(FakeTime({"a": 1.0}), Effort(sample_s=0, **limits))["a"].runs

    assert runs(budget_s=6.5, min_runs=2, max_runs=99) == 7
    assert runs(budget_s=0, min_runs=2, max_runs=99) == 2
    assert runs(budget_s=1e9, min_runs=2, max_runs=5) == 5
    assert runs(budget_s=0, min_runs=9, max_runs=99, limit_s=2.5) == 3
    assert runs(budget_s=0, min_runs=9, max_runs=99, limit_s=0) == 1
    assert run_alternate(FakeTime({}), Effort()) == {}


def test_a_sample_has_as_many_calls_as_fill_it():
    time, delays = FakeTime({"a": 9.0}), [5e-3]  # the first call is held up
    assert count_calls(time.calls["a"], time.watch, 0) == 1
    assert time.log == [], "which costs no call"
    call = lambda: time.work("a", 1e-5 + (delays.pop() if delays else 0.0))  # noqa: E731
    assert count_calls(call, time.watch, 1e-3) == 100
    timing = summarise([0.005, 0.001, 0.003, 0.002, 0.004, 0.006], 7)
    assert (timing.p20_ms, timing.median_ms, timing.p80_ms) == pytest.approx((2.0, 3.5, 5.0))
    assert (timing.runs, timing.calls_per_run) == (6, 7)


def test_turns_are_warmed_up_once_or_before_each_call():
    """Single calls: everybody on each input, every other round backwards."""
    log = []
    calls = {name: lambda given, name=name: log.append(name + given) for name in "ab"}
    assert {name: len(taken) for name, taken in take_turns(calls, ["1", "2"]).items()} == {"a": 2, "b": 2}
    assert log == ["a1", "b1", "b1", "a1", "a2", "b2"]
    log.clear()
    assert len(take_turns(calls, ["1", "2"], wake=True)["a"]) == 2
    assert log == ["a1", "a1", "b1", "b1", "b2", "b2", "a2", "a2"]


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server of one connection that answers in two parts; 429 to every body that says so."""
    with suppress(asyncio.IncompleteReadError):  # the generator has closed: there are no more requests
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            body = await reader.readexactly(length)
            if b"leave" in body:
                break
            status = b"429 Too Many Requests" if b"busy" in body else b"200 OK"
            writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 4\r\n\r\nde")
            await writer.drain()
            await asyncio.sleep(0.001)
            writer.write(b"ad")
    writer.close()


def load(**plan) -> Outcome:
    async def run() -> Outcome:
        served: list[asyncio.Task | None] = []

        async def tracked(*streams) -> None:
            served.append(asyncio.current_task())
            await answer(*streams)

        async with await asyncio.start_server(tracked, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            found = await generate(Load(port, "/embed", **plan))
            _, open_still = await asyncio.wait(served, timeout=5)
            assert not open_still, "the generator closes its connections"
        return found

    return asyncio.run(run())


ANSWERED = {"bodies": ("{}", '"busy"'), "rate": 2000.0, "count": 60, "connections": 60}
CROWDED = {"bodies": ("{}",), "rate": 100_000.0, "count": 200, "connections": 1}
LEFT = {"bodies": ('"leave"',), "rate": 1000.0, "count": 3, "connections": 5}


def test_every_request_is_accounted_for():
    found = load(**ANSWERED)
    assert (found.count(), found.count("429"), found.unsent, found.lost) == (30, 30, 0, 0)
    assert len(found.late_ms) == 60
    assert found.quantile(0.5) >= 1.0
    assert found.quantile(0.5, "503") is None
    assert found.seconds >= 59 / 2000
    found = load(**CROWDED)
    assert found.unsent > 0
    assert found.count() + found.unsent == 200
    found = load(**LEFT)
    assert (found.count(), found.lost) == (0, 3)


def test_time_counts_from_the_moment_a_request_was_due():
    found = load(bodies=("{}",), rate=1e6, count=50, connections=50)  # all due at once, sent one by one
    pairs = zip(sorted(found.late_ms), sorted(found.answered_ms["200"]), strict=True)
    assert all(whole >= late for late, whole in pairs)


def test_the_lead_is_sent_and_neither_timed_nor_counted():
    found = load(**ANSWERED, lead=20)
    assert (found.count(), found.count("429"), len(found.late_ms)) == (20, 20, 40)
    assert found.ended == {"200": 30, "429": 30}
    found = load(**LEFT, lead=2)
    assert (found.lost, found.ended) == (1, {"": 3})
    found = load(**CROWDED, lead=150)
    assert found.count() + found.unsent == 50
    assert sum(found.ended.values()) == 200


def test_the_machine_is_described_without_names_or_paths():
    machine = describe()
    assert machine["processors_usable"] >= 1
    assert machine["versions"]["torch"] == torch.__version__
    assert str(Path.home()) not in json.dumps(machine)
    assert not any("host" in key or "node" in key for key in machine)


def test_what_others_use_is_what_we_do_not(monkeypatch):
    stat = ["cpu  100 10 20 900 5 1 1 3 0 0", "cpu  250 10 20 950 5 1 1 3 0 0"]  # hundredths of a second
    times = [(0.5, 0.0, 0.0, 0.0, 100.0), (0.6, 0.2, 0.1, 0.1, 102.0)]
    monkeypatch.setattr("fastflow.bench.measure.machine.read_text", lambda path: stat.pop(0))
    monkeypatch.setattr("fastflow.bench.measure.machine.os.times", lambda: os.times_result(times.pop(0)))
    monkeypatch.setattr("fastflow.bench.measure.machine.os.sysconf", lambda name: 100)
    assert Neighbours().processors() == pytest.approx((1.5 - 0.5) / 2)
    monkeypatch.undo()
    monkeypatch.setattr("fastflow.bench.measure.machine.read_text", lambda path: "")
    assert Neighbours().processors() is None


def test_each_row_of_a_kept_file_is_a_row_and_every_field_is_published():
    kept = {path.stem: path.read_text(encoding="utf-8") for path in KEPT.rglob("*.json")}
    timed = {name for name, text in kept.items() if "median_ms" in text}
    assert timed >= set(STUDIES)
    rows = [row for name in timed - set(STUDIES) for row in json.loads(kept[name])["rows"]]
    assert {row["suite"] for row in rows} == set(KEYS)
    assert all(list(make_row(**row).items()) == list(row.items()) for row in rows)
    assert all(len(set(keys)) == len(keys) for keys in (*KEYS.values(), ADDED))
    with pytest.raises(TypeError, match="no field of the suite flow: texts_per_s"):
        make_row("flow", texts_per_s=1.0)


def test_the_work_of_a_batch_is_that_counted_by_hand():
    _, shape = random_encoder(0, 2, 8, 2, 20)
    subject = Subject("x", None, Path("e"), (1, 2), 64, shape, Path("f"))
    assert subject.depth == 2
    assert subject.matrix_weights() == 2 * (4 * 8 * 8 + 2 * 8 * 20)  # four squares and two rectangles a layer
    gated = replace(subject, shape=shape._replace(gated=True))
    assert gated.matrix_weights() == 2 * (4 * 8 * 8 + 3 * 8 * 20)
    for batch, tokens in ((1, 1), (3, 5)):
        products = batch * tokens * subject.matrix_weights()
        attention = batch * 2 * (tokens * tokens * 8) * subject.depth  # scores, and their weighted sums
        assert subject.flop(batch, tokens) == 2 * (products + attention)
    assert replace(subject, layers=(WORDS,)).flop(3, 5) == 0  # pooled from tables
    weighted = replace(subject, weights=[1.0])
    assert weighted == subject
    assert "weights" not in repr(weighted)
    assert BYTES["float32"] == 2 * BYTES["bfloat16"] == 4 * BYTES["int8"]


def a_row(batch):
    return make_row("flow", subject="s", name="n", batch=batch, **summarise([0.5])._asdict())


def test_a_run_that_is_stopped_leaves_its_rows_and_no_other_runs(tmp_path):
    path = tmp_path / "x.json.part"
    path.write_text('{"batch": 7}\n')
    with suppress(KeyboardInterrupt), keeping(path):
        Results().add([a_row(1), a_row(2)])
        raise KeyboardInterrupt
    assert [json.loads(line)["batch"] for line in path.read_text().splitlines()] == [1, 2]
    with keeping(path):
        Results().add([a_row(3)])
        assert path.is_file()
    assert not path.exists()
    with keeping(None):
        Results().add([a_row(4)])
    assert list(tmp_path.iterdir()) == []


def test_a_row_gets_its_floor_from_the_nearer_ceiling():
    row = {"threads": 2, "median_ms": 4.0}
    rows = [
        row | {"dtype": "float32", "gflops": 50.0, "gbs": 1.0},  # half the products of a second
        row | {"dtype": "float32", "gflops": 1.0, "gbs": 5.0},  # a quarter of the reads
        row | {"dtype": "tf32x3", "gflops": 50.0, "gbs": 1.0},  # three products each
        row | {"dtype": "int8", "gflops": 50.0, "gbs": 5.0},  # an unknown rate
        row | {"dtype": "float32", "threads": 1, "gflops": 50.0, "gbs": 1.0},
    ]
    add_floors(rows, {"threads": 2, "gflops": {"float32": 100.0, "tf32": 300.0}, "gbs": {"reads": 20.0}})
    assert [row.get("times_floor") for row in rows] == [2, 4, 2, None, None]
    assert [row.get("floor_ms") for row in rows] == [2, 1, 2, None, None]


def test_ceilings_are_measured():
    found = measure_ceilings("cpu", 1, seconds=0.001, side=64)
    assert found["threads"] == 1
    assert found["gflops"]["float32"] == found["sgemm_gflops"] > 0.01
    assert found["gbs"]["reads"] > 0.01


def test_the_time_of_a_gpu_is_in_seconds(monkeypatch):
    class Event:
        def __init__(self, enable_timing):
            self.record = lambda: None

        def elapsed_time(self, other):
            return 2500.0  # milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert cuda_watch(lambda: None, 3) == 2.5
