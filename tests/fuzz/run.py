"""Fuzz every target for a share of the time, led by coverage: ``python tests/fuzz/run.py --seconds 300``.

Native targets are C under libFuzzer, AddressSanitizer and UBSan, and need a clang with these; the others are Python
under atheris. Each starts from its file in tests/corpus, and leaves what reached new code in build/fuzz/corpus/TARGET
and what broke it in build/fuzz/findings. Exit code 1: there are findings, or targets that did not run.

``--fixed`` is for a gate: from tests/corpus alone, by one seed, FIXED executions of each target. Two calls run the same
inputs, but for targets whose coverage depends on threads or addresses.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import building
import harness

from support.corpus import lines_of, path_of

FOLDER = building.ROOT / "build" / "fuzz"
TIMEOUT, MEMORY = 600, 3072  # seconds and MB of one input: beyond these it is a finding; see harness.SECONDS
LEAST = 3  # seconds of a target
FIXED = {  # executions of --fixed: some 13 seconds of each target on one core of an EPYC, its start among them
    "attention": 1_300, "embed": 6_000, "encoder": 1_300, "flow": 14_000, "packing": 25_000, "products": 12_000,
    "search": 70_000, "table": 12_000, "tokens": 40_000, "vocabulary": 800_000,
    "database": 1_500, "files": 500, "http": 10_000, "matrix": 40_000, "models": 600, "parquet": 35_000,
    "programs": 1_100, "shards": 1_200, "tasks": 14_000, "texts": 18_000, "tokenizer": 140_000, "wire": 9_000,
    "wordpiece": 5_000,
}  # fmt: skip
COUNTERS = re.compile(r"Loaded 1 modules\s+\((\d+) inline 8-bit counters\)")
STATE = re.compile(r"#(\d+)\s+(?:DONE|pulse|NEW|REDUCE|INITED|RELOAD)\s+cov: (\d+) ft: (\d+) corp: (\d+)")
FINISHED = re.compile(r"^Done \d+ runs", re.M)
KEPT = 20_000  # bytes of a target's file in tests/corpus, at most, without its regressions
LONGEST = 2000  # bytes of an input in it


class Outcome(NamedTuple):
    """What a target did in its time."""

    name: str
    runs: int
    edges: int
    linked: int  # edges that are linked into the target; 0 for Python, whose modules are instrumented as they come
    features: int
    seconds: float
    findings: list[Path]
    ended: int  # exit code

    def row(self) -> str:
        """A line of the table."""
        of = f"{self.edges}" + (f" / {self.linked}" if self.linked else "")
        rate = self.runs / max(self.seconds, 1e-9)
        return f"| {self.name} | {self.runs:,} | {rate:,.0f} | {of} | {self.features:,} | {len(self.findings)} |"


def native(folder: Path) -> dict[str, list[str]]:
    """name -> the command of each native target, built; empty without a clang that can."""
    compiler = building.fuzzing_compiler()
    if compiler is None:
        return {}
    built = building.build(compiler, folder / "native", "address,undefined", fuzzer=True)
    record = [sys.executable, str(harness.FUZZ / "record.py"), str(folder / "programs")]
    subprocess.run(record, check=True)
    return {name: [str(path)] for name, path in built.items()}


def python() -> dict[str, list[str]]:
    """name -> the command of each Python target."""
    return {name: [sys.executable, str(harness.FUZZ / "fuzz.py"), name] for name in harness.targets()}


def fuzz(name: str, command: list[str], seconds: float | None, folder: Path) -> Outcome:
    """Run a target for its time; None: on its fixed inputs."""
    corpus, findings = folder / ("corpus" if seconds else "fixed") / name, folder / "findings"
    if seconds:
        length = [f"-max_total_time={max(LEAST, round(seconds))}"]
    else:
        shutil.rmtree(corpus, ignore_errors=True)
        length = [f"-runs={FIXED[name]}", "-seed=1", "-reload=0"]
    harness.unpack(name, corpus)
    findings.mkdir(exist_ok=True)
    before = set(findings.iterdir())
    options = [
        *length, f"-timeout={TIMEOUT}", f"-rss_limit_mb={MEMORY}",
        "-print_final_stats=0", f"-artifact_prefix={findings}/{name}-", str(corpus),
    ]  # fmt: skip
    environment = os.environ | {
        "FASTFLOW_PROGRAMS": str(folder / "programs"), "FASTFLOW_BASES": str(folder / "bases"),
        "UBSAN_OPTIONS": "print_stacktrace=1", "PYTHONHASHSEED": "0",
    }  # fmt: skip
    began, log = time.monotonic(), folder / f"{name}.log"
    with log.open("wb") as out, tempfile.TemporaryDirectory(prefix="fastflow-fuzz-", dir=harness.memory()) as scratch:
        environment["FASTFLOW_SCRATCH"] = scratch
        ended = subprocess.run([*command, *options], stdout=out, stderr=out, env=environment, check=False).returncode
    text = log.read_text(errors="replace")
    state = STATE.findall(text)
    runs, edges, features, _ = map(int, state[-1]) if state else (0, 0, 0, 0)
    linked = COUNTERS.search(text)
    found = sorted(set(findings.iterdir()) - before)
    if FINISHED.search(text):  # libFuzzer ends the process from within, and Arrow's threads may fall over that
        for path in found:
            path.unlink()
        found, ended = [], 0
    return Outcome(name, runs, edges, int(linked[1]) if linked else 0, features, time.monotonic() - began, found, ended)


def keep(name: str, command: list[str], folder: Path) -> None:
    """Write inputs that reach new code to the target's file, its regressions before them as they are.

    Of a native target they are merged first; atheris cannot do that.
    """
    chosen = folder / "corpus" / name
    if name in building.targets():
        chosen = folder / "chosen" / name
        shutil.rmtree(chosen, ignore_errors=True)
        chosen.mkdir(parents=True)
        environment = os.environ | {"FASTFLOW_PROGRAMS": str(folder / "programs")}
        merge = [*command, "-merge=1", str(chosen), str(folder / "corpus" / name)]
        subprocess.run(merge, env=environment, check=True, capture_output=True)
    path, lines = path_of(name), lines_of(name)
    regressions = [line for i, line in enumerate(lines) if line.startswith("#") or lines[i - 1].startswith("#")]
    inputs = sorted((file.read_bytes() for file in chosen.iterdir()), key=lambda data: (len(data), data))
    fresh, size = [], 0
    for line in (base64.b64encode(data).decode() for data in inputs if 0 < len(data) <= LONGEST):
        size += len(line) + 1
        if size <= KEPT and line not in regressions:
            fresh.append(line)
    path.write_text("\n".join([*regressions, *fresh]) + "\n")


def main() -> int:
    """Run the targets that the command line asks for; 1 if there are findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300, help="for all targets together, after they are built")
    parser.add_argument("--fixed", action="store_true", help="so many inputs by one seed, however long they take")
    parser.add_argument("--only", help="targets, separated by commas")
    parser.add_argument("--python", action="store_true", help="leave out the native targets")
    parser.add_argument("--keep", action="store_true", help="write the inputs with new coverage to tests/corpus")
    asked = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    known = building.targets()
    found = {} if asked.python else native(FOLDER)
    commands = found | python()
    chosen = asked.only.split(",") if asked.only else [*([] if asked.python else known), *harness.targets()]
    missing = [name for name in chosen if name not in commands]
    commands = {name: commands[name] for name in chosen if name in commands}
    outcomes = []
    print("| target | executions | a second | edges reached | features | findings |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for name, command in commands.items():
        outcomes.append(fuzz(name, command, None if asked.fixed else asked.seconds / len(commands), FOLDER))
        print(outcomes[-1].row(), flush=True)
        if asked.keep and not outcomes[-1].findings:
            keep(name, command, FOLDER)
    print(f"{sum(each.runs for each in outcomes):,} executions of {len(outcomes)} targets")
    for each in outcomes:
        for path in each.findings:
            print(f"{each.name}: {path}; {FOLDER / each.name}.log tells the fault")
        if each.ended and not each.findings:
            print(f"{each.name} ended with {each.ended}; {FOLDER / each.name}.log tells why")
    if missing:
        print(f"not run: {', '.join(missing)}: they need a clang with libFuzzer (Debian: clang libclang-rt-14-dev)")
    return 1 if missing or any(each.findings or each.ended for each in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
