"""The machine of a benchmark, described without host names or paths, and its ceilings."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from fastflow.bench.measure.row import Row
from fastflow.bench.measure.timing import Watch, cpu_watch, cuda_watch

FLAGS = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx_vnni"),
    *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8", "asimd", "asimddp", "bf16", "i8mm", "sve"),
)
PACKAGES = (
    *("numpy", "torch", "triton", "transformers", "tokenizers", "sentence-transformers"),
    *("onnxruntime", "openvino", "nncf", "fastembed", "model2vec", "semhash", "faiss-cpu"),
)
DTYPES = {"cpu": ("float32",), "cuda": ("float32", "tf32", "float16", "bfloat16")}
SIDES = {"cpu": 1024, "cuda": 8192}  # side of the square matrices multiplied
FLOATS = {"cpu": 1 << 26, "cuda": 1 << 28}  # numbers read, more than any cache
WATCHES: dict[str, Watch] = {"cpu": cpu_watch, "cuda": cuda_watch}
THIRD = {"tf32x3": "tf32"}  # tf32x3 takes three products in tf32


def usable_threads() -> int:
    """Return the processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe(device: str = "cpu") -> dict[str, Any]:
    """Return ``machine`` of the JSON: processor, caches, memory, versions and, for cuda, the GPU."""
    info = read_text("/proc/cpuinfo")
    flags = (_find_field(info, "flags") or _find_field(info, "Features") or "").split()
    name = _find_field(info, "model name") or _ask("sysctl", "-n", "machdep.cpu.brand_string")
    siblings = read_text("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
    machine: dict[str, Any] = {
        "processor": name or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "processors_usable": usable_threads(),
        "threads_per_core": len(re.findall(r"\d+", siblings)) or None,
        "instruction_sets": [flag for flag in FLAGS if flag in flags],
        "caches_kib": _read_caches(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _find_version(name))},
        "commit": find_commit(),
        "gpu": None,
    }
    if device == "cuda":
        import torch

        gpu = torch.cuda.get_device_properties(0)
        machine["gpu"] = {
            "name": gpu.name,
            "memory_gib": round(gpu.total_memory / 2**30, 1),
            "multiprocessors": gpu.multi_processor_count,
            "capability": f"{gpu.major}.{gpu.minor}",
            "cuda": torch.version.cuda,
        }
    return machine


def find_commit() -> str | None:
    """Return the product's last commit, with + for uncommitted changes; None without a checkout."""
    root, measured = Path(__file__).resolve().parents[2], ["--", "kernels", "fastflow", "setup.py"]
    git = "git", "-C", str(root)
    commit = _ask(*git, "log", "-1", "--format=%h", *measured)
    return commit and commit + "+" * bool(_ask(*git, "status", "--porcelain", *measured))


def _ask(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() or None
    except (OSError, subprocess.CalledProcessError):
        return None


def _read_caches() -> dict[str, int]:
    found = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (read_text(folder / name).strip() for name in ("level", "type", "size"))
        if kind in ("Data", "Unified") and size.endswith("K"):
            found[f"L{level}" + ("d" if level == "1" else "")] = int(size[:-1])
    return found


def _find_field(text: str, name: str) -> str | None:
    match = re.search(rf"^{name}\s*:\s*(.*)$", text, re.MULTILINE)
    return match[1].strip() if match else None


def read_text(path: str | Path) -> str:
    """Return a file's content; empty if absent."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def _find_version(package: str) -> str | None:
    return next((each.version for each in distributions(name=package)), None)


class Neighbours:
    """The load of other processes from now on."""

    def __init__(self) -> None:
        self._start = self._now()

    def processors(self) -> float | None:
        """Return how many processors others used on average; None: unknown."""
        if self._start is None or (now := self._now()) is None:
            return None
        wall, everybody, own = (b - a for a, b in zip(self._start, now, strict=True))
        return max(0.0, everybody - own) / max(wall, 1e-9)

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        if not (match := re.match(r"cpu +([\d ]+)", read_text("/proc/stat"))):
            return None
        user, nice, system, _, _, irq, softirq, steal = map(int, match[1].split()[:8])
        own = os.times()
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        return own.elapsed, busy, own.user + own.system + own.children_user + own.children_system


def measure_ceilings(device: str, threads: int, seconds: float, side: int = 0) -> dict[str, Any]:
    """Return the entry of ``machine.ceilings``: 10^9 operations by dtype, and 10^9 bytes read, a second.

    The best of three samples of ``seconds``. ``side`` replaces SIDES.
    """
    import torch

    watch, size, floats = WATCHES[device], side or SIDES[device], side * side or FLOATS[device]

    def find_fastest(call: Callable[[], Any]) -> float:
        calls = max(1, round(seconds / max(watch(call, 2) / 2, 1e-6)))
        return min(watch(call, calls) for _ in range(3)) / calls

    rates, before = {}, torch.backends.cuda.matmul.allow_tf32
    try:
        for dtype in DTYPES[device]:
            torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
            kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
            a, b, out = (torch.ones(size, size, dtype=kind, device=device) for _ in range(3))
            seconds_each = find_fastest(lambda a=a, b=b, out=out: torch.mm(a, b, out=out))  # type: ignore[misc]
            rates[dtype] = 2 * size**3 / seconds_each / 1e9
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    data = torch.ones(floats, device=device)
    return {
        "threads": threads,
        "measured_with": f"PyTorch: products of {size} x {size}, a sum of {floats} floats",
        "sgemm_gflops": rates["float32"],
        "gflops": rates,
        "gbs": {"reads": 4 * floats / find_fastest(data.sum) / 1e9},
    }


def add_floors(rows: Iterable[Row], ceilings: dict[str, Any]) -> None:
    """If a row has GFLOP/s and GB/s, add the least time that ``ceilings`` allow, and measured / least time."""
    for row in rows:
        dtype = row["dtype"]
        rate = ceilings["gflops"].get(THIRD.get(dtype, dtype), 0.0) / (3 if dtype in THIRD else 1)
        if row["threads"] == ceilings["threads"] and rate and row.get("gflops") and row.get("gbs"):
            share = max(row["gflops"] / rate, row["gbs"] / ceilings["gbs"]["reads"])
            row |= {"floor_ms": row["median_ms"] * share, "times_floor": 1 / share}
