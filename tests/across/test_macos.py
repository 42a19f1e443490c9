"""macOS simulated: without what only Linux has, the same bytes come out. No Mac has run this."""

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import fastflow

from support.places import ROOT, USERS
from support.processes import run_limited
from support.servers import serving_process

# sitecustomize.py of a process: an Apple processor of 3 performance cores, 16 GB, and no file below /proc and /sys
MAC = """
import errno, os, resource, select, signal, socket, sys
ABSENT = {
    os: "O_TMPFILE O_LARGEFILE O_PATH copy_file_range eventfd getrandom getxattr memfd_create pidfd_open pipe2 "
        "posix_fadvise posix_fallocate sched_getaffinity sched_setaffinity setns setxattr splice unshare",
    resource: "RLIMIT_OFILE RUSAGE_THREAD prlimit",
    select: "epoll",
    signal: "SIGPOLL SIGPWR sigtimedwait sigwaitinfo",
    socket: "SOCK_CLOEXEC SOCK_NONBLOCK TCP_USER_TIMEOUT",
}
for module, names in ABSENT.items():
    for name in names.split():
        vars(module).pop(name, None)
import asyncio, ctypes, multiprocessing, platform, urllib.request  # they ask for the system when they are imported
errno.EOPNOTSUPP, sys.platform, platform.system = 102, "darwin", lambda: "Darwin"
multiprocessing.set_start_method("spawn")
def gone(event, arguments):
    path = os.fsdecode(arguments[0]) if arguments and isinstance(arguments[0], (str, bytes)) else ""
    if event in ("open", "os.listdir") and path.startswith(("/proc", "/sys/")):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
class Library:
    def sysctlbyname(name, value, size, new, length):
        if name != b"hw.perflevel0.physicalcpu":
            return -1
        value._obj.value = 3
        return 0
ctypes.CDLL = lambda name: Library
sys.addaudithook(gone)
"""
MAIN = "from fastflow.cli import main; main()"
READ = """
import json
from fastflow.bench.measure.machine import Neighbours, describe
from fastflow.kernels.processor import count_allowed
print(json.dumps([count_allowed(), describe(), Neighbours().processors()]))
"""


@pytest.fixture(scope="module")
def mac(tmp_path_factory):
    """The environment of a process on the simulated machine."""
    folder = tmp_path_factory.mktemp("mac")
    (folder / "sitecustomize.py").write_text(MAC)
    return {"PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}


def run(code, *words, folder, env):
    done = run_limited([sys.executable, "-c", code, *words], cwd=folder, env=USERS | {"OMP_NUM_THREADS": ""} | env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def embed(folder, env):
    """Embed 3,000 lines, half of them repeated, with a new and a full cache, into three formats; search one."""
    folder.mkdir()
    (folder / "in.txt").write_text("".join(f"line {n % 1500} of a page\n" for n in range(3000)), encoding="utf-8")
    for out in ("a.npy", "again.npy", "a.db", "a.jsonl"):
        reuse = ("--cache", "kept.db") if out.endswith(".npy") else ("--dedupe",)
        run(MAIN, "embed", "in.txt", "-m", "static", "-o", out, *reuse, folder=folder, env=env)
    found = run(MAIN, "search", "a.db", "line 7", "-m", "static", "--json", folder=folder, env=env)
    return [found, *((folder / name).read_bytes() for name in ("a.npy", "again.npy", "a.jsonl"))]


@pytest.mark.slow
def test_a_file_gets_the_same_bytes(mac, tmp_path):
    assert embed(tmp_path / "mac", mac) == embed(tmp_path / "linux", {})


@pytest.mark.slow
def test_the_server_answers_with_the_same_vector(mac, tmp_path):
    with serving_process("-m", "static", folder=tmp_path, env=mac) as server:
        answer = server.post("/v1/embeddings", {"input": "a cat", "model": "static"})
        assert server.get("/metrics").status == 200
    own = fastflow.Runtime("static").encode("a cat", normalize_embeddings=True)
    np.testing.assert_array_equal(np.float32(answer.json["data"][0]["embedding"]), own)


def test_threads_are_the_performance_cores_and_the_machine_is_described(mac, tmp_path):
    allowed, machine, neighbours = json.loads(run(READ, folder=tmp_path, env=mac))
    assert allowed == [os.cpu_count(), 3]
    assert neighbours is None
    assert machine["system"].startswith("Darwin")
    assert machine["memory_gib"] > 0
    assert "3 threads" in run(MAIN, "info", folder=tmp_path, env=mac)


# files that name a folder of Linux's kernel; its absence is no error
READERS = {
    "bench/measure/machine.py", "bench/measure/meter.py", "bench/suites/serve.py", "bench/suites/cold_start.py",
    "kernels/processor.py",
}  # fmt: skip


def test_folders_that_only_linux_has_are_read_where_their_absence_is_expected():
    """Functions and constants are checked by mypy for macOS: tests/macos.sh."""
    linux = re.compile(r"[\"'](/proc|/sys|/dev/shm|/run)\b|\.so\.\d|\blibc\b(?!\.)")
    found = {
        path.relative_to(ROOT).as_posix()
        for room in ("fastflow", "kernels", "train", "bench")
        for path in Path(ROOT, room).rglob("*.py")
        if linux.search(path.read_text(encoding="utf-8"))
    }
    assert found == READERS
