"""Build the native targets: by clang with libFuzzer, or by any compiler to replay the files of tests/corpus.

python tests/fuzz/building.py WORD [TARGET ...]

asan, ubsan, both: gcc with the sanitizers. tsan: the sanitizer of threads; four callers run all inputs at once.
valgrind: no sanitizer; flows and encoders on the kernels in portable C. plain: no sanitizer; arm64: emulated. CC names
another compiler, CFLAGS more of its options.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import harness

from support.corpus import inputs
from support.places import ROOT

NATIVE = harness.FUZZ / "native"
TARGETS = sorted(path.stem for path in NATIVE.glob("*.c") if path.stem != "replay")
FLAGS = [
    "-std=gnu11", "-O1", "-g", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-Wno-psabi",
    "-I", str(ROOT / "kernels/c"), "-I", str(NATIVE), "-fno-sanitize-recover=all", "-fno-omit-frame-pointer",
]  # fmt: skip
MORE = os.environ.get("CFLAGS", "").split()
SANITIZERS = {
    "asan": "address", "ubsan": "undefined", "both": "address,undefined", "tsan": "thread", "valgrind": "", "plain": "",
    "arm64": "",
}  # fmt: skip
RUN = {
    "tsan": ["setarch", "-R"],  # its shadow memory wants addresses that are not drawn at random
    "valgrind": ["valgrind", "-q", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"],
    "arm64": ["qemu-aarch64"],
}
CALLERS = {"tsan": "4"}
MOST = {"valgrind": 40, "tsan": 200}  # inputs of a target: each takes fifty times as long, or runs five times
SETS = {"valgrind": ["portable"]}


def find_fuzzing_compiler() -> str | None:
    """Return a clang with libFuzzer: $CLANG, or the first in the path."""
    for name in [os.environ.get("CLANG", "clang"), *(f"clang-{version}" for version in range(22, 13, -1))]:
        if shutil.which(name):
            printed = [name, "-print-file-name=libclang_rt.fuzzer-x86_64.a", "--rtlib=compiler-rt"]
            runtime = subprocess.run(printed, capture_output=True, text=True, check=True).stdout.strip()
            libraries = subprocess.run([name, "-print-resource-dir"], capture_output=True, text=True, check=True).stdout
            if Path(runtime).is_file() or list(Path(libraries.strip()).rglob("libclang_rt.fuzzer*.a")):
                return name
    return None


def build(compiler: str, folder: Path, sanitizers: str, fuzzer: bool = False) -> dict[str, Path]:
    """Return name -> the program of each target; a file in ``folder`` that is newer than its sources is kept.

    Without ``fuzzer`` a program runs each file that its command line names. ``sanitizers``: the value of -fsanitize.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kernels = sorted((ROOT / "kernels/c").rglob("*.c"))
    driver = [] if fuzzer else [NATIVE / "replay.c"]
    chosen = [f"-fsanitize={sanitizers}"] if sanitizers else []
    compiling = [*chosen, "-fsanitize=fuzzer-no-link"] if fuzzer else chosen
    linking = [*chosen, "-fsanitize=fuzzer"] if fuzzer else chosen
    with ThreadPoolExecutor(2) as pool:
        made = [
            pool.submit(compile_source, [compiler, *FLAGS, *MORE, *compiling], source, folder)
            for source in [*kernels, *driver, *(NATIVE / f"{name}.c" for name in TARGETS)]
        ]
        objects = {one.result().stem: one.result() for one in made}
    own = {f"native-{name}": name for name in TARGETS}
    shared = [str(path) for stem, path in objects.items() if stem not in own]
    out = {}
    for stem, name in own.items():
        out[name] = folder / name
        if is_stale(out[name], [objects[stem], *map(Path, shared)]):
            run([compiler, *MORE, *linking, str(objects[stem]), *shared, "-lm", "-pthread", "-o", str(out[name])])
    return out


def compile_source(command: list[str], source: Path, folder: Path) -> Path:
    stem = "-".join(source.with_suffix("").parts[-2:])
    target, depends = folder / f"{stem}.o", folder / f"{stem}.d"
    read = depends.read_text().replace("\\\n", " ").split()[1:] if depends.is_file() else []
    if not read or is_stale(target, [Path(name) for name in read]):
        run([*command, "-MMD", "-c", str(source), "-o", str(target)])
    return target


def is_stale(target: Path, sources: list[Path]) -> bool:
    if not target.is_file() or not all(source.is_file() for source in sources):
        return True
    return any(source.stat().st_mtime > target.stat().st_mtime for source in sources)


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")


def record(folder: Path, *sets: str) -> None:
    """Write the flows and encoders of the native targets to ``folder``."""
    subprocess.run([sys.executable, harness.FUZZ / "record.py", folder / "programs", *sets], check=True)


def unpack(name: str, folder: Path) -> list[Path]:
    """Write the inputs of a target to files in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    out = []
    for data in inputs(name):
        out.append(folder / hashlib.sha256(data).hexdigest()[:16])
        out[-1].write_bytes(data)
    return out


def main() -> int:
    """Build, record and replay; 1 if a target ends with an error, which is printed."""
    word, *names = sys.argv[1:]
    folder = ROOT / "build" / "fuzz" / word
    built = build(os.environ.get("CC", "gcc"), folder, SANITIZERS[word])
    record(folder, *SETS.get(word, []))
    own = {"FASTFLOW_PROGRAMS": str(folder / "programs"), "FASTFLOW_CALLERS": CALLERS.get(word, "1")}
    faults = 0
    for name in names or built:
        with tempfile.TemporaryDirectory() as place:
            files = unpack(name, Path(place))
            files = files[:: -(-len(files) // MOST.get(word, len(files) or 1)) or 1]
            command = [*RUN.get(word, []), built[name], *files]
            done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, check=False)
        print(f"{word} {name}: {done.stdout.strip() if done.returncode == 0 else done.stderr}", flush=True)
        faults += done.returncode != 0
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
