"""A text has the same bits in any company and order and on any number of threads, also after a fork."""

import os
import signal
import threading

import numpy as np
import pytest

from fastflow.kernels.encoder.cpu import DTYPES, CpuEncoder
from fastflow.kernels.encoder.shape import Dense, Norm, Pooling, Unit
from fastflow.kernels.encoder.texts import MODES

from support.encoders import assert_same_bits, texts_of, with_windows
from support.memory import resident
from support.packed import bits, pack, random_encoder, random_modernbert, random_mpnet, token_weights

LONG = [17, 1, 129, 64, 33, 2, 16, 128, 130, 15, 31, 32, 63, 65]
SOME = (0, 3, 9)


def a_head():
    """A norm, products with an activation, and unit length."""
    rng, width = np.random.default_rng(0), 72 * len(MODES)

    def draw(*size):
        return (rng.normal(size=size) * size[-1] ** -0.5).astype(np.float32)

    mish = Dense(draw(41, width), draw(1, 41)[0], "mish", True, draw(41, width))
    return [Norm(1 + draw(1, width)[0], draw(1, width)[0], 1e-2), mish, Dense(draw(41, 41), draw(1, 41)[0]), Unit()]


MEAN, MADE = Pooling("mean", (1, 2)), random_encoder(1, 2, 104, 4, 300)
EVERY = Pooling("+".join(MODES), (3,), None, token_weights(1), a_head())
SUBJECTS = {  # name -> an encoder, its pooling, its texts, and the law's arguments
    "mean": (MADE, MEAN, texts_of([*range(1, 26), *LONG], 4), {"alone": SOME}),
    "pooler": (MADE, Pooling("pooler", (2,)), texts_of(LONG, 4), {"alone": SOME}),
    "mpnet": (random_mpnet(1, 2, 104, 4, 300), MEAN, texts_of(LONG, 4), {"alone": SOME}),
    "modernbert": (random_modernbert(1, 2, 104, 4, 300), MEAN, texts_of(LONG, 4), {"alone": SOME}),
    "long texts": (  # single texts are shared by all threads; two are in a group
        with_windows(2, 32, 2, 64, (300, 300), 1100),
        Pooling("mean", (2,)),
        pack([193, 200, 5, 1100, 192, 700], seed=5),
        {"threads": (1, 2, 5)},
    ),
    "windows": (with_windows(2, 72, 3, 100, (20, 7)), MEAN, pack([17, 130, 1, 64, 2, 100], 5), {}),
    "every pooling": (random_encoder(5, 3, 72, 3, 130), EVERY, texts_of(LONG, 2), {}),
    # hidden values exceed a cache, so products run by depths
    "a long reduction": (
        random_encoder(3, 1, 32, 2, 3072),
        Pooling("mean", (1,)),
        pack([63, 1, 64, 62], 4),
        {"threads": (1,)},
    ),
}
QUICK = [("windows", "float32"), ("every pooling", "float32"), *(("a long reduction", dtype) for dtype in DTYPES)]
SLOW = [(name, dtype) for name in [*SUBJECTS][:5] for dtype in DTYPES]


@pytest.mark.parametrize(("name", "dtype"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)])
def test_a_text_has_the_same_bits_in_any_company(isa, name, dtype):
    made, pooling, texts, how = SUBJECTS[name]
    found = assert_same_bits(CpuEncoder(*made, pooling, dtype, isa=isa), texts, **how)
    assert len(np.unique(found.round(4), axis=0)) > 0.8 * len(found)  # a token may be drawn twice


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [[95], [96], [120, 65, 120], [45] * 17, [130] + [40] * 6], ids=str)
def test_threads_that_share_rows(isa, dtype, lengths):
    encoder = CpuEncoder(*MADE, MEAN, dtype, isa=isa)
    assert_same_bits(encoder, pack(lengths, 5), (2, 3), alone=())


@pytest.fixture
def small(isa):
    return CpuEncoder(*random_encoder(2, 1, 64, 2, 128), Pooling("mean", (1,)), threads=2, isa=isa)


def test_eight_threads_share_one_encoder(small):
    works = [pack([n + 1, 60 - n, 5], n) for n in range(8)]
    want = [small(*work) for work in works]
    same = [0] * 8
    start = threading.Barrier(8)

    def run(i):
        start.wait()
        for _ in range(20):
            same[i] += np.array_equal(bits(small(*works[i])), bits(want[i]))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same == [20] * 8


def test_use_fork_use(small):
    work = pack([30, 7, 64, 1], 3)
    want = small(*work)
    child = os.fork()
    if not child:
        signal.alarm(60)  # a child that waits for threads it has not inherited would wait for ever
        os._exit(0 if np.array_equal(bits(small(*work)), bits(want)) else 3)
    assert os.waitpid(child, 0)[1] == 0
    assert np.array_equal(bits(small(*work)), bits(want))


@pytest.mark.slow
def test_memory_does_not_grow():
    encoder = CpuEncoder(*random_encoder(2, 1, 64, 2, 128), Pooling("mean", (1,)), threads=2)
    works = [pack([n % 130 + 1, 5, 130 - n % 60], n) for n in range(50)]
    for work in works:
        encoder(*work)
    before = resident()
    for _ in range(20):
        for work in works:
            encoder(*work)
    assert resident() - before <= 4 << 20
