"""A text has the same bits alone, in any company and order, and on any number of threads; and the pool survives."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

from fastflow.kernels.encoder.cpu import DTYPES, CpuEncoder

from support.packed import bits, pack, random_encoder, select, token_weights


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["mean", "weighted", "pooler"])
def test_a_text_has_the_same_bits_in_any_company(isa, dtype, mode):
    weights, shape = random_encoder(1, 2, 104, 4, 300)
    many = [*range(1, 26)] * 2 + [31, 32, 33, 63, 64, 65, 130]
    lengths = [int(n) for n in np.random.default_rng(0).permutation(many)]
    assert len(lengths) == 57
    ids, offsets = pack(lengths, 4)
    if mode == "weighted":
        encoder = CpuEncoder(weights, shape, "mean", (1, 2), dtype, threads=1, token_weights=token_weights(0), isa=isa)
    else:
        encoder = CpuEncoder(weights, shape, mode, (2,), dtype, threads=1, isa=isa)
    want = encoder(ids, offsets)
    assert len(np.unique(want.round(4), axis=0)) > 50
    for threads in (1, 2, 3):
        encoder.threads = threads
        assert np.array_equal(bits(encoder(ids, offsets)), bits(want)), threads
        backwards = encoder(*select(ids, offsets, range(56, -1, -1)))
        assert np.array_equal(bits(backwards[::-1]), bits(want)), threads
        for row in (0, 3, 40, int(np.argmax(lengths)), int(np.argmin(lengths))):
            assert np.array_equal(bits(encoder(*select(ids, offsets, [row]))[0]), bits(want)[row]), (threads, row)
        few = encoder(*select(ids, offsets, [5, 50, 17]))
        assert np.array_equal(bits(few), bits(want)[[5, 50, 17]]), threads


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [[95], [96], [97], [120, 65, 120], [77] * 3, [45] * 17, [130] + [40] * 6], ids=str)
def test_threads_that_share_rows(isa, dtype, lengths):
    weights, shape = random_encoder(3, 2, 104, 4, 300)
    encoder = CpuEncoder(weights, shape, "mean", (1, 2), dtype, threads=1, isa=isa)
    packed = pack(lengths, 5)
    want = encoder(*packed)
    for encoder.threads in (2, 3):
        assert np.array_equal(bits(encoder(*packed)), bits(want)), encoder.threads


def test_eight_threads_share_one_encoder(isa):
    weights, shape = random_encoder(2, 1, 64, 2, 128)
    encoder = CpuEncoder(weights, shape, "mean", (1,), threads=2, isa=isa)
    works = [pack([n + 1, 60 - n, 5], n) for n in range(8)]
    want = [encoder(*work) for work in works]
    same = [0] * 8
    start = threading.Barrier(8)

    def run(i):
        start.wait()
        for _ in range(20):
            same[i] += np.array_equal(bits(encoder(*works[i])), bits(want[i]))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same == [20] * 8


def test_use_fork_use(isa):
    weights, shape = random_encoder(2, 1, 64, 2, 128)
    encoder = CpuEncoder(weights, shape, "mean", (1,), threads=2, isa=isa)
    work = pack([30, 7, 64, 1], 3)
    want = encoder(*work)
    child = os.fork()
    if not child:
        signal.alarm(60)  # a child that waits for threads it has not inherited would wait for ever
        os._exit(0 if np.array_equal(bits(encoder(*work)), bits(want)) else 3)
    assert os.waitpid(child, 0)[1] == 0
    assert np.array_equal(bits(encoder(*work)), bits(want))


@pytest.mark.slow
def test_memory_does_not_grow():
    weights, shape = random_encoder(2, 1, 64, 2, 128)
    encoder = CpuEncoder(weights, shape, "mean", (1,), threads=2)
    works = [pack([n % 130 + 1, 5, 130 - n % 60], n) for n in range(50)]

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    if not os.path.exists("/proc/self/statm"):
        pytest.skip("resident memory is read from /proc")
    for work in works:
        encoder(*work)
    before = resident()
    for _ in range(20):
        for work in works:
            encoder(*work)
    assert resident() - before <= 4 << 20


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_long_reduction_has_the_same_bits_beside_many_rows(isa, dtype):
    """The hidden values of some 190 tokens do not fit into a cache at once: their products go by depths."""
    weights, shape = random_encoder(3, 1, 32, 2, 3072)
    ids, offsets = pack([63, 1, 64, 62], 4)
    encoder = CpuEncoder(weights, shape, "mean", (1,), dtype, threads=1, isa=isa)
    want = encoder(ids, offsets)
    for row in range(4):
        assert np.array_equal(bits(encoder(*select(ids, offsets, [row]))[0]), bits(want)[row]), row
