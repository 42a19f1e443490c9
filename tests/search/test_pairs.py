"""All pairs: the rule of duplicates against float64 brute force, groups, limits and refusals."""

import numpy as np
import pytest

import fastflow
from fastflow import Runtime, duplicates, groups
from fastflow.errors import FastflowError, UsageError
from fastflow.kernels.search import reference
from fastflow.search import pairs
from fastflow.search.pairs import compute_cosines


def draw(seed, rows=200, dim=32):
    """Rows of which some are near, equal or zero."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, dim)).astype(np.float32)
    for share, size in ((3, 0.0), (4, 0.1), (5, 0.4)):
        some, others = rng.integers(0, rows, (2, rows // share))
        x[some] = x[others] * rng.uniform(0.5, 2) + size * rng.normal(size=(len(some), dim))
    x[rng.integers(0, rows, 3)] = 0
    return x


def keep_by_hand(x, above, against=None):
    """The rows removed, each with the highest cosine of an earlier kept row, or of ``against``."""
    kept, gone = [], {}
    for row in range(len(x)):
        others = x[kept] if against is None else against
        cosines = compute_cosines(np.repeat(x[row : row + 1], len(others), axis=0), others)
        if len(cosines) and cosines.max() >= above:
            gone[row] = cosines.max()
        else:
            kept.append(row)
    return kept, gone


@pytest.mark.parametrize("seed", range(100))
def test_the_rule_by_hand(seed, monkeypatch):
    monkeypatch.setattr(pairs, "WORK", 20_000 if seed % 2 else pairs.WORK)  # more than one strip
    monkeypatch.setattr(pairs, "ROOM", 1 if seed % 3 == 0 else pairs.ROOM)
    rng = np.random.default_rng(seed)
    x = draw(seed, int(rng.integers(1, 1200 if seed % 9 == 0 else 90)), int(rng.choice([1, 7, 64, 100])))
    above = float(rng.choice([0.3, 0.6, 0.9, 0.99, 1.0]))
    for other in (None, draw(seed + 1000, 40, x.shape[1])):
        if other is not None:
            other[: len(x) // 9] = x[: len(x) // 9][: len(other)]
        found = duplicates(x, above=above, against=other)
        kept, gone = keep_by_hand(x, above, other)
        assert (found.kept.tolist(), found.removed.tolist()) == (kept, list(gone))
        check_law(found, x, x if other is None else other)
        if other is not None:
            assert found.cosine.tolist() == list(gone.values())


def check_law(found, x, other):
    """Each removed row has a kept one that near, and no two kept ones are."""
    cosines = compute_cosines(x[found.removed], other[found.of])
    assert (cosines == found.cosine).all()
    assert (cosines >= found.above).all()
    if x is other:
        assert set(found.of.tolist()) <= set(found.kept.tolist())
        assert (found.of < found.removed).all()
        kept = x[found.kept]
        for at in range(1, len(kept)):
            assert compute_cosines(np.repeat(kept[at : at + 1], at, axis=0), kept[:at]).max() < found.above


def test_no_row_one_row_equal_rows_and_zeros():
    for x in ([], np.zeros((0, 9), np.float32)):
        assert len(duplicates(x, above=0.5).kept) == 0
    assert duplicates([[1.0, 2.0]], above=0.5).kept.tolist() == [0]
    same = duplicates(np.full((500, 5), 0.3, np.float32), above=1)
    assert (same.kept.tolist(), set(same.of.tolist()), set(same.cosine.tolist())) == ([0], {0}, {1.0})
    assert same.exact.all()
    assert duplicates(np.zeros((50, 5), np.float32), above=0.1).removed.tolist() == []


def test_results_do_not_depend_on_instructions_threads_or_the_definition(isa, monkeypatch):
    x = draw(5, 1500, 48)
    want = duplicates(x, above=0.7)
    assert len(want.pairs.edges) > 300
    monkeypatch.setenv("FASTFLOW_ISA", isa)
    for threads in (1, 3):
        assert duplicates(x, above=0.7, threads=threads).pairs.edges.tobytes() == want.pairs.edges.tobytes()
    monkeypatch.setattr(pairs, "kernels", reference)
    assert duplicates(x, above=0.7).pairs.edges.tobytes() == want.pairs.edges.tobytes()


@pytest.mark.parametrize(
    ("rows", "dim", "above"),
    [(1500, 8, 0.7), (1500, 48, 0.3), pytest.param(20_000, 64, 0.4, marks=pytest.mark.slow)],
)
def test_no_pair_is_missed(rows, dim, above):
    """Against float64; thousands of pairs are so near the limit that codes alone would lose some."""
    x = draw(7, rows, dim)
    made = duplicates(x, above=above)
    first, edges = made.pairs.of.first, made.pairs.edges
    found = set(zip(edges["earlier"].tolist(), edges["later"].tolist(), strict=True))
    own = np.flatnonzero(first == np.arange(rows))
    unit = x[own] / np.maximum(np.linalg.norm(x[own].astype(float), axis=1, keepdims=True), 1e-30)
    for at in range(0, len(own), 1000):
        cosines = np.triu(unit[at : at + 1000] @ unit.T, at + 1)
        near = own[np.argwhere(cosines >= above + 1e-12) + np.array([at, 0])]
        assert set(map(tuple, near.tolist())) <= found
    assert (edges["cosine"] >= above).all()
    assert (edges["cosine"] < above + 0.01).sum() > 300


@pytest.mark.parametrize("lossy_first", [True, False])
def test_a_pair_that_the_codes_do_not_see(lossy_first):
    """The codes of the lossy row are zeros where the other row is not: only what the codes lose is alike."""
    lossy, other = np.ones((2, 257), np.float32)
    lossy[1:] = 0.49 / 127
    other[0] = 0
    rows = np.array([lossy, other] if lossy_first else [other, lossy])
    (cosine,) = compute_cosines(rows[:1], rows[1:])
    assert duplicates(rows, above=cosine).removed.tolist() == [1]
    assert duplicates(rows, above=np.nextafter(cosine, 1)).removed.tolist() == []


def test_a_higher_limit_needs_no_comparison(monkeypatch):
    x = draw(3)
    low = duplicates(x, above=0.5)
    monkeypatch.setattr(pairs.Comparison, "compare_strip", None)
    at = low.at(0.9)
    monkeypatch.undo()
    high = duplicates(x, above=0.9)
    for name in ("above", "kept", "removed", "of", "cosine", "exact"):
        assert np.array_equal(getattr(at, name), getattr(high, name))
    assert high.above == 0.9
    with pytest.raises(UsageError, match="from there to 1"):
        low.at(0.4)


def test_groups_of_a_rule_are_a_kept_row_and_those_removed_for_it():
    x = np.repeat(np.eye(4, dtype=np.float32), [1, 3, 2, 1], axis=0)
    assert [each.tolist() for each in duplicates(x, above=0.9).groups()] == [[1, 2, 3], [4, 5]]


@pytest.mark.parametrize(("above", "least"), [(0.9, 2), (0.8, 5), (0.95, 3)])
def test_groups_are_the_communities_of_sentence_transformers(above, least):
    torch, util = pytest.importorskip("torch"), pytest.importorskip("sentence_transformers.util")
    x = draw(11, 5000, 32)
    x = x[x.any(axis=1)]
    found = groups(x, above=above, least=least)
    want = util.community_detection(torch.tensor(x), threshold=above, min_community_size=least)
    assert [set(each.tolist()) for each in found] == [set(each) for each in want]
    assert sum(map(len, found)) > 300


def test_texts_are_embedded_and_equal_texts_are_exact(model, sentences):
    texts = [*sentences[:20], sentences[3], sentences[4].upper()]
    runtime = Runtime(model)
    found = duplicates(texts, runtime, above=0.999)
    equal = dict(zip(found.removed.tolist(), zip(found.of.tolist(), found.exact.tolist(), strict=True), strict=True))
    assert equal[20] == (3, True)
    assert equal.get(21, (4, False)) == (4, False)  # other bytes: not exact, though a model without case embeds alike
    assert duplicates(sentences[:3], runtime, above=0.99, against=sentences[:2]).kept.tolist() == [2]
    assert fastflow.Duplicates is type(found)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: duplicates([[1.0]], above=0), UsageError, "above 0 and at most 1, not 0"),
        (lambda: duplicates([[1.0]], above=True), UsageError, "not True"),
        (lambda: duplicates(["a"], above=0.5), UsageError, "give runtime="),
        (lambda: duplicates([[1.0]], above=0.5, against=[[1.0, 2.0]]), UsageError, "1 dimensions, and the vectors 2"),
        (lambda: duplicates([[1.0], [np.nan]], above=0.5), FastflowError, "row 1: holds NaN"),
        (lambda: groups([[1.0]], above=0.5, least=0), UsageError, "least"),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_too_many_pairs_are_an_error_with_their_number(monkeypatch):
    monkeypatch.setattr(pairs, "MOST", 100)
    monkeypatch.setattr(pairs, "ROOM", 10)
    x = np.ones((40, 3), np.float32) + np.arange(40, dtype=np.float32)[:, None] * [0, 0, 1e-3]
    with pytest.raises(FastflowError, match=r"780 pairs or more .* 100 can be held: give a higher limit"):
        duplicates(x, above=0.9)
