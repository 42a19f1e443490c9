"""bench/gpu.sh, both parts whole, on a CPU: every command runs tiny, and each step says that it went well."""

import json
import os
import re
import subprocess
import sys

import pytest

from fastflow.bench.suites.end_to_end import SHORT

from support.places import ROOT
from support.triton_processes import NEEDS

SCRIPT = ROOT / "bench" / "gpu.sh"
STEPS = {
    "right": ["small", "models", "tests"],
    "fast": ["suites", "table", "peers", "flow-options", "encoder-options", "end-to-end-options"],
}


def dry_run(part, folder, **variables):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHON": sys.executable}
    command = [SCRIPT, part, "--dry-run", folder]
    return subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=False)


def assert_steps(done, part):
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    assert done.stdout.rstrip().endswith("failed: nothing")
    assert re.findall(r"^== (\S+):", done.stdout, re.MULTILINE) == STEPS[part]


@pytest.mark.whole
@NEEDS
def test_what_is_right_runs_dry(tmp_path):
    assert_steps(dry_run("right", tmp_path), "right")


@pytest.mark.whole
@NEEDS
def test_what_it_costs_runs_dry(tmp_path):
    assert_steps(dry_run("fast", tmp_path), "fast")
    report = json.loads((tmp_path / "dry.json").read_text())
    suites = {(row["suite"], row["name"]) for row in report["rows"]}
    assert suites >= {
        *(("flow", "fastflow"), ("flow", "torch-lean-eager"), ("encoder", "fastflow"), ("encoder", "torch-graph")),
        *(("encoder", "torch-eager"), ("end-to-end", "fastflow"), ("end-to-end", "torch-eager")),
        ("end-to-end", "torch-graph"),
    }
    alone = [row for row in report["rows"] if row["suite"] == "end-to-end" and row["tokens"] == SHORT]
    assert all(0 < r["p20_ms"] <= r["median_ms"] <= r["p80_ms"] <= r["p95_ms"] <= r["p99_ms"] for r in alone)
    assert all(row["gflops"] > 0 and row["gbs"] > 0 for row in report["rows"] if row["suite"] == "encoder")
    assert any("text to vector" in ratio["name"] and ratio["unit"] == "ms" for ratio in report["ratios"])
    timed = [entry for entry in json.loads((tmp_path / "table.json").read_text()) if "ms" in entry]
    assert {entry["what"] for entry in timed} == {"flow", "dense", "in place", "product", "attention"}


@pytest.mark.slow
def test_a_step_that_fails_is_named_at_the_end(tmp_path):
    done = dry_run("right", tmp_path, PYTHON="false", SECONDS_MOST="60")
    assert done.returncode == 1
    assert done.stdout.rstrip().endswith("failed: small models tests")


def test_without_a_part_the_usage_is_printed(tmp_path):
    done = subprocess.run([SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "bench/gpu.sh right [FOLDER]" in done.stdout
