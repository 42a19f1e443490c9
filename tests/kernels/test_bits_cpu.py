"""The compiled kernels in a process: a text has the same bits in any company, on any threads, and after a fork."""

import ctypes
import json
import mmap
import os
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest

from fastflow.kernels.embed import Texts
from fastflow.kernels.encoder import WORDS, Dense, Norm, PoolingSpec, Unit
from fastflow.kernels.encoder.cpu import DTYPES, CpuEncoder
from fastflow.kernels.encoder.texts import MODES
from fastflow.kernels.flow.cpu import CpuFlow
from fastflow.kernels.search import cpu as search
from fastflow.kernels.table.cpu import CpuTable
from fastflow.kernels.table.reference import Table
from fastflow.kernels.tokens import Vocabulary, WordPiece, WordPieceRules
from fastflow.plan import fold

from support import stages as make
from support.encoders import texts_of, with_windows
from support.memory import resident
from support.packed import VOCABULARY, pack, random_encoder, random_modernbert, random_mpnet, select, token_weights
from support.unicode import mixed


class Subject(NamedTuple):
    """A kernel, ``open(threads, isa)``, of ``count`` texts, ``texts(numbers)``, and how they are divided."""

    open: Callable[[int, str], Callable[..., Iterable[Any]]]
    texts: Callable[[list[int]], tuple[Any, ...]]
    count: int
    threads: Sequence[int] = (1, 2, 3)
    alone: Sequence[int] | None = None  # texts that are computed alone; None: all
    sizes: Sequence[int] = ()  # numbers of neighbours that are computed together


def flow(stages, dim, count, sizes=(), normalize=True):
    plans, x = fold(stages, dim), np.random.default_rng(1).normal(3, 5, (count, dim)).astype(np.float32)
    return Subject(partial(CpuFlow, plans), lambda some: (x[some], normalize), count, sizes=sizes)


def encoder(made, pooling, texts, dtype="float32", **how):
    return Subject(
        lambda threads, isa: CpuEncoder(*made, pooling, dtype, threads, isa=isa),
        partial(select, *texts),
        len(texts[1]) - 1,
        **how,
    )


def mean_of_rows():
    rng = np.random.default_rng(3)
    texts = pack([int(n) for n in rng.integers(0, 90, 700)], 1)
    scales, weights = rng.uniform(0.1, 3, (2, VOCABULARY)).astype(np.float32)
    table = Table(rng.normal(size=(VOCABULARY, 129)).astype(np.float32), scales)
    return Subject(partial(CpuTable, table, weights), partial(select, *texts), 700, (1, 4), (0, 1, 350, 699))


PIECES = ["[UNK]", "[CLS]", "[SEP]", *"abcdefghij", *(f"##{letter}" for letter in "abcdefghij"), "."]
RULES = WordPieceRules(True, True, True, True, False, "[UNK]", 100, (), (1,), (2,))
PIECEWISE = WordPiece(Vocabulary(json.dumps({piece: i for i, piece in enumerate(PIECES)}).encode()), RULES)
DRAWN = ["".join(Random(i).choices("abcdefghij .", k=i % 60)) + mixed(Random(i)) for i in range(700)]
DRAWN += ["the " * 30_000] * 3


def tokens(texts, threads):
    ids, offsets, _ = PIECEWISE.tokenize(texts, 200, threads=threads)
    return np.split(ids, offsets[1:-1])


def drawn(some):
    return ([DRAWN[i] for i in some],)


def embed(pooling):
    plans = [plan.astype(np.float32) for plan in fold([make.flow(np.random.default_rng(0), 24, 2, 2, 8)], 24)]

    def open_embedder(threads, isa):
        compiled, flow = Texts(PIECEWISE, pooling(isa), 16), CpuFlow(plans, threads, isa)
        return lambda texts: compiled(flow, texts)[0]

    return Subject(open_embedder, drawn, 200, alone=range(40))


def scan(name, count, width, queries=1):
    rng = np.random.default_rng(4)
    rows, asked = (rng.normal(size=(n, width)) * 10 ** rng.uniform(-4, 4, (n, width)) for n in (count, queries))
    if name != "products":
        rows, asked = rows.astype(np.int8), asked[0].astype(np.int8)
    else:
        rows, asked = rows.astype(np.float32), asked.astype(np.float32)
    return Subject(
        lambda threads, isa: lambda some: getattr(search, name)(some, asked, threads, isa).T,
        lambda some: (rows[some],),
        count,
        (1, 2, 5),
        range(min(count, 50)),
    )


def draw(*size):
    return (np.random.default_rng(size[0]).normal(size=size) * size[-1] ** -0.5).astype(np.float32)


ALL = 72 * len(MODES)
HEAD = [  # a norm, products with an activation, and unit length
    Norm(1 + draw(1, ALL)[0], draw(2, ALL)[0], 1e-2),
    Dense(draw(41, ALL), draw(1, 41)[0], "mish", True, draw(42, ALL)[:41]),
    Dense(draw(41, 41), draw(2, 41)[0]),
    Unit(),
]
EVERY = PoolingSpec("+".join(MODES), (3,), None, token_weights(1), HEAD)
LONG = [17, 1, 129, 64, 33, 2, 16, 128, 130, 15, 31, 32, 63, 65]
MEAN, ONE, MADE = PoolingSpec("mean", (1, 2)), PoolingSpec("mean", (1,)), random_encoder(1, 2, 104, 4, 300)
ENCODERS = {  # name -> an encoder, its pooling, its texts, and the law's arguments
    "windows": (with_windows(2, 72, 3, 100, (20, 7)), MEAN, pack([17, 130, 1, 64, 2, 100], 5), {}),
    "every pooling": (random_encoder(5, 3, 72, 3, 130), EVERY, texts_of(LONG, 2), {}),
    # hidden values exceed a cache, so products run by depths
    "a long reduction": (random_encoder(3, 1, 32, 2, 3072), ONE, pack([63, 1, 64, 62], 4), {"threads": (1,)}),
    "mean": (MADE, MEAN, texts_of([*range(1, 26), *LONG], 4), {"alone": (0, 3, 9)}),
    "pooler": (MADE, PoolingSpec("pooler", (2,)), texts_of(LONG, 4), {"alone": (0, 3, 9)}),
    "mpnet": (random_mpnet(1, 2, 104, 4, 300), MEAN, texts_of(LONG, 4), {"alone": (0, 3, 9)}),
    "modernbert": (random_modernbert(1, 2, 104, 4, 300), MEAN, texts_of(LONG, 4), {"alone": (0, 3, 9)}),
    "long texts": (  # single texts are shared by all threads; two are in a group
        with_windows(2, 32, 2, 64, (300, 300), 1100),
        MEAN,
        pack([193, 200, 5, 1100, 192, 700], 5),
        {"threads": (1, 2, 5)},
    ),
    # threads share rows
    **{
        str(shared): (MADE, MEAN, pack(shared, 5), {"threads": (2, 3), "alone": ()})
        for shared in ([95], [96], [120, 65, 120], [45] * 17, [130] + [40] * 6)
    },
}
QUICK = [("windows", "float32"), ("every pooling", "float32")]
QUICK += [(name, dtype) for name in ENCODERS if name[0] == "[" or name == "a long reduction" for dtype in DTYPES]
SLOW = [(name, dtype) for name in ENCODERS for dtype in DTYPES if (name, dtype) not in QUICK]
RNG = np.random.default_rng(2)
SUBJECTS = {
    "flow": flow(make.every_operation(), 104, 257, (*range(2, 34), 56, 57), False),
    "flow, additive": flow([make.flow(RNG, 768)], 768, 64),
    "flow, affine": flow([make.flow(RNG, 768, coupling="affine")], 768, 64),
    "table": mean_of_rows(),
    "tokens": Subject(lambda threads, _: partial(tokens, threads=threads), drawn, 703, (1, 2, 3, 7), range(20)),
    "embed, table": embed(lambda isa: CpuTable(Table(20 * draw(24, 24)), isa=isa)),
    "embed, words": embed(
        lambda isa: CpuEncoder(*random_encoder(0, 1, 24, 4, 32), PoolingSpec("mean", (WORDS,)), isa=isa)
    ),
    **{f"dots {count}, {width}": scan("dots", count, width) for count, width in ((1, 5), (20_000, 61), (3, 65536))},
    **{
        f"products {count}, {queries}, {width}": scan("products", count, width, queries)
        for count, queries, width in ((1, 1, 5), (5000, 1, 61), (5000, 3, 61), (3, 2, 70_000))
    },
    "small encoder": encoder(random_encoder(2, 1, 64, 2, 128), ONE, pack([30, 7, 64, 1, 60, 5, 130], 3)),
}


def opened(subject, isa):
    """(numbers of texts, threads) -> each text's result, as bytes."""
    kernel = cache(lambda threads: subject.open(threads, isa))
    return lambda some, threads: [np.asarray(row).tobytes() for row in kernel(threads)(*subject.texts(some))]


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
