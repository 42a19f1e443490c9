"""The compiled kernels in a process: a text has the same bits in any company, on any threads, and after a fork."""

import ctypes
import mmap
import os
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fastflow.kernels.encoder.cpu import DTYPES
from fastflow.kernels.flow.cpu import CpuFlow
from fastflow.plan import fold

from support import stages as make
from support.memory import resident
from support.subjects import ENCODERS, SUBJECTS, encoder, opened

QUICK = [("windows", "float32"), ("every pooling", "float32")]
QUICK += [(name, dtype) for name in ENCODERS if name[0] == "[" or name == "a long reduction" for dtype in DTYPES]
SLOW = [(name, dtype) for name in ENCODERS for dtype in DTYPES if (name, dtype) not in QUICK]


def assert_same_bits(subject, isa):
    compute, every = opened(subject, isa), list(range(subject.count))
    want = compute(every, 1)
    assert len(set(want)) > len(want) / 2
    parts = [every, every[::-1], every[::-3], *([i] for i in (every if subject.alone is None else subject.alone))]
    parts += [every[7 * n % (subject.count - n) :][:n] for n in subject.sizes]
    for threads in subject.threads:
        for some in parts:
            assert compute(some, threads) == [want[i] for i in some], (threads, some)


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_text_has_the_same_bits_in_any_company(float_isa, name):
    assert_same_bits(SUBJECTS[name], float_isa)


@pytest.mark.parametrize(("name", "dtype"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)])
def test_an_encoders_text_has_the_same_bits_in_any_company(isa, name, dtype):
    made, pooling, texts, how = ENCODERS[name]
    assert_same_bits(encoder(made, pooling, texts, dtype, **how), isa)


SHARING = ("flow", "small encoder", "tokens")


@pytest.mark.parametrize("name", SHARING)
def test_calls_of_several_python_threads_at_once(float_isa, name):
    compute = partial(opened(SUBJECTS[name], float_isa), threads=3)
    works = [list(range(0, SUBJECTS[name].count, step)) for step in (1, 2, 3, 50)]
    want = [compute(work) for work in works]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(compute, works * 20)) == want * 20


def in_a_child(check):
    """Fork, run ``check`` in the child, and require it to end well within a minute."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            threading.Timer(60, os._exit, (2,)).start()
            check()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


forks = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@forks
@pytest.mark.parametrize("name", SHARING)
def test_a_fork_gets_its_own_threads(float_isa, name):
    compute, every = opened(SUBJECTS[name], float_isa), list(range(SUBJECTS[name].count))
    want = compute(every, 3)

    def child():
        before = count_threads()
        assert compute(every, 3) == want
        assert name != "flow" or count_threads() == before + 2

    in_a_child(child)
    in_a_child(lambda: in_a_child(child))
    assert compute(every, 3) == want


def count_threads():
    return len(list(Path("/proc/self/task").iterdir()))


@forks
@pytest.mark.slow
def test_a_fork_during_calls_of_other_threads(float_isa):
    compute, every = opened(SUBJECTS["flow"], float_isa), list(range(257))
    want, stop = compute(every, 2), threading.Event()

    def check():
        assert compute(every, 2) == want

    def keep_busy():
        while not stop.is_set():
            check()

    def child():
        callers = [threading.Thread(target=keep_busy) for _ in range(2)]
        for caller in callers:
            caller.start()
        for _ in range(20):
            in_a_child(check)
        stop.set()
        for caller in callers:
            caller.join()

    in_a_child(child)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "most"), [("flow", 1 << 20), ("small encoder", 4 << 20)])
def test_calls_keep_no_memory(float_isa, name, most):
    compute, count = opened(SUBJECTS[name], float_isa), SUBJECTS[name].count

    def work(calls):
        for i in range(calls):
            compute(list(range(i % count + 1)), 2)

    work(2 * count)
    before = resident()
    work(1000)
    assert resident() - before <= most


def at_the_end_of_memory(rows, columns):
    """A float32 array that ends where a page begins that may not be touched."""
    page, size = mmap.PAGESIZE, 4 * rows * columns
    pages = -(-size // page)
    memory = mmap.mmap(-1, (pages + 1) * page)
    start = np.frombuffer(memory, np.uint8).ctypes.data
    forbid = ctypes.CDLL(None, use_errno=True).mprotect
    assert forbid(ctypes.c_void_p(start + pages * page), ctypes.c_size_t(page), 0) == 0
    return np.frombuffer(memory, np.float32, rows * columns, pages * page - size).reshape(rows, columns)


@forks
@pytest.mark.parametrize("dim", [48, 100, 768])
def test_nothing_beyond_the_arrays_of_a_flow_is_touched(float_isa, dim):
    rng = np.random.default_rng(dim)
    flow = CpuFlow(fold([make.flow(rng, dim, 2, 1, 8)], dim), threads=1, isa=float_isa)

    def child():
        for rows in (1, 2, 3, 5, 9, 13, 15, 29):
            x, z = at_the_end_of_memory(rows, dim), at_the_end_of_memory(rows, dim)
            x[:] = rng.normal(size=x.shape)
            assert np.array_equal(flow(x, out=z), flow(x.copy()))
            short = at_the_end_of_memory(rows, dim - 3)
            assert np.array_equal(flow(x, truncate=dim - 3, out=short), z[:, : dim - 3])

    in_a_child(child)
