"""What the Python targets share: choices out of the fuzzer's bytes, a place for files, and the contract.

The contract: a target ends with a valid result or with one of the package's own sentences. Anything else is a finding:
another exception, a message that is no sentence, a hang or too much memory, which the fuzzer itself notices.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "attacks"))
sys.path.insert(0, str(Path(__file__).resolve().parent))  # searched first

from support.corpus import inputs

FUZZ = Path(__file__).resolve().parent
TESTS = FUZZ.parent
SECONDS = 30  # of the processor, for one input: libFuzzer's own limit counts the machine's other work too
os.environ |= {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}


class Finding(AssertionError):
    """Something that the contract does not allow."""


class Choices(Random):
    """A generator whose numbers are the bytes of ``data``, then zeros: a caller's choices are the fuzzer's."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self._data, self._at = data, 0

    def getrandbits(self, k: int) -> int:
        """The next k bits, of whole bytes."""
        size = (k + 7) // 8
        found = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(found, "little") & ((1 << k) - 1)

    def random(self) -> float:
        """The next two bytes as a number from 0 to below 1."""
        return self.getrandbits(16) / 65536

    def rest(self) -> bytes:
        """The bytes that no choice has taken."""
        return self._data[self._at :]


def unpack(name: str, folder: Path) -> list[Path]:
    """The inputs of a target as files in ``folder``, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    out = []
    for data in inputs(name):
        out.append(folder / hashlib.sha256(data).hexdigest()[:16])
        out[-1].write_bytes(data)
    return out


def targets() -> list[str]:
    """The names of the Python targets."""
    return sorted(path.stem for path in (FUZZ / "targets").glob("*.py"))


def load(name: str) -> ModuleType:
    """The module of a target: ``one(data)`` runs an input, ``seeds()`` are sound ones."""
    spec = importlib.util.spec_from_file_location(f"fuzz_{name}", FUZZ / "targets" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def memory() -> str | None:
    """A folder in memory if there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def scratch() -> Path:
    """A folder of this process in ``memory()``, which goes with it; libFuzzer's end leaves that to run.py."""
    folder = Path(tempfile.mkdtemp(prefix="fastflow-fuzz-", dir=os.environ.get("FASTFLOW_SCRATCH") or memory()))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def limited(one: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """``one``, which raises Finding for an input that takes SECONDS of the processor."""

    def slow(*_: object) -> None:
        raise Finding(f"the input takes {SECONDS} s of the processor")

    def run(data: bytes) -> None:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        one(data)

    signal.signal(signal.SIGPROF, slow)
    return run


def contract(run: Callable[[], object]) -> None:
    """Run what reads a stranger's bytes; raises Finding if it is refused with something that is no sentence."""
    from boxed import sentence

    from fastflow.errors import FastflowError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run()
        except FastflowError as error:
            outcome, details = sentence(str(error), False)
            if details:
                raise Finding(f"{outcome}: {details}") from error


def judged(found: tuple[str, str]) -> None:
    """Raise Finding for an outcome of ``tests/attacks`` that begins with a capital."""
    outcome, details = found
    if outcome[0].isupper():
        raise Finding(f"{outcome}: {details}")
