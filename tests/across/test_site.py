"""The documentation as a site, the page of the commands, completion in a shell, and the image of the server."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig

import pytest
from click.testing import CliRunner
from commands_page import main, make_page

from fastflow.cli import NAMES

from support.places import ROOT, USERS
from support.processes import run_limited
from support.servers import serving_process

COMPOSE = (ROOT / "examples" / "compose.yaml").read_text(encoding="utf-8")

BASE_MB, MOST_MB = 52, 200  # of the packages of Debian in the image's base, and of the whole image


def test_the_page_of_commands_has_every_extra_of_a_user():
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = make_page().partition("## Extras")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`(\w+)`", "".join(rows))) == set(extras) - {
        "dev",
        "docs",
        "doors",
        "fuzz",
        "release",
        "test",
    }


@pytest.mark.slow
def test_the_site_is_built_and_every_link_and_anchor_in_it_leads_somewhere(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-f", ROOT / "mkdocs.yml", "-d", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    home = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert 'href="docs/which-model.html"' in home
    assert not re.search(r'(?:src|<link[^>]* href)="https?://', home)  # a reader's browser asks no other server


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r": (docs/\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M))
    assert listed == {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}


def test_the_page_of_the_commands_is_that_of_their_help(tmp_path):
    done = CliRunner().invoke(main, ["--out", str(tmp_path / "commands.md")], catch_exceptions=False)
    assert done.exit_code == 0
    assert (tmp_path / "commands.md").read_text(encoding="utf-8") == make_page()
    assert re.findall(r"^## fastflow (\S+)$", make_page(), re.M) == sorted(NAMES)
    again = "docs/commands.md is older than --help: python release/commands_page.py --out docs/commands.md"
    assert (ROOT / "docs" / "commands.md").read_text(encoding="utf-8") == make_page(), again


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "wanted"), [("fastflow se", {"search", "serve"}), ("fastflow embed --prec", {"--precision"})]
)
def test_a_shell_completes_commands_and_options(words, wanted):
    env = USERS | {
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        "_FASTFLOW_COMPLETE": "bash_complete",
    }
    program = os.path.join(sysconfig.get_path("scripts"), "fastflow")
    done = run_limited([program], env=env, seconds=60)
    assert {line.partition(",")[2] for line in done.stdout.split()} == wanted


def ignored_paths():
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_history_environments_and_outputs_do_not_go_into_the_image():
    assert {".git", "ENV", "**/*.db", "**/*.so"} <= {*ignored_paths()}
    build = (ROOT / "examples" / "Dockerfile").read_text(encoding="utf-8")
    assert "COPY . /src" in build, "the list is of this copy"


@pytest.mark.whole
def test_the_command_of_compose_serves_two_models(tmp_path):
    """The service of examples/compose.yaml, in a process in place of its image."""
    words = re.search(r"^ +command: \[(.*)\]$", COMPOSE, re.M)[1].split(", ")
    assert words[:3] == ["serve", "--host", "0.0.0.0"]
    check = re.search(r"urlopen\(\'http://127.0.0.1:8080(/\w+)\'\)", COMPOSE)[1]
    key = {"FASTFLOW_API_KEY": "change-me"}
    with serving_process(*words[1:], folder=tmp_path, env=key) as server:
        assert server.get(check).status == 200
        send = {"authorization": "Bearer change-me"}
        for name, width in (("static", 256), ("multilingual", 256)):
            found = server.ask("POST", "/v1/embeddings", {"input": "a", "model": name}, send).json
            assert (found["model"], len(found["data"][0]["embedding"])) == (name, width)
        assert server.post("/v1/embeddings", {"input": "a"}).status == 401


@pytest.mark.whole
def test_the_lines_of_the_image_install_a_server_that_embeds(tmp_path):
    """Every line but Debian's own packages, in a virtual environment in place of the image."""
    lines = (ROOT / "examples" / "Dockerfile").read_text(encoding="utf-8").splitlines()
    names = [line.rpartition("/")[2] for line in ignored_paths()]
    ignored = shutil.ignore_patterns(*names, "*.egg-info", "_cpu.c", ".*_cache")
    shutil.copytree(ROOT, tmp_path / "src", ignore=ignored)
    assert not (tmp_path / "src" / "tests").exists()
    runs = [line.removeprefix("RUN ") for line in lines if line.startswith("RUN ") and "apt-get" not in line]
    assert len(runs) == 3
    compiler = tmp_path / "cc"  # -O3 would take twice as long
    compiler.write_text(f'#!/bin/sh\nexec {os.environ.get("CC", "cc")} "$@" -O0\n')
    compiler.chmod(0o755)
    for run in runs:
        here = re.sub(r"(?<![\w.])/(venv|src)", rf"{tmp_path}/\1", run)
        env = os.environ | {"CC": str(compiler)}
        done = run_limited(["bash", "-euo", "pipefail", "-c", here], env=env, seconds=600)
        assert done.returncode == 0, run + done.stdout[-2000:] + done.stderr[-2000:]
    files = [path.stat().st_size for path in (tmp_path / "venv").rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(files) < (MOST_MB - BASE_MB) * 1e6
    program = str(tmp_path / "venv" / "bin" / "fastflow")
    done = run_limited([program, "embed", "-"], input="a text\n", seconds=60)
    assert done.stdout.startswith('{"'), done.stderr
    assert run_limited([program, "serve", "--help"], seconds=60).returncode == 0
