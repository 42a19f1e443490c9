"""How an attack runs: its cases, each in a process of its own with a limit on memory and on time, or its rounds.

An outcome that is a finding begins with a capital.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

SECONDS = 20  # of the processor, for one case
HANGS = 600  # seconds after which a case waits for ever, however busy the machine is
LONGEST = 1200  # characters of a message
Judge = Callable[[], tuple[str, str]]  # -> (outcome, details)


def sentence(said: str, sound: bool) -> tuple[str, str]:
    """The outcome of an input that was refused with the words ``said``."""
    if sound:
        return "Sound and refused", said
    if not said or "\n" in said or len(said) > LONGEST:
        return "Not a sentence", repr(said[:400])
    return "sentence", ""


def flipped(data: bytes, rng: random.Random) -> bytes:
    """``data`` with a few bytes changed, near an end or anywhere."""
    out = bytearray(data or b"a")
    for _ in range(rng.choice([1, 1, 2, 20])):
        where = rng.choice([rng.randrange(len(out)), -1 - rng.randrange(min(len(out), 64))])
        out[where] = rng.randrange(256)
    return bytes(out)


def cut(data: bytes, rng: random.Random) -> bytes:
    """``data`` without its end, its start, or a piece of its middle."""
    a, b = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return rng.choice([data[:a], data[a:], data[:a] + data[b:], data + data[a:b]])


def boxed(judge: Judge, memory: int) -> tuple[str, str]:
    """What ``judge`` finds in a process that may take ``memory`` bytes more than this one holds."""
    read, write = os.pipe()
    log = os.memfd_create("stderr")
    if (pid := os.fork()) == 0:
        os.dup2(log, 2)  # Rust writes its panics there
        warnings.simplefilter("ignore")
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + memory, held + memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(HANGS)
        try:
            answer = judge()
        except MemoryError:
            answer = ("Out of memory", "")
        except BaseException:
            answer = ("Traceback", traceback.format_exc()[-900:])
        os.write(write, json.dumps(answer).encode()[:60_000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with os.fdopen(log, "rb") as file:
        file.seek(0)
        if not said:
            return "Killed", f"by signal {status}, after {SECONDS} s of the processor at most: {file.read(300)!r}"
    outcome, details = json.loads(said)
    return outcome, details


def asked(doc: str, **counts: int) -> argparse.Namespace:
    """The options of an attack: how many cases or rounds, in how many seconds, from which seed."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, count in counts.items():
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--seconds", type=float, default=300, help="begin nothing after that many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one case, with its traceback")
    return parser.parse_args()


def attack(doc: str, case: Callable[[int, int, Path], Judge], memory: int) -> int:
    """Run the cases that the command line asks for; 1 if there are findings.

    ``case(number, seed, folder)`` makes the input of a case below ``folder`` and returns what judges it.
    """
    given = asked(doc, count=2000)
    outcomes, began = Counter[str](), time.monotonic()
    for number in [given.only] if given.only is not None else range(given.count):
        if time.monotonic() - began > given.seconds:
            break
        with tempfile.TemporaryDirectory(prefix="fastflow-attack-") as folder:
            judge = case(number, given.seed, Path(folder))
            outcome, details = judge() if given.only is not None else boxed(judge, memory)
        outcomes[outcome] += 1
        if outcome[0].isupper() or given.only is not None:
            print(f"{number}: {outcome}: {details}", flush=True)
    findings = sum(count for outcome, count in outcomes.items() if outcome[0].isupper())
    print(f"{sum(outcomes.values())} cases: {dict(outcomes)}; {findings} faults")
    return 1 if findings else 0


def rounds(doc: str, count: int, one: Callable[[Path, random.Random, int, Counter[str]], list[str]]) -> int:
    """Run the rounds that the command line asks for; 1 if there are faults.

    ``one(folder, rng, number, counts)`` counts what it did and returns its faults as sentences.
    """
    given = asked(doc, rounds=count)
    counts, began, faults, done = Counter[str](), time.monotonic(), 0, 0
    while done < given.rounds and time.monotonic() - began < given.seconds:
        with tempfile.TemporaryDirectory() as folder:
            for fault in one(Path(folder), random.Random(f"{given.seed}.{done}"), done, counts):
                print(f"round {done} (--seed {given.seed}): {fault}", flush=True)
                faults += 1
        done += 1
    print(f"{done} rounds in {time.monotonic() - began:.0f} s: {dict(counts)}; {faults} faults")
    return 1 if faults or not done else 0
