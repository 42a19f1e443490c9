"""The memory of this process, and how much work adds to a new process's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

CODE = """
import resource, sys
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
{before}
held = peak()
{work}
print(peak() - held)
"""


def grown(run_python: Callable[..., subprocess.CompletedProcess[str]], before: str, work: str, *given: object) -> int:
    """kB that ``work`` adds to the peak of a process that did ``before``; ``given`` is its sys.argv[1:]."""
    done = run_python(CODE.format(before=before, work=work), *given)
    assert (done.returncode, done.stderr) == (0, "")
    return int(done.stdout)


def resident() -> int:
    """Bytes of this process in memory; skips the test without /proc."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("resident memory is read from /proc")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
