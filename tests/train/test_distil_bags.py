"""Bags of tokens, and words that get rows of their own."""

from itertools import pairwise

import numpy as np
import pytest

from fastflow.errors import UsageError
from fastflow.model.tokenizer.wordpiece import read_native
from fastflow.train.distil.bags import Bags, add_words, find_split_words, list_special_ids

from support.builders import VOCABULARY, make_sentences, unigram, wordpiece

SPLIT = ["dogsing", "x1y2", "catcatcat", "dogs"]


def test_a_row_holds_the_shares_of_its_tokens():
    bags = Bags(wordpiece())
    found = bags(["the dog the", "[CLS] cat", "", "☃"]).toarray()
    the, dog, cat = map(VOCABULARY.index, ("the", "dog", "cat"))
    assert found[0, the] == pytest.approx(2 / 3)
    assert found[0, dog] == pytest.approx(1 / 3)
    assert found[1, cat] == 1  # no special token, and no unknown one
    assert not found[2:].any()
    assert found.shape == (4, len(VOCABULARY))


def test_weights_count_in_the_mean():
    weights = np.ones(len(VOCABULARY), np.float32)
    weights[VOCABULARY.index("the")] = 0.25
    found = Bags(wordpiece(), weights)(["the dog"]).toarray()
    assert found[0, VOCABULARY.index("the")] == pytest.approx(0.2)
    assert found.sum() == pytest.approx(1)


def test_the_tokenizer_s_special_ids():
    assert list_special_ids(wordpiece()) == [0, 1, 2, 3, 4]


def test_the_most_frequent_words_that_fall_into_pieces():
    texts = ["DogSing the dogsing, x1y2!", "dogsing x1y2 catcatcat catcatcat", "once1 the the the"]
    assert find_split_words(wordpiece(), texts, 10) == [
        "dogsing",
        "catcatcat",
        "x1y2",
    ]
    assert find_split_words(wordpiece(), texts, 1) == ["dogsing"]


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
    ids, offsets, _ = native.wordpiece.tokenize(texts, 64)
    assert [ids[a:b].tolist() for a, b in pairwise(offsets)] == [each.ids for each in more.encode_batch_fast(texts)]
    assert len(VOCABULARY) in ids


def test_a_vocabulary_entry_would_not_do():
    """The reason for added tokens: an entry also takes the start of longer words."""
    from tokenizers import Tokenizer, models

    entry = Tokenizer(models.WordPiece({**{p: i for i, p in enumerate(VOCABULARY)}, "dogsing": 999}, unk_token="[UNK]"))
    assert entry.encode("dogsings").ids != Tokenizer(wordpiece().model).encode("dogsings").ids


def test_other_tokenizers_are_refused():
    with pytest.raises(UsageError, match="WordPiece, and this one is Unigram"):
        find_split_words(unigram(), ["a"], 3)
