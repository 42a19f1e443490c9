"""Many requests at once, and large ones: each gets its own answer."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow import Index

from support.servers import in_parallel


@pytest.mark.slow
def test_large_bodies_and_answers_are_whole(server, runtime):
    texts = [f"text number {i} of a long list of them" for i in range(1500)]
    answer = server.post("/embed", {"inputs": texts})
    assert np.array_equal(np.array(answer.json, np.float32), runtime.encode(texts, normalize_embeddings=True))


def test_many_clients_of_several_routes_get_their_own_answers(librarian, library, runtime):
    """Raw and normalized vectors of one batch, and queries: none is taken for another."""
    texts = [f"chapter {i} of a book" for i in range(24)]
    asked = []
    for text in texts:
        asked += [("/embed", {"inputs": text}), ("/search", {"query": text, "k": 3})]
        asked += [
            ("/similarity", {"inputs": {"source_sentence": text, "sentences": texts[:1]}}),
            ("/embed", {"inputs": [text], "normalize": False}),
        ]
    answers = [answer.json for answer in in_parallel([lambda each=each: librarian.post(*each) for each in asked])]
    vectors, plain = np.array(answers[::4], np.float32)[:, 0], np.array(answers[3::4], np.float32)[:, 0]
    assert np.array_equal(vectors, runtime.encode(texts, normalize_embeddings=True))
    assert np.array_equal(plain, runtime.encode(texts))
    np.testing.assert_allclose([answer[0] for answer in answers[2::4]], vectors @ vectors[0], atol=1e-5)
    with Index(library, runtime) as index:
        for text, answer in zip(texts, answers[1::4], strict=True):
            assert [hit["row"] for hit in answer["hits"][0]] == [hit.row for hit in index.search(text, 3)]
    queue = librarian.service.engine.queue
    assert (queue.jobs, queue.work, queue.turns) == (0, 0, 0)
