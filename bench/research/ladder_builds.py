"""Builds of the compiled kernels that lack one step each, so that the step's gain can be timed in one process.

A build changes the sources by replacing text that must occur exactly once, and is loaded as a module of its own. No
change alters a bit of any result, which the study checks.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from unittest import mock

from fastflow.kernels.encoder import cpu as encoder_cpu
from fastflow.kernels.flow import cpu as flow_cpu

CHECKOUT = Path(__file__).resolve().parents[2]
FLOW, VECTORS, GROUPS = "c/flow/body.inc", "c/vector_avx512.h", "c/encoder/groups.c"
# what a build lacks: (file below kernels, text, text in its place); one step of the flow and one of the encoder in each
BUILDS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "tiles, prefetch": (
        (
            FLOW, "            product_rows(f, op, scratch, padded);",
            "            for (int r = 0; r < padded; r++) product_row(f, op, scratch + (ptrdiff_t)r * f->stride);",
        ),
        (FLOW, "static void product_rows(", "static __attribute__((unused)) void product_rows("),
        (VECTORS, "_mm_prefetch((const char *)(p), _MM_HINT_T1)", "((void)(p))"),
    ),
    "several sums, groups": (
        (FLOW, "const int wide = op->mode & FF_SPLIT || full < 2 ? 1 : full < 4 ? full : 4;", "const int wide = 1;"),
        (FLOW, "i += 4, part += 12", "i += 1, part += 3"),
        (FLOW, "const int n = op->parts - i < 4 ? op->parts - i : 4;", "const int n = 1;"),
        (GROUPS, "#define GROUP_ROWS 192 ", "#define GROUP_ROWS (1 << 30) "),
    ),
}  # fmt: skip


def build(name: str, folder: Path) -> ModuleType:
    """The compiled module without ``name``, built in ``folder``."""
    shutil.copytree(CHECKOUT / "kernels", folder / "kernels", ignore=shutil.ignore_patterns("*.so", "_cpu.c"))
    shutil.copy(CHECKOUT / "setup.py", folder)
    for file, text, other in BUILDS[name]:
        path = folder / "kernels" / file
        source = path.read_text(encoding="utf-8")
        if source.count(text) != 1:
            raise ValueError(f"kernels/{file} no longer holds {text!r} once: bring ladder_builds.py up to date")
        path.write_text(source.replace(text, other), encoding="utf-8")
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "lib", "--build-temp", "objects"]
    subprocess.run(command, cwd=folder, env=os.environ | {"FASTFLOW_REQUIRE_EXT": "1"}, check=True, stdout=sys.stderr)
    (library,) = (folder / "lib").rglob("_cpu*.so")
    return loaded(library)


def loaded(library: Path) -> ModuleType:
    """A second module beside ``fastflow.kernels._cpu``, with threads and tables of its own."""
    spec = importlib.util.spec_from_file_location("fastflow.kernels._cpu", library)
    if spec is None or spec.loader is None:
        raise ValueError(f"{library} is no extension module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def using(module: ModuleType) -> Iterator[None]:
    """Kernels made inside the block run in ``module``."""
    with mock.patch.object(flow_cpu, "Flow", module.Flow), mock.patch.object(encoder_cpu, "Encoder", module.Encoder):
        yield
