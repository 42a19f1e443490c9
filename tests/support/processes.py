"""Child processes whose limit counts processor time: a busy machine slows them, and fails no test."""

import contextlib
import resource
import subprocess
from collections.abc import Sequence
from typing import Any

HANGS = 3600.0  # seconds after which a process hangs, however busy the machine is


def run_limited(
    command: Sequence[Any], seconds: int = 120, capture_output: bool = True, **options: Any
) -> subprocess.CompletedProcess[str]:
    """``subprocess.run`` of text; SIGKILL ends a process that takes ``seconds`` of the processor."""
    words, data = [str(word) for word in command], options.pop("input", None)
    given: dict[str, Any] = {"text": True} | ({} if data is None else {"stdin": subprocess.PIPE})
    if capture_output:
        given |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, **given | options) as process:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (seconds, seconds))
        try:
            out, err = process.communicate(data, timeout=HANGS)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(words, process.returncode, out, err)
