"""The machine a benchmark ran on, described without host names or paths, and the ceilings measured on it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fastflow.bench.measure.probe import Probe, TorchProbe, sgemm_gflops
from fastflow.errors import FastflowError

FLAGS = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx_vnni"),
    *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8", "asimd", "asimddp", "bf16", "i8mm", "sve"),
)
PACKAGES = (
    *("numpy", "torch", "triton", "matplotlib", "transformers", "tokenizers", "sentence-transformers"),
    *("onnxruntime", "openvino", "nncf", "ctranslate2", "xllamacpp", "zentorch", "fastembed"),
    "model2vec",
    *("optimum-onnx", "optimum-intel"),
)
RATE = {"float32": 1.0, "bfloat16": 2.0, "int8": 4.0}  # operations relative to float32's, at equal vector width


def usable_threads() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe(device: str = "cpu") -> dict[str, Any]:
    """Processor, instruction sets, caches, memory, versions and, for ``cuda``, the GPU; the ``machine`` of the JSON."""
    info = content("/proc/cpuinfo")
    flags = set((_field(info, "flags") or _field(info, "Features") or "").split())
    memory = re.search(r"MemTotal:\s+(\d+) kB", content("/proc/meminfo"))
    machine: dict[str, Any] = {
        "processor": _field(info, "model name") or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "processors_usable": usable_threads(),
        "threads_per_core": _threads_per_core(),
        "instruction_sets": [flag for flag in FLAGS if flag in flags],
        "caches_kib": caches(),
        "memory_gib": round(int(memory[1]) / 2**20, 1) if memory else None,
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "commit": commit(),
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


def commit() -> str | None:
    """The last commit that changed what is measured, with a + for changes not committed; None without a checkout."""
    root, measured = Path(__file__).resolve().parents[2], ["--", "kernels", "fastflow", "setup.py"]

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words, *measured]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return (git("log", "-1", "--format=%h") + "+" * bool(git("status", "--porcelain"))) or None
    except (OSError, subprocess.CalledProcessError):
        return None


def caches() -> dict[str, int]:
    """{L1d, L2, L3: KiB of the one that the first processor sees}; a level that is not reported is absent."""
    found = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (content(folder / name).strip() for name in ("level", "type", "size"))
        if kind in ("Data", "Unified") and size.endswith("K"):
            found[f"L{level}" + ("d" if level == "1" else "")] = int(size[:-1])
    return found


def _threads_per_core() -> int | None:
    siblings = content("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list").strip()
    return len(re.findall(r"\d+", siblings)) or None


def _field(text: str, name: str) -> str | None:
    match = re.search(rf"^{name}\s*:\s*(.*)$", text, re.MULTILINE)
    return match[1].strip() if match else None


def content(path: str | Path) -> str:
    """The file's content, empty if the system has no such file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def memory_available() -> int:
    """Bytes that can be allocated without swapping, as the system estimates; a very large number if it does not."""
    match = re.search(r"MemAvailable:\s+(\d+) kB", content("/proc/meminfo"))
    return int(match[1]) * 1024 if match else 1 << 62


class Neighbours:
    """How busy everybody else keeps the processors from now on: PyTorch's threads wait long for one that is taken."""

    def __init__(self) -> None:
        self._start = self._now()

    def processors(self) -> float | None:
        """The average number of processors that other processes, or other guests of the host, used; None: unknown."""
        if self._start is None or (now := self._now()) is None:
            return None
        wall, everybody, own = (b - a for a, b in zip(self._start, now, strict=True))
        return max(0.0, everybody - own) / max(wall, 1e-9)

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        """Seconds: elapsed, of all processors in use, and of ours among these."""
        if not (match := re.match(r"cpu +([\d ]+)", content("/proc/stat"))):
            return None
        user, nice, system, _, _, irq, softirq, steal = map(int, match[1].split()[:8])
        own = os.times()
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        return own.elapsed, busy, own.user + own.system + own.children_user + own.children_system


@dataclass(frozen=True)
class Ceilings:
    """The ceilings of the machine with ``threads`` threads; rates in 10^9 operations and bytes a second."""

    threads: int
    source: str  # how it was measured
    fma_gflops: float  # registers only
    sgemm_gflops: float  # PyTorch's matrix product
    gbs: dict[str, float]  # by level: reads that stay in L2 or L3, copies (read + write) in memory
    level_bytes: dict[str, float]  # the largest working set of all threads that counts as that level
    tiles_gflops: dict[str, float] = field(default_factory=dict)  # by dtype, if the processor has AMX

    def level(self, working_set: float) -> str:
        """The memory level that holds ``working_set`` bytes."""
        return next((name for name, size in self.level_bytes.items() if working_set <= size), "memory")

    def floor_ms(self, flop: float, traffic: float, working_set: float) -> float:
        """The least time for ``flop`` operations and ``traffic`` bytes: the longer of the two alone."""
        return max(flop / self.fma_gflops, traffic / self.gbs[self.level(working_set)]) / 1e6

    def as_dict(self) -> dict[str, Any]:
        """The entry under ``machine.ceilings``."""
        return {
            "threads": self.threads,
            "measured_with": self.source,
            "fma_gflops": round(self.fma_gflops, 1),
            "sgemm_gflops": round(self.sgemm_gflops, 1),
            "gbs": {name: round(rate, 1) for name, rate in self.gbs.items()},
            "tiles_gflops": {dtype: round(rate, 1) for dtype, rate in self.tiles_gflops.items()},
        }


def peak_gflops(ceiling: Mapping[str, Any], dtype: str) -> float:
    """The arithmetic ceiling of ``dtype`` in an entry under ``machine.ceilings``: that of AMX's tiles if it was
    measured, else float32's, twice that for bfloat16 and four times for int8.
    """
    found = ceiling.get("tiles_gflops", {}).get(dtype)
    return float(found or ceiling["fma_gflops"] * RATE[dtype])


def ceilings(threads: Sequence[int], seconds: float = 0.2) -> dict[int, Ceilings]:
    """Measure the CPU's ceilings for each number of threads, ``seconds`` for each figure."""
    probe: Probe | TorchProbe
    try:
        probe, source = Probe(), "compiled C: independent multiply-adds, reads of a working set, memcpy"
    except FastflowError as error:
        probe, source = TorchProbe(), f"PyTorch's matrix product, sum and copy ({error})"
    sizes = caches()
    l2, l3 = sizes.get("L2", 1024) / 1024, sizes.get("L3", 0) / 1024  # MiB
    found = {}
    for n in threads:
        gbs, level_bytes = {"L2": probe.read_gbs(n, l2 / 2, seconds)}, {"L2": n * l2 * 2**20}
        if l3 > 2 * n * l2:
            gbs["L3"], level_bytes["L3"] = probe.read_gbs(n, l3 / 2 / n, seconds), l3 * 2**20
        gbs["memory"] = probe.copy_gbs(n, max(4 * l3, 256) / n, seconds)
        flops = probe.fma_gflops(n, seconds), sgemm_gflops(n, seconds)
        found[n] = Ceilings(n, source, *flops, gbs, level_bytes, probe.tiles_gflops(n, seconds))
    return found


def cuda_ceilings(seconds: float = 0.05) -> Ceilings:
    """The GPU's ceilings: PyTorch's float32 matrix product without TF32, and its copy on the device."""
    import torch

    from fastflow.bench.measure.timing import cuda_watch

    def rate(call: Any, amount: float) -> float:
        cuda_watch(call, 2)
        rounds = max(1, round(seconds / cuda_watch(call, 1)))
        return amount * rounds / min(cuda_watch(call, rounds) for _ in range(3)) / 1e9

    a, b, out = (torch.ones(4096, 4096, device="cuda") for _ in range(3))
    product = rate(lambda: torch.mm(a, b, out=out), 2 * 4096**3)
    x = torch.ones(1 << 28, device="cuda")
    y = torch.empty_like(x)
    copy = rate(lambda: y.copy_(x), 8 * x.numel())
    source = "PyTorch's float32 matrix product without TF32, device-to-device copy"
    return Ceilings(0, source, product, product, {"memory": copy}, {})
