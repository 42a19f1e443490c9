"""bench/gpu.sh, whole, on a CPU: every suite runs tiny, and each step says that it went well."""

import json
import os
import re
import subprocess
import sys

import pytest

from support.places import ROOT
from support.triton_processes import NEEDS

SCRIPT = ROOT / "bench" / "gpu.sh"


def dry_run(folder, **variables):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHON": sys.executable}
    command = [SCRIPT, "--dry-run", folder]
    return subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=False)


@pytest.mark.whole
@NEEDS
def test_the_whole_script_runs_dry(tmp_path):
    pytest.importorskip("matplotlib")
    done = dry_run(tmp_path)
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    assert done.stdout.rstrip().endswith("failed: nothing")
    assert re.findall(r"^== (\S+):", done.stdout, re.MULTILINE) == [
        *("shell", "tests", "races", "names", "peers", "options", "suites")
    ]
    report = json.loads((tmp_path / "dry.json").read_text())
    suites = {(row["suite"], row["name"]) for row in report["rows"]}
    assert suites >= {
        *(("flow", "fastflow"), ("flow", "torch-lean-eager"), ("encoder", "fastflow"), ("encoder", "torch-graph")),
        *(("encoder", "torch-eager"), ("end-to-end", "fastflow"), ("end-to-end", "torch-eager")),
    }
    alone = [row for row in report["rows"] if row["suite"] == "end-to-end" and row["batch"] == 1]
    assert all(0 < r["p20_ms"] <= r["median_ms"] <= r["p80_ms"] <= r["p95_ms"] <= r["p99_ms"] for r in alone)
    assert all(row["gflops"] > 0 and row["gbs"] > 0 for row in report["rows"] if row["suite"] == "encoder")
    gpu = report["machine"]["ceilings"][1]
    assert set(gpu["gflops"]) == {"float32", "tf32", "float16", "bfloat16"}
    assert gpu["launch_us"] > 0
    assert any("text to vector" in ratio["name"] and ratio["unit"] == "ms" for ratio in report["ratios"])
    assert (tmp_path / "dry.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_a_step_that_fails_is_named_at_the_end(tmp_path):
    done = dry_run(tmp_path, PYTHON="false", BENCH_SECONDS="60")
    assert done.returncode == 1
    assert done.stdout.rstrip().endswith("failed: tests races names peers options suites")
