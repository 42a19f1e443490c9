"""Texts to embeddings in one compiled call: its definition in float64, and the bits of the three calls joined."""

import json
from functools import partial

import numpy as np
import pytest

from fastflow.kernels import embed
from fastflow.kernels.encoder import WORDS, PoolingSpec
from fastflow.kernels.encoder.cpu import CpuEncoder
from fastflow.kernels.flow.cpu import CpuFlow
from fastflow.kernels.table.cpu import CpuTable
from fastflow.kernels.table.reference import Table, pool
from fastflow.kernels.tokens import Vocabulary, WordPiece, WordPieceRules
from fastflow.plan import fold

from support import definitions
from support import stages as make
from support.packed import random_encoder

WORDS_KNOWN = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghij", *(f"##{c}" for c in "abcdefghij"), ".", "ab", "##cd"]
VOCABULARY = {piece: i for i, piece in enumerate(WORDS_KNOWN)}
UNKNOWN, WIDTH, OUT = 1, 24, 20
COUNTS = (0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130)
"""Numbers of texts around the blocks and tiles that a thread takes."""
TEXTS = ["", "abcd", "a b. c", "zz", "zz a", "É a\tb", "j" * 300, "ab " * 40, "日本 a", "[SEP] a"]
LIMIT = 16
RULES = WordPieceRules(
    True, True, True, True, False, "[UNK]", 100, tuple((t, VOCABULARY[t]) for t in WORDS_KNOWN[:4]), (2,), (3,)
)


@pytest.fixture(scope="module")
def words():
    return WordPiece(Vocabulary(json.dumps(VOCABULARY).encode()), RULES)


@pytest.fixture(scope="module")
def plans():
    rng = np.random.default_rng(0)
    stages = [make.flow(rng, WIDTH, 2, 2, 8), make.whiten(rng, WIDTH, OUT)]
    return fold(stages, WIDTH)


def table(dtype=np.float32):
    rows = np.random.default_rng(1).normal(size=(len(VOCABULARY), WIDTH)) * 20
    return Table(rows.astype(dtype), None, None)


def encoder(isa=None, rows=None):
    """The embedding layer with the mean position, pooled alone; its first ``rows`` words."""
    weights, shape = random_encoder(0, 1, WIDTH, 4, 32)
    weights["word"] = weights["word"][:rows]
    return CpuEncoder(weights, shape, PoolingSpec("mean", (WORDS,)), isa=isa, threads=1)


POOLINGS = {"table": lambda isa: CpuTable(table(), isa=isa), "words": encoder}


def flow_of(plans, isa=None, threads=1):
    return CpuFlow([plan.astype(np.float32) for plan in plans], threads, isa)


def some(count, seed=0):
    """Texts of every kind, and of random words, in a random order."""
    rng = np.random.default_rng(seed)
    drawn = ["".join(rng.choice(list("abcdefghij .z"), rng.integers(0, 60))) for _ in range(count)]
    return [str(text) for text in rng.permutation([*TEXTS, *drawn])[:count]]


def in_steps(words, pooling, flow, texts, normalize=False, truncate=None, special=True, left_out=None):
    ids, offsets, cut = words.tokenize(texts, LIMIT, special)
    kept = ids != left_out
    offsets = np.concatenate([[0], np.cumsum(kept)])[offsets]
    return flow(pooling(ids[kept], offsets), normalize, truncate), len(cut)


def test_the_compiled_call_is_the_definition(words, plans, float_isa):
    definition, pooling = (
        definitions.WordPiece(VOCABULARY, RULES),
        partial(pool, table(), weights=None, dtype=np.float64),
    )
    compiled, flow = embed.Texts(words, CpuTable(table(), isa=float_isa), LIMIT), flow_of(plans, float_isa)
    for normalize, truncate in ((False, None), (True, None), (False, 7), (True, 7)):
        pooled, given = np.empty((80, WIDTH), np.float32), (some(80), normalize, truncate)
        exact, want, cut = definitions.embed_texts(definition, pooling, LIMIT, plans, *given)
        found, found_cut = compiled(flow, *given, pooled)
        assert np.linalg.norm(pooled - exact) <= 1e-6 * np.linalg.norm(exact)
        assert found_cut == cut > 0
        assert np.linalg.norm(found - want) <= 1e-6 * np.linalg.norm(want)
        assert found.dtype == np.float32


@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.parametrize("count", COUNTS)
def test_it_has_the_bits_of_the_three_calls(words, plans, float_isa, name, count):
    pooling, flow, texts = POOLINGS[name](float_isa), flow_of(plans, float_isa), some(count, seed=count)
    if name == "table":  # no id is left of the last text
        want, cut = in_steps(words, pooling, flow, [*texts, "zz"], special=False, left_out=UNKNOWN)
        found, found_cut = embed.Texts(words, pooling, LIMIT, False, UNKNOWN)(flow, [*texts, "zz"])
        assert (found.view(np.int32) == want.view(np.int32)).all()
        assert found_cut == cut
    compiled = embed.Texts(words, pooling, LIMIT)
    for normalize, truncate in ((False, None), (True, None), (True, 7)):
        want, cut = in_steps(words, pooling, flow, texts, normalize, truncate)
        found, found_cut = compiled(flow, texts, normalize, truncate)
        assert found_cut == cut
        assert found.shape == (count, truncate or OUT)
        assert (found.view(np.int32) == want.view(np.int32)).all()
        pooled = np.full((count, WIDTH), np.nan, np.float32)
        again, _ = compiled(flow, texts, normalize, truncate, pooled)
        assert (again.view(np.int32) == want.view(np.int32)).all()
        assert (pooled == pooling(*words.tokenize(texts, LIMIT, True)[:2])).all()


def test_a_long_text_between_short_ones(words, plans):
    pooling, flow = CpuTable(table()), flow_of(plans)
    texts = ["a", "ab. " * 50_000, "b"]
    ids, offsets, _ = words.tokenize(texts, 10**9, True)
    found, cut = embed.Texts(words, pooling, embed.MOST)(flow, texts)
    assert cut == 0
    assert (found == flow(pooling(ids, offsets))).all()


@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.parametrize("place", [0, 40])
def test_a_text_that_no_step_can_take_is_an_error(words, plans, place, name):
    few = len(VOCABULARY) - 1  # no row for the last piece
    pooling = CpuTable(Table(table().rows[:few], None, None)) if name == "table" else encoder(rows=few)
    compiled = partial(embed.Texts(words, pooling, LIMIT), flow_of(plans))
    texts = ["a"] * 70
    assert np.isfinite(compiled(texts)[0]).all()
    for bad in ("\ud800", "abcd"):
        texts[place] = bad
        with pytest.raises(
            ValueError, match="cannot be tokenized here, or has a token that the pooling has no row for"
        ):
            compiled(texts)
    with pytest.raises(TypeError, match="text 1 is int, not str"):
        compiled(["a", 1])
