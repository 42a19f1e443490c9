"""The open-loop generator: every request is accounted for, and its time counts from when it was due."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from contextlib import suppress

import pytest

from fastflow.bench.measure.load import Outcome, Plan, generate, main


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
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await generate(Plan(port, "/embed", **plan))

    return asyncio.run(run())


def test_every_request_is_answered_and_timed():
    found = load(bodies=("{}", '"busy"'), rate=2000.0, count=60, connections=60)
    assert (found.count(), found.count("429"), found.unsent, found.lost) == (30, 30, 0, 0)
    assert len(found.late_ms) == 60
    assert found.quantile(0.5) >= 1.0
    assert found.quantile(0.5, "503") is None
    assert found.seconds >= 59 / 2000


def test_what_finds_no_connection_is_counted():
    found = load(bodies=("{}",), rate=100_000.0, count=200, connections=1)
    assert found.unsent > 0
    assert found.count() + found.unsent == 200


def test_a_connection_that_ends_is_counted():
    found = load(bodies=('"leave"',), rate=1000.0, count=3, connections=5)
    assert (found.count(), found.lost) == (0, 3)


def test_time_counts_from_the_moment_a_request_was_due():
    found = load(bodies=("{}",), rate=1e6, count=50, connections=50)  # all due at once, sent one by one
    for late, whole in zip(sorted(found.late_ms), sorted(found.answered_ms["200"]), strict=True):
        assert whole >= late


def test_a_plan_comes_in_and_its_outcome_goes_out_as_json(monkeypatch, capsys):
    plan = {"port": 1, "path": "/", "bodies": ["{}"], "rate": 5.0, "count": 10}
    assert Plan(**plan).seconds == 2.0
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(plan)))
    with pytest.raises(ConnectionRefusedError):
        main()
    assert capsys.readouterr().out == ""


def test_the_lead_is_sent_and_not_timed():
    found = load(bodies=("{}", '"busy"'), rate=2000.0, count=60, connections=60, lead=20)
    assert (found.count(), found.count("429"), len(found.late_ms)) == (20, 20, 40)
    assert found.ended == {"200": 30, "429": 30}


def test_the_losses_of_the_lead_are_not_counted():
    found = load(bodies=('"leave"',), rate=1000.0, count=3, connections=5, lead=2)
    assert (found.lost, found.ended) == (1, {"": 3})
    found = load(bodies=("{}",), rate=100_000.0, count=200, connections=1, lead=150)
    assert found.count() + found.unsent == 50
    assert sum(found.ended.values()) == 200
