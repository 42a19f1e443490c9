"""The compiled kernels as subjects of one law: a text has the same bits in any company, on any threads."""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from random import Random
from typing import Any, NamedTuple

import numpy as np

from fastflow.kernels.embed import Texts
from fastflow.kernels.encoder import MODES, WORDS, Dense, Norm, PoolingSpec, Unit
from fastflow.kernels.encoder.cpu import CpuEncoder
from fastflow.kernels.flow.cpu import CpuFlow
from fastflow.kernels.search import cpu as search
from fastflow.kernels.table.cpu import CpuTable
from fastflow.kernels.table.reference import Table
from fastflow.kernels.tokens import Vocabulary, WordPiece, WordPieceRules
from fastflow.plan import fold

from support import stages as make
from support.encoders import texts_of, with_windows
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
