"""Parts of a distillation: bags, sums, ridge regression, lengths, the penalty, the teacher."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sparse

from fastflow import Runtime
from fastflow.errors import UsageError
from fastflow.model.tokenizer.native import read_native
from fastflow.train.distil import ridge
from fastflow.train.distil.gathering import Bags, add_words, find_split_words, list_special_ids
from fastflow.train.distil.ridge import (
    COLUMNS,
    FIRMNESS,
    LIMIT,
    PENALTIES,
    HeldOut,
    Lengths,
    Sums,
    choose_prior,
    climb,
    fit_lengths,
    fit_table,
)
from fastflow.train.distil.teacher import Teacher, measure_following
from fastflow.train.reporter import SILENT, Reporter

from support.builders import VOCABULARY, make_model, make_sentences, unigram, wordpiece
from support.sentence_dirs import make_directory, pooling

SPLIT = ["dogsing", "x1y2", "catcatcat", "dogs"]


def test_a_row_holds_the_shares_of_its_tokens():
    the, dog, cat = map(VOCABULARY.index, ("the", "dog", "cat"))
    found = Bags(wordpiece())(["the dog the", "[CLS] cat", "", "☃"]).toarray()
    assert found[0, [the, dog]] == pytest.approx([2 / 3, 1 / 3])
    assert found[1, cat] == 1  # no special token, and no unknown one
    assert not found[2:].any()
    assert found.shape == (4, len(VOCABULARY))
    assert list_special_ids(wordpiece()) == [0, 1, 2, 3, 4]
    weights = np.ones(len(VOCABULARY), np.float32)
    weights[the] = 0.25
    found = Bags(wordpiece(), weights)(["the dog"]).toarray()
    assert found[0, the] == pytest.approx(0.2)
    assert found.sum() == pytest.approx(1)


def test_the_most_frequent_words_that_fall_into_pieces():
    texts = ["DogSing the dogsing, x1y2!", "dogsing x1y2 catcatcat catcatcat", "once1 the the the"]
    assert find_split_words(wordpiece(), texts, 10) == ["dogsing", "catcatcat", "x1y2"]
    assert find_split_words(wordpiece(), texts, 1) == ["dogsing"]
    with pytest.raises(UsageError, match="WordPiece, and this one is Unigram"):
        find_split_words(unigram(), ["a"], 3)


def test_new_words_have_ids_after_all_others_and_others_are_cut_as_before():
    plain, more = wordpiece(), wordpiece()
    add_words(more, SPLIT)
    assert more.get_vocab_size() == len(VOCABULARY) + len(SPLIT)
    ids = {word: more.encode(word, add_special_tokens=False).ids for word in SPLIT}
    assert [ids[word] for word in SPLIT] == [[len(VOCABULARY) + i] for i in range(len(SPLIT))]
    assert more.encode("A DOGSING, x1y2!", add_special_tokens=False).ids[1] == ids["dogsing"][0]
    for text in [*make_sentences(200), "dogsings", "xdogs", "dogs1", "catcatcatcat", "dog sing", "x1 y2", "a_b", "☃☃"]:
        assert more.encode(text).ids == plain.encode(text).ids, text


def test_the_compiled_tokenizer_knows_the_new_words():
    more = wordpiece()
    add_words(more, SPLIT)
    native = read_native(more.to_str().encode(), False)
    assert (native.size, native.largest) == (len(VOCABULARY) + len(SPLIT), len(VOCABULARY) + len(SPLIT) - 1)
    texts = [*make_sentences(200), "A DOGSING, x1y2!", "dogsings dogs_ dogs€dogs", "x1y2x1y2 catcatcat-dogs"]
    ids, offsets, _ = native.tokenizer.tokenize(texts, 64)
    assert [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)] == [
        each.ids for each in more.encode_batch_fast(texts)
    ]
    assert len(VOCABULARY) in ids


def draw(count=120):
    rng = np.random.default_rng(0)
    x = rng.random((count, 12)) * (rng.random((count, 12)) < 0.3)
    return sparse.csr_array(x), rng.normal(size=(count, 5)).astype(np.float32)


def test_sums_are_what_they_are_called():
    x, y = draw()
    sums, dense = Sums.of(x, y), x.toarray()
    square, wide = dense.T @ dense, np.random.default_rng(1).normal(size=(12, 2 * COLUMNS + 3))
    np.testing.assert_allclose(sums.multiply(np.eye(12)), square, rtol=1e-5)
    np.testing.assert_allclose(sums.multiply(wide), square @ wide, atol=1e-4)
    np.testing.assert_allclose(sums.diagonal(), np.diag(square), rtol=1e-5)
    np.testing.assert_allclose(sums.cross, dense.T @ y.astype(np.float64))
    np.testing.assert_allclose(sums.bag, dense.sum(axis=0), rtol=1e-6)
    ones = dense.sum(axis=1, keepdims=True)
    mean = np.linalg.lstsq(ones, y.astype(np.float64), rcond=None)[0]
    np.testing.assert_allclose(sums.mean, mean[0], rtol=1e-5)
    np.testing.assert_allclose(sums.centre(), dense.T @ (y - ones * mean), atol=1e-4)
    full = ones[:, 0] > 0  # if bags sum to 1, the mean is the targets'
    shares = Sums.of(sparse.csr_array(dense / np.maximum(ones, 1e-9)), y)
    np.testing.assert_allclose(shares.mean, y[full].mean(axis=0, dtype=np.float64), rtol=1e-5)


def test_merged_shards_are_the_whole():
    x, y = draw()
    whole, merged = Sums.of(x, y), Sums.of(x[:50], y[:50]).merge(Sums.of(x[50:51], y[50:51]))
    merged.multiply(np.eye(12))  # a shard that comes later counts too
    merged = merged.merge(Sums.of(x[51:], y[51:]))
    assert merged.count == whole.count == 120
    for name in ("cross", "bag"):
        np.testing.assert_allclose(getattr(merged, name), getattr(whole, name), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(merged.multiply(np.eye(12)), whole.multiply(np.eye(12)), rtol=1e-6)


TOKENS, DIM = 40, 70  # more columns than are solved together


def problem(count=300, dead=()):
    """Bags (n, V), of which tokens 35 on are in none, and targets (n, D)."""
    rng = np.random.default_rng(0)
    x = rng.random((count, TOKENS)) * (rng.random((count, TOKENS)) < 0.15)
    x[:, 35:] = 0
    x[:, 0] += 0.01
    x /= x.sum(axis=1, keepdims=True)
    y = (x @ rng.normal(size=(TOKENS, DIM)) + 0.1 * rng.normal(size=(count, DIM)) + 0.3).astype(np.float32)
    y[:, list(dead)] = 0.25
    return x, y


def sums_of(x, y):
    return Sums.of(sparse.csr_array(x), y)


def test_it_is_the_least_squares_solution_about_the_prior():
    x, y = problem()
    start = np.random.default_rng(1).normal(size=(TOKENS, DIM))
    sums, wide = sums_of(x, y), y.astype(np.float64)
    for penalty in (5.0, 0.05, 0.0015):
        found = start + ridge.solve(sums, ridge.compute_right_side(sums, start), penalty, tolerance=1e-5)
        rows = np.vstack([x, np.sqrt(penalty) * np.eye(TOKENS)])
        values = np.vstack([wide - wide.mean(axis=0), np.sqrt(penalty) * start])
        want = np.linalg.lstsq(rows, values, rcond=None)[0]
        np.testing.assert_allclose(found, want, atol=2e-4 * np.abs(want).max())


def test_every_column_reaches_the_tolerance():
    x, y = problem(dead=[3, 69])
    sums = sums_of(x, y)
    right = sums.centre()
    right[:, [3, 69]] = 0  # columns that never vary, in exact arithmetic
    found = ridge.solve(sums, right, 0.01, tolerance=1e-5)
    want = np.linalg.solve(x.T @ x + 0.01 * np.eye(TOKENS), right)
    np.testing.assert_allclose(found, want, atol=1e-4 * np.abs(want).max())
    assert not found[:, [3, 69]].any()
    again = ridge.solve(sums, right, 0.01, start=want.astype(np.float32), tolerance=1e-5)
    assert np.array_equal(again, want.astype(np.float32))  # a solution takes no step


def test_a_token_of_no_sentence_keeps_its_prior():
    x, y = problem()
    sums, start = sums_of(x, y), np.random.default_rng(1).normal(size=(TOKENS, DIM))
    moved = ridge.solve(sums, ridge.compute_right_side(sums, start), 0.05)
    assert not moved[35:].any()
    assert moved[:35].any(axis=1).all()


def features(alone, counts, rares):
    """The copies that the map mixes: centred, special tokens zero, rare ones in full."""
    usable = alone.any(axis=1)
    centred = (alone - alone[usable].mean(axis=0, dtype=np.float64)) * usable[:, None]
    return np.hstack([centred * (a / (a + counts / counts.sum()))[:, None] for a in rares])


def test_the_prior_is_a_map_of_the_tokens_alone():
    x, y = problem(count=4000)
    sums, alone = sums_of(x, y), np.random.default_rng(3).normal(size=(TOKENS, DIM)).astype(np.float32)
    alone[7] = 0  # a special token
    counts = np.arange(TOKENS)
    copies, centred = features(alone, counts, ridge.RARE), y - y.mean(axis=0, dtype=np.float64)
    prior = ridge.Prior(alone, counts, sums, uniform=True)
    best = np.linalg.lstsq(x @ copies, centred, rcond=None)[0]
    loss = [np.square(centred - x @ table).sum() for table in (prior(1e-9), copies @ best)]
    assert loss[0] == pytest.approx(loss[1], rel=1e-3)
    assert not prior(1e-4)[7].any()


def test_a_firm_prior_is_scaled_alone():
    x, y = problem()
    sums, alone = sums_of(x, y), np.random.default_rng(3).normal(size=(TOKENS, DIM)).astype(np.float32)
    counts = np.arange(TOKENS)
    first, centred = features(alone, counts, ridge.RARE[:1]), y - y.mean(axis=0, dtype=np.float64)
    made = x @ first
    scale = (centred * made).sum() / (made * made).sum()
    found = ridge.Prior(alone, counts, sums, uniform=True)(1e9)
    np.testing.assert_allclose(found, scale * first, rtol=1e-5, atol=1e-6)
    assert scale != pytest.approx(1, rel=0.1)
    plain = ridge.Prior(alone, counts, sums, uniform=False)(1e9)
    assert np.linalg.matrix_rank(np.vstack([plain[0], alone[0] - alone.mean(axis=0)]), tol=1e-4) == 1


def test_the_principal_directions_are_those_of_the_sentences():
    x, y = problem()
    table = np.random.default_rng(4).normal(size=(TOKENS, 6)) * [1, 5, 2, 0.1, 3, 0.5]
    found = ridge.find_principal(sums_of(x, y), table, 3)
    values, vectors = np.linalg.eigh(np.cov((x @ table).T))
    assert found.shape == (6, 3)
    np.testing.assert_allclose(np.abs(np.sum(found * vectors[:, ::-1][:, :3], axis=0)), 1, atol=1e-6)
    assert values[-1] > 2 * values[-4]


def test_vectors_become_of_one_length():
    rng = np.random.default_rng(0)
    x = rng.random((400, 30)) * (rng.random((400, 30)) < 0.2)
    x[:, 0] += 0.01
    x, truth = sparse.csr_array(x / x.sum(axis=1, keepdims=True)), rng.normal(size=(30, 8))
    y = x @ truth
    y /= np.linalg.norm(y, axis=1, keepdims=True)
    found = fit_lengths(truth.astype(np.float32), np.ones(30, np.int64), x, y.astype(np.float32))
    made = np.linalg.norm(x @ found.table, axis=1)
    assert abs(made.mean() - 1) < 1e-5
    assert made.std() > 0.2
    np.testing.assert_allclose(np.linalg.norm(found.divide(x) @ found.table, axis=1), 1, rtol=1e-5)
    x = sparse.csr_array(np.eye(3) * [[0.0], [1.0], [1.0]])  # a factor has a limit, and an empty bag stays
    divided = Lengths(np.array([[1.0], [1e-6], [1e6]], np.float32)).divide(x)
    np.testing.assert_allclose(divided.toarray(), np.diag([0, LIMIT, 1 / LIMIT]))


def test_climbing_finds_the_top():
    for peak, start in itertools.product(range(6), (0, 3, 5)):
        asked = []
        assert climb(lambda place: asked.append(place) or -abs(place - peak), start, 6) == peak  # noqa: B023
        assert set(asked) <= set(range(6))


def few(noise):
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(30, 8))
    x, h = (rng.random((n, 30)) * (rng.random((n, 30)) < 0.2) + 1e-3 for n in (60, 200))
    x, h = (a / a.sum(axis=1, keepdims=True) for a in (x, h))
    y = (x @ truth + noise * rng.normal(size=(60, 8))).astype(np.float32)
    return Sums.of(sparse.csr_array(x), y), HeldOut(sparse.csr_array(h), (h @ truth).astype(np.float32), lambda z: z)


def test_noise_wants_a_larger_penalty():
    penalties = []
    for noise in (0.01, 1.0):
        sums, held = few(noise)
        table = fit_table("vectors", sums, np.zeros((30, 8)), held, None, SILENT)
        penalties.append(table.penalty)
        best = max(PENALTIES, key=lambda p: held.measure(ridge.solve(sums, sums.centre(), p) + sums.mean))
        assert PENALTIES.index(table.penalty) == pytest.approx(PENALTIES.index(best), abs=1)
        assert table.cosine == pytest.approx(held.measure(table.vectors))
    assert penalties[0] < penalties[1]


def test_a_named_penalty_is_taken():
    sums, held = few(0.1)
    table = fit_table("vectors", sums, np.zeros((30, 8)), held, 0.7, SILENT)
    assert (table.penalty, table.tried) == (0.7, {})
    want = ridge.solve(sums, sums.centre(), 0.7, tolerance=1e-5) + sums.mean
    np.testing.assert_allclose(table.vectors, want, atol=2e-3)
    sums, held = few(0.0)  # a prior that is right is kept
    exact = np.linalg.lstsq(sums.multiply(np.eye(30)), sums.centre(), rcond=None)[0]
    table = fit_table("vectors", sums, exact, held, 5.0, SILENT)
    assert table.prior > 0.98
    assert table.penalty == 5.0
    np.testing.assert_allclose(table.vectors, exact + sums.mean, atol=1e-3)


def test_a_prior_that_follows_better_is_kept():
    said, (sums, held) = [], few(3.0)
    truth = np.linalg.lstsq(held.bags.toarray(), held.vectors, rcond=None)[0]
    table = fit_table("vectors", sums, truth - sums.mean, held, None, Reporter(said.append, bars=False))
    assert table.penalty is None
    assert table.cosine == table.prior == pytest.approx(1)
    assert table.prior > max(table.tried.values()) + 0.001
    np.testing.assert_array_equal(table.vectors, truth - sums.mean + sums.mean)
    assert said[-1] == f"table of the vectors: kept the prior, held-out cosine {table.prior:.4f}"
    assert fit_table("vectors", sums, truth - sums.mean, held, 0.05, SILENT).penalty == 0.05


def test_the_firmness_of_the_prior_is_the_one_that_follows_best():
    sums, held = few(0.1)
    prior = ridge.Prior(np.random.default_rng(5).normal(size=(30, 8)).astype(np.float32), np.ones(30), sums, True)
    found = choose_prior(prior, sums, held)
    cosines = [held.measure(prior(firmness) + sums.mean) for firmness in FIRMNESS]
    assert held.measure(found + sums.mean) == max(cosines) > min(cosines) + 0.01


TEXTS = make_sentences(20)


def test_vectors_are_those_of_the_model(bert, model):
    for name, targets in ((bert, ["vectors"]), (model, ["vectors", "pooled"])):
        teacher = Teacher(str(name))
        found = teacher(TEXTS)
        np.testing.assert_allclose(found["vectors"], Runtime(name).encode(TEXTS, normalize_embeddings=True), atol=1e-6)
        assert list(teacher.targets) == targets
    np.testing.assert_allclose(teacher.finish("pooled", found["pooled"]), Runtime(model).encode(TEXTS), atol=1e-5)
    assert measure_following(np.array([[1.0, 0], [0, 2]]), np.array([[3.0, 0], [0, -1]])) == pytest.approx(0)


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet"])
def test_a_token_alone_stands_between_the_special_ones(encoders, family):
    teacher = Teacher(str(encoders(family)))
    size = teacher.make_tokenizer().get_vocab_size(with_added_tokens=True)
    assert teacher.embed_tokens([[i] for i in range(size)])["vectors"].shape == (size, teacher.dim)
    if family == "bert":
        dog, ing = VOCABULARY.index("dog"), VOCABULARY.index("##ing")
        found = teacher.embed_tokens([[dog], [dog, ing]])["vectors"]
        want = Runtime(encoders(family)).encode(["dog", "doging"], normalize_embeddings=True)
        np.testing.assert_allclose(found, want, atol=1e-6)


def test_a_table_of_words_needs_no_regression(bert, tmp_path):
    model = make_model(tmp_path / "m", bert, make_sentences(256), weighted=True, pooling="words")
    teacher = Teacher(str(model))
    alone, weights = teacher.embed_tokens([[i] for i in range(len(VOCABULARY))]), teacher.model.pooling.weights
    tokens = teacher.opened.tokenizer(TEXTS)
    for row, pooled in enumerate(teacher(TEXTS)["pooled"]):
        ids = tokens.ids[tokens.offsets[row] : tokens.offsets[row + 1]]
        inner = ids[1:-1]
        own = (weights[inner, None] * alone["pooled"][inner]).sum(axis=0)
        empty = teacher.opened.pool([""], None, None, None)[0] * weights[[ids[0], ids[-1]]].sum()
        np.testing.assert_allclose((own + empty) / weights[ids].sum(), pooled, atol=1e-5)


def test_texts_are_lowercased_if_the_teacher_s_are(encoders, tmp_path):
    for lower in (True, False):
        made = make_directory(tmp_path / str(lower), encoders("roberta"), [pooling("mean")], lower=lower)
        tokenizer = Teacher(str(made)).make_tokenizer()
        big, small = (tokenizer.encode(text, add_special_tokens=False).ids for text in ("DOG", "dog"))
        assert (big == small) == lower
