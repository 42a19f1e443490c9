"""The machine of a benchmark, described without host names or paths."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

FLAGS = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx_vnni"),
    *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8", "asimd", "asimddp", "bf16", "i8mm", "sve"),
)
PACKAGES = (
    *("numpy", "torch", "triton", "matplotlib", "transformers", "tokenizers", "sentence-transformers"),
    *("onnxruntime", "openvino", "nncf", "fastembed", "model2vec"),
)


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
