"""``fastflow bench --suite all``: every run of RUNS, each in a process and with files of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastflow.bench.cli import say
from fastflow.bench.measure.machine import find_commit
from fastflow.bench.report.table import make_table, write_json
from fastflow.console import write_text
from fastflow.errors import FastflowError, UsageError

REPEATED = 5  # the flow's short run is repeated, since its ratios vary
RANGES = "flow-ranges.json"
COMMAND = "from fastflow.cli import main; main()"  # this fastflow, not another on PATH
RUNS: dict[str, tuple[str, ...]] = {
    "flow": ("--suite", "flow"),
    **{f"flow-{i}": ("--suite", "flow", "--quick", "--against", "lean") for i in range(1, REPEATED + 1)},
    "startup": ("--suite", "startup"),
    "static": ("--suite", "static"),
    "end-to-end-default": ("--suite", "end-to-end", "--model", "default"),
    "end-to-end-minilm-l6": ("--suite", "end-to-end", "--quick", "--shape", "minilm-l6"),
    "end-to-end-bert-base": ("--suite", "end-to-end", "--quick", "--shape", "bert-base"),
    "serve-bert-base": ("--suite", "serve", "--shape", "bert-base"),
    "encoder-minilm-l6": ("--suite", "encoder", "--shape", "minilm-l6"),
    "encoder-bert-base": ("--suite", "encoder", "--shape", "bert-base"),
}


def run_every(
    out: Path, skip: Sequence[str] = (), device: str = "auto", threads: int | None = None, runs: Any = None
) -> None:
    """Write ``out``/NAME.json and NAME.txt for each run, and the ranges of the flow's ratios; ``skip``: runs or suites.

    A repeated call keeps the files of its commit, unless changes are uncommitted. Raises a FastflowError at the end
    that names the failed runs.
    """
    runs = runs or RUNS
    wanted = {name: words for name, words in runs.items() if not {name, words[1]} & set(skip)}
    if odd := sorted(set(skip) - set(runs) - {words[1] for words in runs.values()}):
        raise UsageError(f"there is no run {odd[0]!r} to skip; runs: {', '.join(runs)}")
    out.mkdir(parents=True, exist_ok=True)
    here, failed = find_commit(), []
    options = ["--device", device, *([] if threads is None else ["--threads", str(threads)])]
    for name, words in wanted.items():
        path = out / f"{name}.json"
        if here is not None and not here.endswith("+") and _read_commit(path) == here:
            say(f"{path} is of this commit: kept")
            continue
        say(f"{name}: fastflow bench {' '.join(words)}")
        command = [sys.executable, "-c", COMMAND, "bench", *words, *options, "--json", str(path)]
        if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
            failed.append(name)
            continue
        write_text(str(path.with_suffix(".txt")), make_table(json.loads(path.read_text(encoding="utf-8"))) + "\n")
    _write_ranges(out)
    if failed:
        raise FastflowError(f"runs that failed: {', '.join(failed)}; their reasons are above, the others are in {out}")


def _read_commit(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))["machine"]["commit"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_ranges(out: Path) -> None:
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("flow-[0-9].json"))]
    if len(reports) < REPEATED:
        return
    values = defaultdict(list)
    for report in reports:
        for ratio in report["ratios"]:
            values[ratio["name"], ratio["threads"]].append(ratio["value"])
    ranges = [
        {"name": name, "threads": threads, "least": min(found), "largest": max(found), "runs": len(found)}
        for (name, threads), found in values.items()
    ]
    machines = [report["machine"] for report in reports]
    write_json({"machine": machines[0], "others": [m["processors_used_by_others"] for m in machines], "ranges": ranges},
               out / RANGES)  # fmt: skip
