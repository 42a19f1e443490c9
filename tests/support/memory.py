"""How much the memory of a new process grows by some work."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

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
