"""The commands of docs/serve.md that need a server run against one, on the port that it has here."""

from __future__ import annotations

import re

import pytest

from fastflow.serve.metrics import COUNTERS
from fastflow.serve.settings import MIB, Settings

from support.places import ROOT, USERS
from support.processes import run_limited
from support.servers import serving_process

NO_COUNTERS = ("fastflow_queue_seconds", "fastflow_tokens_per_second", "fastflow_search_duration")
PAGE = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.S | re.M)


@pytest.mark.slow
def test_every_curl_of_the_page_is_answered(tmp_path):
    commands = [line for block in blocks("console") for line in block.splitlines()]
    assert len(commands) >= 6
    with serving_process(folder=tmp_path) as server:
        for command in commands:
            assert "127.0.0.1:8080" in command
            command = command.replace("curl -s", "curl -sf").replace("127.0.0.1:8080", f"{server.host}:{server.port}")
            done = run_limited(["bash", "-c", command], cwd=tmp_path, env=USERS, seconds=60)
            assert done.returncode == 0, command
    assert (tmp_path / "vector.f32").stat().st_size == 256 * 4


def test_the_program_is_python():
    programs = blocks("py")
    assert programs
    for program in programs:
        assert compile(program, "docs/serve.md", "exec").co_names


def test_the_limits_are_the_defaults():
    settings = Settings()
    for words in (
        f"| {settings.max_queue:g} s | 429", f"| {settings.timeout:g} s | 503", f"| {settings.max_inputs} |",
        f"| {settings.max_body // MIB} MiB | 413", f"| {settings.max_bodies // MIB} MiB | 429",
        f"| {settings.max_connections} | 503", f"| {settings.receive:g} s | 408",
        f"| {settings.max_header // 1024} KiB | 431", f"| {settings.send:g} s |", f"up to {settings.drain:g} s",
    ):  # fmt: skip
        assert words in PAGE, words


@pytest.mark.parametrize("name", [name for name in re.findall(r"`(fastflow_\w+)`", PAGE) if not name.isupper()])
def test_the_metrics_are_there(name):
    assert name in COUNTERS or name in NO_COUNTERS
