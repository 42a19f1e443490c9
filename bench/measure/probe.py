"""The machine's ceilings, measured: multiply-add peak and read and copy bandwidth, by threads and by memory level.

A few lines of C are compiled for the machine at hand, because a library's matrix product can be far from the peak (on a
processor it was not tuned for, by half). Without a C compiler PyTorch's matrix product and sum stand in, which the
result notes.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from fastflow.errors import FastflowError

SAMPLE_S = 4e-3

SOURCE = r"""
#include <stddef.h>
#include <string.h>
#if defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__linux__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
long tiles(void) { return !syscall(SYS_arch_prctl, 0x1023, 18); } /* whether the system lets this process use them */
/* n rounds of 4 independent products of AMX tiles, 16 x 64 bytes by 64 bytes x 16 */
#define ROUNDS(dot) for (; n; n--) { dot(0, 4, 6); dot(1, 4, 7); dot(2, 5, 6); dot(3, 5, 7); }
struct layout { char palette, start, none[14]; short bytes[16]; char rows[16]; };
void multiply_tiles(long n, int whole) {
    static const struct layout layout = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    char data[2048] __attribute__((aligned(64)));
    for (int i = 0; i < 2048; i++) data[i] = i % 2 ? 0x3c : (char)(37 * i);
    __asm__ volatile("" ::: "memory");
    _tile_loadconfig(&layout);
    _tile_loadd(4, data, 64); _tile_loadd(5, data + 1024, 64);
    _tile_loadd(6, data, 64); _tile_loadd(7, data + 1024, 64);
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    if (whole) ROUNDS(_tile_dpbssd) else ROUNDS(_tile_dpbf16ps)
    _tile_release();
}
#else
long tiles(void) { return 0; }
void multiply_tiles(long n, int whole) {}
#endif
#ifdef __AVX512F__
typedef float v __attribute__((vector_size(64)));
#elif defined(__AVX__)
typedef float v __attribute__((vector_size(32)));
#else
typedef float v __attribute__((vector_size(16)));
#endif
/* n rounds of 12 independent multiply-adds: enough to cover latency 4 at 2 a cycle, few enough for 16 registers */
double multiply_add(long n) {
    v a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, b, c;
    b = (v){0} + 0.999f; c = (v){0} + 0.1f;
    v *a[12] = {&a0, &a1, &a2, &a3, &a4, &a5, &a6, &a7, &a8, &a9, &a10, &a11};
    for (int j = 0; j < 12; j++) *a[j] = (v){0} + (float)(j + n % 7); /* unlike, or they would be computed once */
    for (long i = 0; i < n; i++) {
        a0 = a0 * b + c; a1 = a1 * b + c; a2 = a2 * b + c; a3 = a3 * b + c; a4 = a4 * b + c; a5 = a5 * b + c;
        a6 = a6 * b + c; a7 = a7 * b + c; a8 = a8 * b + c; a9 = a9 * b + c; a10 = a10 * b + c; a11 = a11 * b + c;
    }
    v s = a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7 + a8 + a9 + a10 + a11;
    return s[0];
}
long floats_per_round(void) { return 12 * (long)(sizeof(v) / sizeof(float)); }
/* reads n floats, a multiple of 128, `rounds` times */
double read_all(const float *x, size_t n, long rounds) {
    v s[8] = {{0}};
    const size_t w = sizeof(v) / sizeof(float);
    for (long r = 0; r < rounds; r++) {
        for (size_t i = 0; i < n; i += 8 * w)
            for (int j = 0; j < 8; j++) s[j] += *(const v *)(x + i + j * w);
        __asm__ volatile("" ::: "memory");
    }
    v t = s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
    return t[0];
}
void copy_all(float *to, const float *from, size_t n, long rounds) {
    for (long r = 0; r < rounds; r++) { memcpy(to, from, n * sizeof(float)); __asm__ volatile("" ::: "memory"); }
}
"""


class Probe:
    """The compiled probe; a call releases the GIL, so Python threads run it side by side."""

    def __init__(self) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise FastflowError("no C compiler: neither cc, gcc nor clang is on the PATH")
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder, "probe.c"), Path(folder, "probe.so")
            source.write_text(SOURCE, encoding="utf-8")
            flags = ["-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC"]
            built = subprocess.run(
                [compiler, *flags, "-o", library, source], capture_output=True, text=True, check=False
            )
            if built.returncode:
                raise FastflowError(f"the C compiler failed: {built.stderr.strip().splitlines()[-1]}")
            self._library = ctypes.CDLL(str(library))
        size, number, pointer = ctypes.c_size_t, ctypes.c_long, ctypes.c_void_p
        self._library.multiply_add.argtypes, self._library.multiply_add.restype = [number], ctypes.c_double
        self._library.read_all.argtypes, self._library.read_all.restype = [pointer, size, number], ctypes.c_double
        self._library.copy_all.argtypes = [pointer, pointer, size, number]
        self._library.floats_per_round.restype = number
        self._library.tiles.restype = number
        self._library.multiply_tiles.argtypes = [number, ctypes.c_int]

    def fma_gflops(self, threads: int, seconds: float) -> float:
        """10^9 float32 operations (a multiply-add is two) a second, registers only."""
        flop = 2 * int(self._library.floats_per_round())
        return _rate(lambda rounds: lambda _: self._library.multiply_add(rounds), flop, threads, seconds)

    def tiles_gflops(self, threads: int, seconds: float) -> dict[str, float]:
        """10^9 operations a second in tiles of AMX by dtype, registers only; {} if this process has none."""
        if not self._library.tiles():
            return {}

        def rate(whole: int) -> float:
            flop = 4 * 2 * 16 * 16 * (64 if whole else 32)
            return _rate(lambda rounds: lambda _: self._library.multiply_tiles(rounds, whole), flop, threads, seconds)

        return {"bfloat16": rate(0), "int8": rate(1)}

    def read_gbs(self, threads: int, megabytes: float, seconds: float) -> float:
        """10^9 bytes read a second, each thread going over its own ``megabytes`` again and again."""
        buffers = [_buffer(megabytes, 1.0) for _ in range(threads)]
        n = buffers[0].size

        def work(rounds: int) -> Callable[[int], Any]:
            return lambda i: self._library.read_all(buffers[i].ctypes.data, n, rounds)

        return _rate(work, 4 * n, threads, seconds)

    def copy_gbs(self, threads: int, megabytes: float, seconds: float) -> float:
        """10^9 bytes read plus written a second by memcpy, each thread between two halves of its own ``megabytes``."""
        pairs = [(_buffer(megabytes / 2, 1.0), _buffer(megabytes / 2, 0.0)) for _ in range(threads)]
        n = pairs[0][0].size

        def work(rounds: int) -> Callable[[int], Any]:
            return lambda i: self._library.copy_all(pairs[i][1].ctypes.data, pairs[i][0].ctypes.data, n, rounds)

        return _rate(work, 8 * n, threads, seconds)


def _buffer(megabytes: float, value: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """At least ``megabytes``, touched, 64-byte aligned, a multiple of 128 floats."""
    n = max(1, round(megabytes * 2**20 / 4 / 128)) * 128
    raw = np.full(n + 16, value, np.float32)
    start = (-raw.ctypes.data // 4) % 16
    return raw[start : start + n]


def _rate(work: Callable[[int], Callable[[int], Any]], amount: int, threads: int, seconds: float) -> float:
    """``amount`` a round and a thread, in 10^9 a second: the best of many short samples."""
    with ThreadPoolExecutor(threads) as pool:

        def sample(rounds: int) -> float:
            start = perf_counter()
            list(pool.map(work(rounds), range(threads)))
            return perf_counter() - start

        rounds = 1
        while (best := min(sample(rounds) for _ in range(4))) < SAMPLE_S / 2:
            rounds *= 2
        end = perf_counter() + seconds
        while perf_counter() < end:
            best = min(best, sample(rounds))
        return threads * rounds * amount / best / 1e9


class TorchProbe:
    """The same figures from PyTorch's own operations, if nothing can be compiled: lower bounds of the ceilings."""

    def fma_gflops(self, threads: int, seconds: float) -> float:
        """The rate of a 1024 x 1024 x 1024 float32 matrix product."""
        return sgemm_gflops(threads, seconds)

    def tiles_gflops(self, threads: int, seconds: float) -> dict[str, float]:
        """{}: PyTorch's products are too far from what tiles can do."""
        return {}

    def read_gbs(self, threads: int, megabytes: float, seconds: float) -> float:
        """The rate of a float32 sum over ``megabytes`` times ``threads``."""
        import torch

        x = torch.ones(int(megabytes * 2**18) * threads)
        return _torch_rate(lambda: torch.sum(x), 4 * len(x), threads, seconds)

    def copy_gbs(self, threads: int, megabytes: float, seconds: float) -> float:
        """The rate of a float32 copy, both sides counted."""
        import torch

        x = torch.ones(int(megabytes * 2**17) * threads)
        y = torch.empty_like(x)
        return _torch_rate(lambda: y.copy_(x), 8 * len(x), threads, seconds)


def sgemm_gflops(threads: int, seconds: float, size: int = 1024) -> float:
    """10^9 operations a second of PyTorch's float32 matrix product, the practical ceiling of the PyTorch peers."""
    import torch

    a, b, out = (torch.ones(size, size) for _ in range(3))
    return _torch_rate(lambda: torch.mm(a, b, out=out), 2 * size**3, threads, seconds)


def _torch_rate(call: Callable[[], object], amount: int, threads: int, seconds: float) -> float:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        call()
        best, end = float("inf"), perf_counter() + seconds
        while perf_counter() < end:
            start = perf_counter()
            call()
            best = min(best, perf_counter() - start)
    finally:
        torch.set_num_threads(before)
    return amount / best / 1e9
