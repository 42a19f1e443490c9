"""Captured graphs of small batches: one for each size, few enough to keep, and buffers that stay in place."""

from __future__ import annotations

import numpy as np
import torch

from fastflow import Runtime
from fastflow.backends.gpu.graphs import TEXTS, TOKENS, Bucket, BucketGraph, Graphs, bucket_for
from fastflow.backends.gpu.standin import StandIn
from fastflow.model.tokens import Tokens

from support.gpu_standin import assert_same, captures, on_standin, use_standin
from support.triton_processes import NEEDS

pytestmark = NEEDS


def test_the_bucket_is_the_smallest_that_holds_the_batch():
    assert bucket_for(1, 1) == (1, 16)
    assert bucket_for(3, 17) == (4, 32)
    assert bucket_for(32, 128) == (32, 128)
    assert bucket_for(33, 8) is None
    assert bucket_for(1, 129) is None
    for texts in range(1, 33):
        for tokens in range(1, 129):
            bucket = bucket_for(texts, tokens)
            assert bucket.texts in TEXTS
            assert bucket.tokens in TOKENS
            assert texts <= bucket.texts < 2 * texts
            assert tokens <= bucket.tokens < max(17, 2 * tokens)


def test_graphs_are_captured_when_first_needed_and_then_replayed_with_one_wait(standin, model):
    runtime = on_standin(model)
    assert standin.log == [], "nothing is captured before it is asked for"
    first = runtime.encode("a dog")
    assert [entry for entry in standin.log if entry[0] == "capture"] == [("capture", 0, 16)]
    standin.log.clear()
    other = runtime.encode("the cat sings")
    assert standin.log == [("run", 0, 0), ("record", 0), ("synchronize", 0)], "one launch, one wait"
    assert not np.array_equal(first, other)
    assert np.array_equal(runtime.encode("a dog"), first)
    runtime.encode(["a dog", "a cat"])
    runtime.encode("a dog", normalize_embeddings=True)
    assert sum(entry[0] == "capture" for entry in standin.log) == 2


def test_a_graph_reads_and_writes_memory_that_never_moves():
    """Leftovers of a longer batch in the buffers mean nothing."""
    device = StandIn()

    def run(inputs, longest):  # the sum of a text's ids, and how many they are
        ids, _, offsets = (array.long() for array in inputs)
        texts = [ids[a:b] for a, b in zip(offsets.tolist(), offsets.tolist()[1:], strict=False)]
        return torch.tensor([[float(text.sum()), len(text)] for text in texts])

    graph = BucketGraph(device, device.stream(), Bucket(2, 16), 2, run)

    def places():
        kept = graph.buffers
        return [array.data_ptr() for array in (kept.host_in, kept.device_in, kept.host_out)]

    before = places()
    for texts in ([[5] * 16, [7] * 9], [[3, 4]], [[1], [2, 2]]):
        offsets = np.cumsum([0, *map(len, texts)])
        batch = Tokens(np.concatenate(texts).astype(np.int32), offsets, np.empty(0, np.int64))
        found = graph(batch, np.arange(len(batch.ids)))
        assert found.tolist() == [[sum(text), len(text)] for text in texts]
        assert places() == before
    assert captures(device) == 1


def test_a_short_text_after_a_long_one_has_its_own_vector(standin, model):
    runtime, exact = on_standin(model), Runtime(model, backend="reference")
    texts = ["a dog", "the old bird sings near the quiet river", "a cat"]
    assert_same(np.stack([runtime.encode(text) for text in texts]), exact.encode(texts))
    assert captures(standin) == 1


class Sized:
    def __init__(self, nbytes):
        self.nbytes = nbytes


def test_the_least_recently_used_graphs_go_first():
    made = []

    def make(key):
        made.append(key)
        return Sized(10)

    graphs = Graphs(make, most=3, most_bytes=100)
    for key in "abcab":
        assert graphs[key].nbytes == 10
    graphs["d"]
    assert ("c" not in graphs, "a" in graphs, "b" in graphs, "d" in graphs) == (True, True, True, True)
    assert made == list("abcd")
    tight = Graphs(lambda key: Sized(60), most=10, most_bytes=100)
    tight["a"]
    tight["b"]
    assert (len(tight), "b" in tight, tight.nbytes) == (1, True, 60)
    huge = Graphs(lambda key: Sized(1000), most=10, most_bytes=100)
    assert huge["a"].nbytes == 1000, "one is always kept"
    huge.clear()
    assert len(huge) == 0


def test_a_runtime_keeps_no_more_graphs_than_memory_allows(monkeypatch, model, sentences):
    standin = use_standin(monkeypatch, graph_bytes=1 << 30)  # of which two may be kept
    runtime = on_standin(model)
    exact = Runtime(model, backend="reference")
    for count, made in ((1, 1), (2, 2), (4, 3), (8, 4), (1, 5), (8, 5), (1, 5), (4, 6)):
        assert_same(runtime.encode(sentences[:count]), exact.encode(sentences[:count]))
        assert captures(standin) == made, f"{count} texts"


def test_a_graph_that_does_not_fit_is_done_without(monkeypatch, model, sentences):
    standin = use_standin(monkeypatch, room=60)
    runtime, exact = on_standin(model), Runtime(model, backend="reference")
    assert_same(runtime.encode(sentences[:6]), exact.encode(sentences[:6]))
    assert_same(runtime.encode(sentences[:1]), exact.encode(sentences[:1]))
    assert captures(standin) == 1
    notes = runtime.info()["notes"]
    assert any("out of memory at 256 tokens" in note for note in notes)
    assert_same(runtime.encode(sentences[:6]), exact.encode(sentences[:6]))
    assert runtime.info()["notes"] == notes, "it is not tried again"
    assert captures(standin) == 1
