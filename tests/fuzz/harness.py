"""Run one Python target, and share choices, limits and the contract with all targets and attacks.

python tests/fuzz/harness.py TARGET [option of libFuzzer ...] [CORPUS]

The contract: an input gives a valid result or a FastflowError of one sentence. Everything else is a finding, such as
another exception, a message of several lines, a hang, or too much memory.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import resource
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, TypeVar

FUZZ = Path(__file__).resolve().parent
sys.path[:0] = [str(FUZZ), str(FUZZ.parent), str(FUZZ.parent / "attacks")]

TARGETS, ATTACKS = (
    sorted(path.stem for path in folder.glob("*.py")) for folder in (FUZZ / "targets", FUZZ.parent / "attacks")
)
SECONDS = 30  # processor time of one input: libFuzzer's limit counts the machine's other work too
LONGEST = 1200  # characters of a message
Result = TypeVar("Result")
os.environ |= {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}


class Finding(AssertionError):
    """A fault of the product."""


class Choices(Random):
    """A generator that reads its numbers from ``data``, then gives zeros: the fuzzer makes the choices."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self._data, self._at = data, 0

    def getrandbits(self, k: int) -> int:
        size = (k + 7) // 8
        found = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(found, "little") & ((1 << k) - 1)

    def random(self) -> float:
        return self.getrandbits(16) / 65536


def load(name: str) -> ModuleType:
    """Import a target or an attack.

    A target has ``one(data)`` and ``seeds()``. An attack has a context manager ``prepare(folder)``, which gives
    ``one(folder, rng, number, counts)``.
    """
    folder = FUZZ.parent / "attacks" if name in ATTACKS else FUZZ / "targets"
    spec = importlib.util.spec_from_file_location(f"fuzz_{name}", folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


def memory_folder() -> str | None:
    """Return a folder in memory, if there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def scratch() -> Path:
    """Make a folder in memory, which leaves with the process; after libFuzzer's end run.py removes it."""
    folder = Path(tempfile.mkdtemp(prefix="fastflow-fuzz-", dir=os.environ.get("FASTFLOW_SCRATCH") or memory_folder()))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def limit(one: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Return ``one`` with a limit of processor time."""

    def stop(*_: object) -> None:
        raise Finding(f"the input takes {SECONDS} s of processor time")

    def run(data: bytes) -> None:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            one(data)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    signal.signal(signal.SIGPROF, stop)
    return run


@contextmanager
def limit_memory(most: int) -> Iterator[None]:
    """Let the process map ``most`` bytes more (0: any number)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + most if most else soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def check_contract(run: Callable[[], Result], sound: bool = False, memory: int = 0) -> Result | str:
    """Return the result of ``run``, or the sentence of its refusal; ``sound`` inputs must not be refused."""
    from fastflow.errors import FastflowError

    with warnings.catch_warnings(), limit_memory(memory):
        warnings.simplefilter("ignore")
        try:
            return run()
        except FastflowError as error:
            said = str(error)
    if sound:
        raise Finding(f"sound and refused: {said}")
    if not said or "\n" in said or len(said) > LONGEST:
        raise Finding(f"not a sentence: {said[:400]!r}")
    return said


def fuzz(name: str, options: list[str]) -> None:
    """Run a target under atheris, which instruments every module of the package."""
    import atheris

    atheris.instrument_imports(include=["fastflow", "support.definitions"]).__enter__()
    target: Any = load(name)
    folder = next((Path(option) for option in options if not option.startswith("-")), None)
    if folder is not None:
        for i, seed in enumerate(target.seeds()):
            (folder / f"seed-{i}").write_bytes(seed)
    atheris.Setup([name, *options], limit(target.one))
    atheris.Fuzz()


if __name__ == "__main__":
    fuzz(sys.argv[1], sys.argv[2:])
