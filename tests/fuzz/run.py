"""Run fuzzing targets, led by coverage, and attacks on processes, in rounds.

    python tests/fuzz/run.py --seconds 300                 every target for a share of the time
    python tests/fuzz/run.py --fixed                       every target from tests/corpus, by one seed
    python tests/fuzz/run.py texts --replay FILE ...       one Python target on files; without any, on its corpus
    python tests/fuzz/run.py models --replay --random 2000 the same, then on random inputs, without atheris
    python tests/fuzz/run.py writers --rounds 60 --seed 0  an attack of tests/attacks

Native targets are C under libFuzzer, AddressSanitizer and UBSan, and need a clang with these. The others are Python
under atheris. Inputs that reach new code stay in build/fuzz/corpus/TARGET, findings in build/fuzz/findings. Two calls
of --fixed run the same inputs, except for targets whose coverage depends on threads or addresses. Exit code 1: there
are findings, or targets that did not run.
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
from collections import Counter
from itertools import chain
from pathlib import Path
from random import Random
from typing import NamedTuple

import building
import harness

from support.corpus import inputs, lines_of, path_of

FOLDER = building.ROOT / "build" / "fuzz"
TIMEOUT, MEMORY = 600, 3072  # seconds and MB of one input; see harness.SECONDS
LEAST = 3  # seconds of a target
FIXED = {  # executions of --fixed: some 13 seconds of each target on one core of an EPYC, with its start
    "attention": 1_300, "embed": 6_000, "encoder": 1_300, "flow": 14_000, "packing": 25_000, "products": 12_000,
    "search": 70_000, "table": 12_000, "tokens": 40_000, "vocabulary": 800_000,
    "database": 1_500, "existing": 2_500, "files": 500, "http": 10_000, "inputs": 150, "matrix": 40_000, "models": 600,
    "parquet": 35_000, "programs": 1_100, "shards": 1_200, "tasks": 14_000, "texts": 18_000, "tokenizer": 140_000,
    "wire": 9_000, "wordpiece": 5_000,
}  # fmt: skip
COUNTERS = re.compile(r"Loaded 1 modules\s+\((\d+) inline 8-bit counters\)")
STATE = re.compile(r"#(\d+)\s+(?:DONE|pulse|NEW|REDUCE|INITED|RELOAD)\s+cov: (\d+) ft: (\d+) corp: (\d+)")
FINISHED = re.compile(r"^Done \d+ runs", re.M)
KEPT = 20_000  # bytes of a target's file in tests/corpus, without its regressions
LONGEST = 2000  # bytes of an input in the file


class Outcome(NamedTuple):
    """The work of one target; ``linked`` counts its edges (0 for Python), ``ended`` is its exit code."""

    name: str
    runs: int
    edges: int
    linked: int
    features: int
    seconds: float
    findings: list[Path]
    ended: int

    def row(self) -> str:
        of = f"{self.edges}" + (f" / {self.linked}" if self.linked else "")
        rate = self.runs / max(self.seconds, 1e-9)
        return f"| {self.name} | {self.runs:,} | {rate:,.0f} | {of} | {self.features:,} | {len(self.findings)} |"


def list_commands(python_only: bool) -> dict[str, list[str]]:
    """Return name -> the command of each target; native ones are built, if a clang can."""
    found = {name: [sys.executable, str(harness.FUZZ / "harness.py"), name] for name in harness.TARGETS}
    compiler = None if python_only else building.find_fuzzing_compiler()
    if compiler is None:
        return found
    built = building.build(compiler, FOLDER / "native", "address,undefined", fuzzer=True)
    building.record(FOLDER)
    return {name: [str(path)] for name, path in built.items()} | found


def fuzz(name: str, command: list[str], seconds: float | None) -> Outcome:
    """Run a target for its time; None: on its fixed inputs."""
    corpus, findings = FOLDER / ("corpus" if seconds else "fixed") / name, FOLDER / "findings"
    if seconds:
        length = [f"-max_total_time={max(LEAST, round(seconds))}"]
    else:
        shutil.rmtree(corpus, ignore_errors=True)
        length = [f"-runs={FIXED[name]}", "-seed=1", "-reload=0"]
    building.unpack(name, corpus)
    findings.mkdir(exist_ok=True)
    before = set(findings.iterdir())
    options = [
        *length, f"-timeout={TIMEOUT}", f"-rss_limit_mb={MEMORY}",
        "-print_final_stats=0", f"-artifact_prefix={findings}/{name}-", str(corpus),
    ]  # fmt: skip
    environment = os.environ | {
        "FASTFLOW_PROGRAMS": str(FOLDER / "programs"), "FASTFLOW_BASES": str(FOLDER / "bases"),
        "UBSAN_OPTIONS": "print_stacktrace=1", "PYTHONHASHSEED": "0",
    }  # fmt: skip
    began, log = time.monotonic(), FOLDER / f"{name}.log"
    with (
        log.open("wb") as out,
        tempfile.TemporaryDirectory(prefix="fastflow-fuzz-", dir=harness.memory_folder()) as scratch,
    ):
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


def keep(name: str, command: list[str]) -> None:
    """Write inputs that reach new code to the target's file, after its regressions; native ones are merged first."""
    chosen = FOLDER / "corpus" / name
    if name in building.TARGETS:
        chosen = FOLDER / "chosen" / name
        shutil.rmtree(chosen, ignore_errors=True)
        chosen.mkdir(parents=True)
        environment = os.environ | {"FASTFLOW_PROGRAMS": str(FOLDER / "programs")}
        merge = [*command, "-merge=1", str(chosen), str(FOLDER / "corpus" / name)]
        subprocess.run(merge, env=environment, check=True, capture_output=True)
    path, lines = path_of(name), lines_of(name)
    regressions = [line for i, line in enumerate(lines) if line.startswith("#") or lines[i - 1].startswith("#")]
    found = sorted((file.read_bytes() for file in chosen.iterdir()), key=lambda data: (len(data), data))
    fresh, size = [], 0
    for line in (base64.b64encode(data).decode() for data in found if 0 < len(data) <= LONGEST):
        size += len(line) + 1
        if size <= KEPT and line not in regressions:
            fresh.append(line)
    path.write_text("\n".join([*regressions, *fresh]) + "\n")


def run_all(given: argparse.Namespace) -> int:
    """Fuzz the targets that the command line names, all by default."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    known = list_commands(given.python)
    chosen = given.names or [*([] if given.python else building.TARGETS), *harness.TARGETS]
    missing = [name for name in chosen if name not in known]
    commands, outcomes = {name: known[name] for name in chosen if name in known}, []
    print("| target | executions | a second | edges reached | features | findings |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for name, command in commands.items():
        outcomes.append(fuzz(name, command, None if given.fixed else given.seconds / len(commands)))
        print(outcomes[-1].row(), flush=True)
        if given.keep and not outcomes[-1].findings:
            keep(name, command)
    print(f"{sum(each.runs for each in outcomes):,} executions of {len(outcomes)} targets")
    for each in outcomes:
        for path in each.findings:
            print(f"{each.name}: {path}; {FOLDER / each.name}.log tells the fault")
        if each.ended and not each.findings:
            print(f"{each.name} ended with {each.ended}; {FOLDER / each.name}.log tells why")
    if missing:
        print(f"not run: {', '.join(missing)}: they need a clang with libFuzzer (Debian: clang libclang-rt-14-dev)")
    return 1 if missing or any(each.findings or each.ended for each in outcomes) else 0


def draw(sound: list[bytes], rng: Random) -> bytes:
    """Return random bytes, or a seed with random changes."""
    from mutators import change_bytes

    return rng.randbytes(rng.choice((8, 64, 512))) if rng.random() < 0.5 else change_bytes(rng.choice(sound), rng)


def replay(name: str, given: argparse.Namespace) -> int:
    """Run a target on files, or on its seeds, its corpus and random inputs; an exception ends it."""
    target, rng, number = harness.load(name), Random(given.seed), -1
    run, sound = harness.limit(target.one), target.seeds()
    chosen = [path.read_bytes() for path in given.replay] or [*sound, *inputs(name)]
    for number, data in enumerate(chain(chosen, (draw(sound, rng) for _ in range(given.random)))):
        try:
            run(data)
        except BaseException:
            print(f"{name}: the input is number {number}, in base64 {base64.b64encode(data).decode()}", file=sys.stderr)
            raise
    print(f"{number + 1} inputs of {name}: 0 faults")
    return 0


def attack(name: str, given: argparse.Namespace) -> int:
    """Run rounds of an attack, each with a random generator and a folder of its own; 1 if there are findings."""
    counts, began, faults, done = Counter[str](), time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory(prefix="fastflow-attack-") as home:
        try:
            with harness.load(name).prepare(Path(home).resolve()) as one:
                while done < given.rounds and time.monotonic() - began < given.seconds:
                    with tempfile.TemporaryDirectory(prefix="fastflow-round-") as folder:
                        try:
                            one(Path(folder).resolve(), Random(f"{given.seed}.{done}"), done, counts)
                        except harness.Finding as finding:
                            faults += 1
                            print(f"round {done} (--seed {given.seed}): {finding}", flush=True)
                    done += 1
        except harness.Finding as finding:
            faults += 1
            print(f"after {done} rounds: {finding}", flush=True)
    print(f"{name}: {done} rounds in {time.monotonic() - began:.0f} s: {dict(sorted(counts.items()))}; {faults} faults")
    return 1 if faults or not done else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="targets, or attacks")
    parser.add_argument("--seconds", type=float, default=300, help="of all targets together, or of the rounds")
    parser.add_argument("--fixed", action="store_true", help="run a fixed number of inputs by one seed")
    parser.add_argument("--python", action="store_true", help="leave out the native targets")
    parser.add_argument("--keep", action="store_true", help="write the inputs with new coverage to tests/corpus")
    parser.add_argument("--replay", nargs="*", type=Path, metavar="FILE", help="run each file once")
    parser.add_argument("--random", type=int, default=0, help="random inputs after the replayed ones")
    parser.add_argument("--rounds", type=int, default=100, help="of an attack")
    parser.add_argument("--seed", type=int, default=0, help="of random inputs and rounds")
    given = parser.parse_args()
    attacks = [name for name in given.names if name in harness.ATTACKS]
    if attacks:
        return max(attack(name, given) for name in attacks)
    if given.replay is not None:
        return max(replay(name, given) for name in given.names)
    return run_all(given)


if __name__ == "__main__":
    sys.exit(main())
