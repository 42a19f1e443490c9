"""The native targets, built with sanitizers: by clang with libFuzzer, or by any compiler to replay single inputs."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NATIVE = Path(__file__).resolve().parent / "native"
SUPPORT = ("replay",)  # sources that are no target
FLAGS = [
    "-std=gnu11", "-O1", "-g", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-Wno-psabi",
    "-I", str(ROOT / "kernels/c"), "-I", str(NATIVE), "-fno-sanitize-recover=all", "-fno-omit-frame-pointer",
]  # fmt: skip


def targets() -> list[str]:
    """The names of the native targets."""
    return sorted(path.stem for path in NATIVE.glob("*.c") if path.stem not in SUPPORT)


def fuzzing_compiler() -> str | None:
    """A clang with libFuzzer, CLANG or the first in the path; None if there is none."""
    for name in [os.environ.get("CLANG", "clang"), *(f"clang-{version}" for version in range(22, 13, -1))]:
        if shutil.which(name):
            printed = [name, "-print-file-name=libclang_rt.fuzzer-x86_64.a", "--rtlib=compiler-rt"]
            runtime = subprocess.run(printed, capture_output=True, text=True, check=True).stdout.strip()
            found = Path(runtime).is_file() or list(Path(runtime_folder(name)).rglob("libclang_rt.fuzzer*.a"))
            if found:
                return name
    return None


def runtime_folder(compiler: str) -> str:
    """The folder of the libraries of ``compiler``, a clang."""
    return subprocess.run([compiler, "-print-resource-dir"], capture_output=True, text=True, check=True).stdout.strip()


def build(compiler: str, folder: Path, sanitizers: str, fuzzer: bool = False) -> dict[str, Path]:
    """name -> the program of each target; what is in ``folder`` and newer than its sources is kept.

    Without ``fuzzer`` a program takes the names of inputs and runs each once. ``sanitizers``: as -fsanitize takes
    them; "" for none.
    """
    names = targets()
    folder.mkdir(parents=True, exist_ok=True)
    kernels = sorted((ROOT / "kernels/c").rglob("*.c"))
    driver = [] if fuzzer else [NATIVE / "replay.c"]
    chosen = [f"-fsanitize={sanitizers}"] if sanitizers else []
    compiling = [*chosen, "-fsanitize=fuzzer-no-link"] if fuzzer else chosen
    linking = [*chosen, "-fsanitize=fuzzer"] if fuzzer else chosen
    with ThreadPoolExecutor(2) as pool:
        made = [
            pool.submit(compiled, [compiler, *FLAGS, *compiling], source, folder)
            for source in [*kernels, *driver, *(NATIVE / f"{name}.c" for name in names)]
        ]
        objects = {one.result().stem: one.result() for one in made}
    own = {f"native-{name}": name for name in names}
    shared = [str(path) for stem, path in objects.items() if stem not in own]
    out = {}
    for stem, name in own.items():
        out[name] = folder / name
        if newer(out[name], [objects[stem], *map(Path, shared)]):
            run([compiler, *linking, str(objects[stem]), *shared, "-lm", "-pthread", "-o", str(out[name])])
    return out


def compiled(command: list[str], source: Path, folder: Path) -> Path:
    """The object of ``source``, made again if a file that it read has changed."""
    stem = "-".join(source.with_suffix("").parts[-2:])
    target, depends = folder / f"{stem}.o", folder / f"{stem}.d"
    read = depends.read_text().replace("\\\n", " ").split()[1:] if depends.is_file() else []
    if not read or newer(target, [Path(name) for name in read]):
        run([*command, "-MMD", "-c", str(source), "-o", str(target)])
    return target


def newer(target: Path, sources: list[Path]) -> bool:
    """Whether ``target`` is missing or older than one of ``sources``, or one of these is missing."""
    if not target.is_file() or not all(source.is_file() for source in sources):
        return True
    return any(source.stat().st_mtime > target.stat().st_mtime for source in sources)


def run(command: list[str]) -> None:
    """Run a compiler; raises SystemExit with what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
