"""Run the native targets on their files of tests/corpus: python tests/fuzz/replay.py WORD [TARGET ...]

asan, ubsan, both: built by gcc with the sanitizers. tsan: the same for threads; four callers run all inputs at once.
valgrind: without a sanitizer; flows and encoders on the kernels in portable C. CC names another compiler.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import building
import harness

SANITIZERS = {
    "asan": "address", "ubsan": "undefined", "both": "address,undefined", "tsan": "thread", "valgrind": "",
}  # fmt: skip
RUN = {
    # tsan: its shadow memory wants addresses that are not drawn at random
    "tsan": ["setarch", "-R"],
    "valgrind": ["valgrind", "-q", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"],
}
CALLERS = {"tsan": "4"}
MOST = {"valgrind": 40, "tsan": 200}  # inputs of a target: each takes fifty times as long, or is run five times
SETS = {"valgrind": ["portable"]}


def main() -> int:
    """Build, record and replay; 1 if a target ends with an error, which is printed."""
    word, *names = sys.argv[1:]
    folder = building.ROOT / "build" / "fuzz" / word
    built = building.build(os.environ.get("CC", "gcc"), folder, SANITIZERS[word])
    subprocess.run([sys.executable, harness.FUZZ / "record.py", folder / "programs", *SETS.get(word, [])], check=True)
    environment = os.environ | {
        "FASTFLOW_PROGRAMS": str(folder / "programs"),
        "FASTFLOW_CALLERS": CALLERS.get(word, "1"),
    }
    faults = 0
    for name in names or built:
        with tempfile.TemporaryDirectory() as inputs:
            files = harness.unpack(name, Path(inputs))
            files = files[:: -(-len(files) // MOST.get(word, len(files) or 1)) or 1]
            command = [*RUN.get(word, []), built[name], *files]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        print(f"{word} {name}: {done.stdout.strip() if done.returncode == 0 else done.stderr}", flush=True)
        faults += done.returncode != 0
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
