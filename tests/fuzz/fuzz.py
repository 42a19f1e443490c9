"""Run one Python target: under atheris with libFuzzer's options, or once on given files; without any, on its corpus.

python tests/fuzz/fuzz.py texts -max_total_time=60 FOLDER
python tests/fuzz/fuzz.py texts --replay build/fuzz/findings/texts-crash-*
"""

from __future__ import annotations

import sys
from pathlib import Path

import harness


def replay(name: str, paths: list[Path]) -> None:
    """Run the target on each file, or on its seeds and its corpus; an exception ends it."""
    target = harness.load(name)
    inputs = [path.read_bytes() for path in paths] or [*target.seeds(), *harness.inputs(name)]
    for number, data in enumerate(inputs):
        try:
            target.one(data)
        except BaseException:
            print(f"the input is number {number}: {data[:200]!r}", file=sys.stderr)
            raise
    print(f"{len(inputs)} inputs")


def fuzz(name: str, options: list[str]) -> None:
    """Run the target under atheris; modules of the package are instrumented whenever they are imported."""
    import atheris

    atheris.instrument_imports(include=["fastflow"]).__enter__()
    target = harness.load(name)
    folder = next((Path(option) for option in options if not option.startswith("-")), None)
    if folder is not None:
        for i, seed in enumerate(target.seeds()):
            (folder / f"seed-{i}").write_bytes(seed)
    atheris.Setup([name, *options], harness.limited(target.one))
    atheris.Fuzz()


if __name__ == "__main__":
    if sys.argv[2:3] == ["--replay"]:
        replay(sys.argv[1], [Path(name) for name in sys.argv[3:]])
    else:
        fuzz(sys.argv[1], sys.argv[2:])
