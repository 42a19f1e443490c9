"""Cases of an attack, each in a process of its own with a limit on memory and on time, and the count of their outcomes.

An outcome that is a finding begins with a capital.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

SECONDS = 20  # for one case
LONGEST = 1200  # characters of a message
Judge = Callable[[], tuple[str, str]]  # -> (outcome, details)


def sentence(said: str, sound: bool) -> tuple[str, str]:
    """The outcome of an input that was refused with the words ``said``."""
    if sound:
        return "Sound and refused", said
    if not said or "\n" in said or len(said) > LONGEST:
        return "Not a sentence", repr(said[:400])
    return "sentence", ""


def boxed(judge: Judge, memory: int) -> tuple[str, str]:
    """What ``judge`` finds in a process that may take ``memory`` bytes more than this one holds."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + memory, held + memory))
        signal.alarm(SECONDS)
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
    _, status = os.waitpid(pid, 0)
    if not said:
        return "Killed", f"by signal {os.waitstatus_to_exitcode(status)}, after {SECONDS} s at most"
    outcome, details = json.loads(said)
    return outcome, details


def attack(description: str, case: Callable[[int, int, Path], Judge], memory: int) -> int:
    """Run the cases that the command line asks for; 1 if there are findings.

    ``case(number, seed, folder)`` makes the input of a case below ``folder`` and returns what judges it.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    given = parser.parse_args()
    outcomes, began = Counter(), time.monotonic()
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
