"""How much of the code the fuzzer's inputs reach, after a run: python tests/fuzz/reached.py

Of C the functions and edges of kernels/c that all native targets together reach; an edge to a report of a sanitizer
counts as one that is not reached. Of Python the lines of the modules that a target is meant to reach.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import building
import harness
from run import FOLDER

LINE = re.compile(r"^(?:UN)?COVERED_FUNC: hits: \d+ edges: (\d+)/(\d+) \S+ \S*/kernels/c/(\S+):\d+$", re.M)
MOST = 2000  # bytes of inputs of Python that are replayed: longer ones reach little more


def functions(name: str) -> list[tuple[str, int, int]]:
    """(file, edges reached, edges) of each function of the kernels, in the linker's order: the same in all targets."""
    environment = os.environ | {"FASTFLOW_PROGRAMS": str(FOLDER / "programs")}
    command = [FOLDER / "native" / name, "-runs=0", "-print_coverage=1", FOLDER / "corpus" / name]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=True).stderr
    return [(file, int(reached), int(edges)) for reached, edges, file in LINE.findall(said)]


def native() -> None:
    """Print the rooms of kernels/c."""
    found = [functions(name) for name in building.targets()]
    rooms: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for same in zip(*found, strict=True):
        assert len({file for file, _, _ in same}) == 1, "the targets are linked in other orders"
        rooms[same[0][0].rpartition("/")[0] or "."].append((max(each[1] for each in same), same[0][2]))
    print("| kernels/c | functions reached | edges reached |\n| --- | ---: | ---: |")
    for room, counts in sorted(rooms.items()):
        entered, reached, edges = sum(n > 0 for n, _ in counts), sum(n for n, _ in counts), sum(n for _, n in counts)
        print(f"| {room} | {entered} / {len(counts)} | {reached} / {edges} ({reached / edges:.0%}) |")


def python(name: str) -> None:
    """Print the lines of a target's modules that its inputs, or the import, reach."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "coverage"
        files = sorted(path for path in (FOLDER / "corpus" / name).iterdir() if path.stat().st_size <= MOST)
        script = [harness.FUZZ / "fuzz.py", name, "--replay", *files]
        coverage = [sys.executable, "-m", "coverage"]
        options = ["run", f"--data-file={data}", "--source=fastflow,kernels"]
        subprocess.run([*coverage, *options, *script], check=True, capture_output=True, cwd=building.ROOT)
        shown = [*coverage, "report", f"--data-file={data}", "--sort=-cover"]
        said = subprocess.run(shown, check=True, capture_output=True, text=True, cwd=building.ROOT).stdout
    rows = [line.split() for line in said.splitlines() if re.match(r"\S+\.py\s+\d+\s+\d+\s+[1-9]", line)]
    rooms = [row for row in rows if any(row[0].startswith(place) for place in ROOMS.get(name, ()))]
    lines, missed = (sum(int(row[at]) for row in rooms) for at in (1, 2))
    print(
        f"| {name} | {', '.join(ROOMS[name])} | {lines - missed} / {lines} ({(lines - missed) / lines:.0%}) |",
        flush=True,
    )


ROOMS = {  # target -> where the code lies that it is meant to reach
    "texts": ("fastflow/files/read/texts.py", "fastflow/files/read/tables.py", "fastflow/files/read/compressed.py"),
    "parquet": ("fastflow/files/read/parquet.py",),
    "matrix": ("fastflow/files/read/matrix.py", "fastflow/files/read/ranges.py"),
    "tasks": ("fastflow/evaluation/rows.py", "fastflow/evaluation/pairs.py", "fastflow/evaluation/retrieval.py"),
    "files": ("fastflow/model/",),
    "models": ("fastflow/model/",),
    "tokenizer": ("fastflow/model/tokenizer/wordpiece.py",),
    "wordpiece": ("kernels/tokens/",),
    "database": ("fastflow/search/",),
    "shards": ("fastflow/files/parts/",),
    "http": ("fastflow/serve/",),
    "wire": ("fastflow/serve/protocol.py",),
    "programs": ("kernels/encoder/", "kernels/flow/"),
}


def main() -> None:
    """Print both tables."""
    native()
    print("\n| target | modules | lines reached |\n| --- | --- | ---: |")
    for name in harness.targets():
        python(name)


if __name__ == "__main__":
    main()
