"""The GPU's own part on a stand-in: the device, captured graphs, and large batches in flight."""

import inspect
import re
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from fastflow import Runtime
from fastflow.backends.gpu.graphs import TEXTS, TOKENS, Bucket, BucketGraph, Device, Graphs, bucket_for
from fastflow.errors import FastflowError
from fastflow.kernels.encoder.reference import positions
from fastflow.model.tokenizer import Tokens

from support.gpu_standin import assert_same, captures, on_standin, use_standin
from support.standin import StandIn
from support.triton_processes import NEEDS

pytestmark = NEEDS


def test_the_device_asks_pytorch_for_what_it_has():
    assert {"stream", "capture_error_mode"} <= set(inspect.signature(torch.cuda.graph.__init__).parameters)
    assert issubclass(torch.cuda.OutOfMemoryError, RuntimeError)
    for name in ("empty_cache", "memory_reserved", "CUDAGraph", "Event", "Stream", "current_stream"):
        assert hasattr(torch.cuda, name)
    assert hasattr(torch.Stream, "__enter__")
    wanted = {name for name in vars(Device) if not name.startswith("_")}
    assert wanted <= set(dir(StandIn)), "the stand-in does what the device does"
    assert len(wanted) == 10
    seen, calls = MagicMock(), ["stream.__enter__", "graph.replay", "stream.__exit__", "stream.synchronize"]
    Device.replay(seen, seen.stream, seen.graph)
    assert [name for name, *_ in seen.mock_calls] == calls


def test_the_bucket_is_the_smallest_that_holds_the_batch():
    wanted = {(1, 1): (1, 16), (3, 17): (4, 32), (32, 128): (32, 128), (33, 8): None, (1, 129): None}
    assert {batch: bucket_for(*batch) for batch in wanted} == wanted
    for texts in range(1, 33):
        for tokens in range(1, 129):
            bucket = bucket_for(texts, tokens)
            assert (bucket.texts in TEXTS, bucket.tokens in TOKENS) == (True, True)
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
        return [getattr(graph.buffers, name).data_ptr() for name in ("host_in", "device_in", "host_out")]

    before = places()
    for texts in ([[5] * 16, [7] * 9], [[3, 4]], [[1], [2, 2]]):
        offsets = np.cumsum([0, *map(len, texts)])
        batch = Tokens(np.concatenate(texts).astype(np.int32), offsets, np.empty(0, np.int64))
        assert graph(batch, np.arange(len(batch.ids))).tolist() == [[sum(text), len(text)] for text in texts]
        assert places() == before
    assert captures(device) == 1


def sized(nbytes, made=None):
    """A maker of graphs that take as many bytes; ``made`` gets their keys."""
    return lambda key: ([] if made is None else made).append(key) or MagicMock(nbytes=nbytes)


def test_the_least_recently_used_graphs_go_first():
    made = []
    graphs = Graphs(sized(10, made), most=3, most_bytes=100)
    assert {graphs[key].nbytes for key in "abcabd"} == {10}
    assert [key for key in "abcd" if key in graphs] == ["a", "b", "d"]
    assert made == list("abcd")
    tight = Graphs(sized(60), most=10, most_bytes=100)
    tight["a"], tight["b"]
    assert (len(tight), "b" in tight, tight.nbytes) == (1, True, 60)
    huge = Graphs(sized(1000), most=10, most_bytes=100)
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


def test_two_batches_are_in_flight_and_copies_have_streams_of_their_own(standin, model, sentences):
    runtime, exact = on_standin(model), Runtime(model, backend="reference")
    blocks = [block for _, block in runtime.stream(sentences[:240], batch_size=40)]
    assert_same(np.concatenate(blocks), exact.encode(sentences[:240]))
    log = [entry for entry in standin.log if entry[0] in ("run", "wait", "synchronize")]
    computing, copying, returning = 0, 1, 2
    one = [("run", copying), ("wait", computing, copying), ("run", computing)]
    one += [("wait", returning, computing), ("run", returning)]
    assert [entry[:2] if entry[0] == "run" else entry for entry in log[:5]] == one
    launched = [i for i, entry in enumerate(log) if entry[:2] == ("run", computing)]
    waited = [i for i, entry in enumerate(log) if entry == ("synchronize", returning)]
    in_flight = [sum(i < w for i in launched) - n for n, w in enumerate(waited)]
    assert in_flight == [2, 2, 2, 2, 2, 1]


@pytest.mark.slow
def test_out_of_memory_halves_the_batches_and_goes_on(monkeypatch, model, sentences):
    standin = use_standin(monkeypatch, room=300)
    runtime, exact = on_standin(model), Runtime(model, backend="reference").encode(sentences)
    assert_same(runtime.encode(sentences), exact)
    notes = [note for note in runtime.info()["notes"] if "out of memory" in note]
    assert notes
    assert 0 < int(re.search(r"batches hold at most (\d+) since", notes[-1])[1]) <= 300 * 2
    standin.log.clear()
    assert_same(runtime.encode(sentences), exact)
    assert ("release",) not in standin.log, "what was too much once is not tried again"
    assert_same(runtime.encode(sentences[:3]), exact[:3], limit=1e-5)


def test_a_text_that_does_not_fit_alone_is_an_error(monkeypatch, model, sentences):
    use_standin(monkeypatch, room=12)
    runtime, exact = on_standin(model), Runtime(model, backend="reference")
    with pytest.raises(FastflowError, match=r"a text of \d\d tokens does not fit .* even alone") as caught:
        runtime.encode([*sentences[:40], " ".join(["house"] * 40)])
    assert "\n" not in str(caught.value)
    assert_same(runtime.encode(["a dog", "a cat"]), exact.encode(["a dog", "a cat"])), "and the runtime goes on"


@pytest.mark.slow
def test_an_error_on_the_way_leaves_the_pipeline_whole(standin, model, sentences, monkeypatch):
    """Often enough that a slot lost each time would leave none."""
    runtime, exact = on_standin(model), Runtime(model, backend="reference").encode(sentences)
    for third in range(4):
        with monkeypatch.context() as patch:
            calls = []

            def fails_once(*given, calls=calls, third=third):
                calls.append(given)
                if len(calls) == third % 3 + 1:
                    raise KeyboardInterrupt
                return positions(*given)

            patch.setattr("fastflow.backends.triton.positions", fails_once)
            with pytest.raises(KeyboardInterrupt):
                runtime.encode(sentences, batch_size=40)
        assert_same(runtime.encode(sentences, batch_size=40), exact)


@pytest.mark.parametrize("careless", [0, 2, None])
def test_the_stand_in_shows_a_missing_wait(standin, model, sentences, monkeypatch, careless):
    """Else it were no use: ids that never came, vectors that are not there yet; None: those read too early."""
    real, error = standin.wait, (IndexError, TypeError)
    if careless is None:
        monkeypatch.setattr(standin, "synchronize", lambda event: None)
        error = FastflowError
    else:
        monkeypatch.setattr(standin, "wait", lambda stream, event: stream.number == careless or real(stream, event))
    with pytest.raises(error) as caught:
        on_standin(model).encode(sentences, batch_size=40)
    assert careless is not None or "text 0 gives NaN or infinity" in str(caught.value)
