"""``fastflow serve --search`` and its neighbourhood as a process: what it loads, refuses, and whom it answers."""

from __future__ import annotations

import re

import pytest

from fastflow.serve.page import PATHS

from support.commands import run
from support.places import ROOT, USERS
from support.processes import run_limited
from support.servers import serving, serving_process

PAGE = (ROOT / "docs" / "search.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def novels(tmp_path_factory):
    """The file of docs/search.md."""
    path = tmp_path_factory.mktemp("novels") / "novels.db"
    assert run("embed", ROOT / "examples" / "novels.txt", "-o", path, "--quiet").exit_code == 0
    return path


@pytest.mark.slow
def test_it_says_what_it_searches_and_answers_the_curl_of_the_page(novels):
    (block,) = re.findall(r"^```console\n(.*?)^```", PAGE, re.S | re.M)
    started, *asked = block.splitlines()
    started = started.removeprefix("fastflow serve ").split()
    with serving_process(*started, folder=novels.parent) as server:
        rows = server.get("/info").json["search"]["rows"]
        assert f"fastflow: searching {rows:,} rows of novels.db\n" in server.said
        assert asked
        for line in asked:
            line = line.replace("curl -s", "curl -sf").replace("127.0.0.1:8080", f"127.0.0.1:{server.port}")
            done = run_limited(["bash", "-c", line], env=USERS, seconds=60)
            assert (done.returncode, '"hits":[[' in done.stdout) == (0, True), line


@pytest.mark.slow
def test_the_help_names_every_route_and_the_page(novels):
    with serving(rate=50_000.0, search=novels) as server:
        files = set(PATHS) - {"/", "/docs"}  # of the pages
        paths = [route.path for route in server.app.routes if route.path not in files]
    said = " ".join(run("serve", "--help").stdout.split())
    for path in paths:
        assert re.search(rf"(?<![\w/]){re.escape(path)}(?![\w/])", said), path


@pytest.mark.slow
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_at_a_loopback_address_a_foreign_name_is_refused(tmp_path, host):
    with serving_process("--host", host, folder=tmp_path) as server:
        server.host = server.host.strip("[]")
        assert server.get("/info").status == 200
        assert server.get("/info", host="localhost:1").status == 200
        assert server.get("/info", host="evil.example").status == 403
