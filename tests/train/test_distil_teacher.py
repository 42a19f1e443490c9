"""The teacher as a function of texts and of single tokens."""

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.train.distil.teacher import Teacher, normalize

from support.builders import VOCABULARY, make_model, make_sentences
from support.sentence_dirs import make_directory, pooling

TEXTS = make_sentences(20)


@pytest.fixture(scope="module")
def words_model(bert, tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("words") / "m", bert, make_sentences(256), weighted=True, pooling="words")


def test_vectors_are_those_of_the_model(bert, model):
    for name in (bert, model):
        teacher = Teacher(str(name))
        np.testing.assert_allclose(teacher(TEXTS)["vectors"], normalize(Runtime(name).encode(TEXTS)), atol=1e-6)
    assert [target.name for target in Teacher(str(bert)).targets] == ["vectors"]
    assert [target.name for target in teacher.targets] == ["vectors", "pooled"]
    found = teacher(TEXTS)["pooled"]
    np.testing.assert_allclose(teacher.finish("pooled", found), Runtime(model).encode(TEXTS), atol=1e-5)


def test_a_token_alone_stands_between_the_special_ones(bert):
    teacher = Teacher(str(bert))
    dog, ing = VOCABULARY.index("dog"), VOCABULARY.index("##ing")
    found = teacher.embed_tokens([[dog], [dog, ing]])["vectors"]
    np.testing.assert_allclose(found, normalize(Runtime(bert).encode(["dog", "doging"])), atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet"])
def test_every_kind_of_tokenizer(encoders, family):
    teacher = Teacher(str(encoders(family)))
    size = teacher.make_tokenizer().get_vocab_size(with_added_tokens=True)
    assert teacher.embed_tokens([[i] for i in range(size)])["vectors"].shape == (size, teacher.dim)


def test_a_table_of_words_needs_no_regression(words_model):
    """The pooled state of such a model is a weighted mean of its tokens' own, special tokens aside."""
    teacher = Teacher(str(words_model))
    alone, weights = (
        teacher.embed_tokens([[i] for i in range(len(VOCABULARY))])["pooled"],
        teacher.model.pooling.weights,
    )
    tokens = teacher.opened.tokenizer(TEXTS)
    for row, pooled in enumerate(teacher(TEXTS)["pooled"]):
        ids = tokens.ids[tokens.offsets[row] : tokens.offsets[row + 1]]
        inner = ids[1:-1]
        own = (weights[inner, None] * alone[inner]).sum(axis=0)
        empty = teacher.opened.pool([""], None, None, None)[0] * weights[[ids[0], ids[-1]]].sum()
        np.testing.assert_allclose((own + empty) / weights[ids].sum(), pooled, atol=1e-5)


def test_texts_are_lowercased_if_the_teacher_s_are(encoders, tmp_path):
    for lower in (True, False):
        made = make_directory(tmp_path / str(lower), encoders("roberta"), [pooling("mean")], lower=lower)
        tokenizer = Teacher(str(made)).make_tokenizer()
        big, small = (tokenizer.encode(text, add_special_tokens=False).ids for text in ("DOG", "dog"))
        assert (big == small) == lower
