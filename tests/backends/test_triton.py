"""The triton backend's own part on a CPU: which path a batch takes, graphs, the pipeline, memory, and the vectors."""

from __future__ import annotations

import inspect
import threading

import numpy as np
import pytest
import torch
from builders import FAMILIES, make_model
from gpu_standin import use_standin
from tolerances import COSINE, EMBEDDING
from triton_processes import NEEDS

from fastflow import Runtime
from fastflow.backends import choose as encoder
from fastflow.backends.gpu.device import CudaDevice
from fastflow.backends.gpu.graphs import TEXTS, TOKENS, Graphs, bucket_for
from fastflow.errors import FastflowError, UsageError
from fastflow.files import embed
from fastflow.model.tokens import Tokenizer
from fastflow.stages.vectors import paired_cosine

pytestmark = NEEDS
BUCKETS = 1e-3  # relative, the same text in batches of different size


@pytest.fixture
def standin(monkeypatch):
    return use_standin(monkeypatch)


def on_standin(model, dtype="float32"):
    return Runtime(model, dtype=dtype, backend="triton")


def unit(z):
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def assert_same(found, exact, limit=EMBEDDING):
    assert found.shape == exact.shape
    assert np.isfinite(found).all()
    assert exact.std() > 0.01
    assert np.abs(unit(found) - unit(exact)).max() <= limit


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_equals_the_reference(standin, encoders, family, sentences):
    assert_same(on_standin(encoders(family)).encode(sentences[:50]), Runtime(encoders(family)).encode(sentences[:50]))


@pytest.mark.parametrize("pooling", ["cls", "pooler", "first-last-avg", "mean-of-layers:2", "avg-last-3"])
def test_every_pooling_equals_the_reference(standin, bert, sentences, tmp_path, pooling):
    model = make_model(tmp_path, bert, sentences[:64], "standardize", pooling=pooling)
    ours, exact = on_standin(model), Runtime(model, backend="reference")
    for texts in (sentences[:3], sentences[:70]):
        assert_same(ours.encode(texts), exact.encode(texts))
        assert_same(ours.pool(texts), exact.pool(texts))


@pytest.mark.parametrize(("count", "captures"), [(1, 2), (3, 2), (70, 0)])  # of these, three leave a bucket's text free
def test_tokens_count_by_the_weights_of_their_ids(standin, model, weighted_model, sentences, count, captures):
    plain = Runtime(model, backend="reference")
    ours, exact = on_standin(weighted_model), Runtime(weighted_model, backend="reference")
    for words in (6, 2):  # what the longer texts left in a graph's buffers means nothing
        texts = [" ".join(text.split()[:words]) for text in sentences[:count]]
        assert np.abs(unit(exact.pool(texts)) - unit(plain.pool(texts))).max() > 0.01
        assert_same(ours.encode(texts), exact.encode(texts))
        assert_same(ours.pool(texts), exact.pool(texts))
    assert [entry[0] for entry in standin.log].count("capture") == captures


@pytest.mark.parametrize("count", [1, 3, 70])
def test_lengths_and_cuts(standin, model, sentences, count):
    ours, exact, texts = on_standin(model), Runtime(model, backend="reference"), sentences[:count]
    one, other = {"normalize_embeddings": True}, {"truncate_dim": 5}
    for options in (one, other, one | other):
        found, wanted = ours.encode(texts, **options), exact.encode(texts, **options)
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() <= 2 * EMBEDDING * np.abs(wanted).max()
    pooled = exact.pool(texts)
    assert_same(ours.transform(pooled), exact.transform(pooled))
    assert ours.encode([]).shape == (0, 32)


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


def test_graphs_read_page_locked_memory_that_never_moves(standin, model, monkeypatch):
    runtime = on_standin(model)
    runtime.encode("a dog")
    graph = next(iter(runtime._backend._graphs._kept.values()))
    before = graph.buffers.host_in.data_ptr(), graph.buffers.device_in.data_ptr(), graph.buffers.host_out.data_ptr()
    long = runtime.encode("the old bird sings near the quiet river")
    short = runtime.encode("a cat")  # what the longer text left behind it means nothing
    after = graph.buffers.host_in.data_ptr(), graph.buffers.device_in.data_ptr(), graph.buffers.host_out.data_ptr()
    assert before == after
    exact = Runtime(model, backend="reference")
    assert_same(np.stack([long, short]), exact.encode(["the old bird sings near the quiet river", "a cat"]))


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


def test_no_more_graphs_than_allowed_are_kept_by_a_runtime(monkeypatch, model, sentences):
    standin = use_standin(monkeypatch, graph_bytes=1 << 30)
    runtime = on_standin(model)
    exact = Runtime(model, backend="reference")
    for count in (1, 2, 4, 8, 1):
        assert_same(runtime.encode(sentences[:count]), exact.encode(sentences[:count]))
    graphs = runtime._backend._graphs
    assert (len(graphs), graphs.nbytes) == (2, 2 << 30)
    assert sum(entry[0] == "capture" for entry in standin.log) == 5, "the first had to go and was captured anew"


def test_the_same_text_in_batches_of_every_size(standin, model, sentences):
    runtime, text = on_standin(model), "the old bird sings near the quiet river"
    alone = runtime.encode(text)
    for company in (sentences[:1], sentences[:7], sentences[:31], sentences[:100]):
        together = runtime.encode([*company, text])[-1]
        assert np.linalg.norm(together - alone) <= BUCKETS * np.linalg.norm(alone)
    long = " ".join(["house"] * 60)
    assert np.linalg.norm(runtime.encode([text, long])[0] - alone) <= BUCKETS * np.linalg.norm(alone)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_lower_precisions_are_near_float32(standin, dtype, sentences):
    """Rounded where the kernels round, on the model in the package and its real weights; alone and in company."""
    exact, near = Runtime(backend="reference").encode(sentences[:60]), on_standin(None, dtype)
    assert near.info()["dtype"] == dtype
    together = near.encode(sentences[:60])
    assert paired_cosine(together, exact).min() >= COSINE["bfloat16"]
    assert not np.array_equal(together, exact)
    alone = np.stack([near.encode(text) for text in sentences[:10]])
    assert paired_cosine(alone, exact[:10]).min() >= COSINE["bfloat16"]


def streams(log):
    return [entry for entry in log if entry[0] in ("run", "wait", "synchronize")]


def test_two_batches_are_in_flight_and_copies_have_streams_of_their_own(standin, model, sentences):
    runtime, exact = on_standin(model), Runtime(model, backend="reference")
    blocks = [block for _, block in runtime.stream(sentences[:240], batch_size=40)]
    assert_same(np.concatenate(blocks), exact.encode(sentences[:240]))
    log = streams(standin.log)
    computing, copying, returning = 0, 1, 2
    one = [("run", copying), ("wait", computing, copying), ("run", computing)]
    one += [("wait", returning, computing), ("run", returning)]
    assert [entry[:2] if entry[0] == "run" else entry for entry in log[:5]] == one
    launched = [i for i, entry in enumerate(log) if entry[:2] == ("run", computing)]
    waited = [i for i, entry in enumerate(log) if entry == ("synchronize", returning)]
    in_flight = [sum(i < w for i in launched) - n for n, w in enumerate(waited)]
    assert in_flight == [2, 2, 2, 2, 2, 1]


@pytest.mark.parametrize("careless", [0, 2])
def test_a_stream_that_does_not_wait_is_found_out(standin, model, sentences, monkeypatch, careless):
    """The stand-in is no use unless a missing wait shows: ids that never came, vectors that are not there yet."""
    real = standin.wait
    monkeypatch.setattr(standin, "wait", lambda stream, event: stream.number == careless or real(stream, event))
    with pytest.raises((IndexError, TypeError)):
        on_standin(model).encode(sentences, batch_size=40)


def test_reading_before_the_device_is_done_is_found_out(standin, model, sentences, monkeypatch):
    monkeypatch.setattr(standin, "synchronize", lambda event: None)
    with pytest.raises(FastflowError, match="text 0 gives NaN or infinity"):
        on_standin(model).encode(sentences, batch_size=40)


def test_out_of_memory_halves_the_batches_and_goes_on(monkeypatch, model, sentences):
    standin = use_standin(monkeypatch, room=300)
    runtime, exact = on_standin(model), Runtime(model, backend="reference").encode(sentences)
    assert_same(runtime.encode(sentences), exact)
    notes = [note for note in runtime.info()["notes"] if "out of memory" in note]
    assert notes
    assert "batches hold at most" in notes[-1]
    budget = runtime._backend._pipeline.budget
    assert 0 < budget <= 300 * 2
    standin.log.clear()
    assert_same(runtime.encode(sentences), exact)
    assert ("release",) not in standin.log, "what was too much once is not tried again"
    assert_same(runtime.encode(sentences[:3]), exact[:3], limit=1e-5)


def test_a_graph_that_does_not_fit_is_done_without(monkeypatch, model, sentences):
    use_standin(monkeypatch, room=60)
    runtime, exact = on_standin(model), Runtime(model, backend="reference")
    assert_same(runtime.encode(sentences[:6]), exact.encode(sentences[:6]))
    assert_same(runtime.encode(sentences[:1]), exact.encode(sentences[:1]))
    assert len(runtime._backend._graphs) == 1
    notes = runtime.info()["notes"]
    assert any("out of memory at 256 tokens" in note for note in notes)
    assert_same(runtime.encode(sentences[:6]), exact.encode(sentences[:6]))
    assert runtime.info()["notes"] == notes, "it is not tried again"


def test_a_text_that_does_not_fit_alone_is_an_error(monkeypatch, model, sentences):
    use_standin(monkeypatch, room=12)
    runtime, exact = on_standin(model), Runtime(model, backend="reference")
    with pytest.raises(FastflowError, match=r"a text of \d\d tokens does not fit .* even alone") as caught:
        runtime.encode([*sentences[:40], " ".join(["house"] * 40)])
    assert "\n" not in str(caught.value)
    assert_same(runtime.encode(["a dog", "a cat"]), exact.encode(["a dog", "a cat"])), "and the runtime goes on"


def test_an_error_on_the_way_leaves_the_pipeline_whole(standin, model, sentences, monkeypatch):
    runtime, exact = on_standin(model), Runtime(model, backend="reference")
    real, calls = runtime._backend._positions, []

    def fails_once(batch):
        calls.append(len(batch.ids))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(batch)

    monkeypatch.setattr(runtime._backend._pipeline, "_positions", fails_once)
    with pytest.raises(KeyboardInterrupt):
        runtime.encode(sentences, batch_size=40)
    assert_same(runtime.encode(sentences, batch_size=40), exact.encode(sentences))
    assert len(runtime._backend._pipeline._free) == 3


def test_several_threads_get_their_own_vectors(standin, model, sentences):
    runtime, exact, found = on_standin(model), Runtime(model, backend="reference").encode(sentences), {}

    def work(number):
        found[number] = runtime.encode(sentences[number : number + 60])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(0, 40, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, z in found.items():
        assert_same(z, exact[number : number + 60])
    assert len(found) == 4


def test_long_streams_are_tokenised_ahead(standin, model, sentences, monkeypatch):
    monkeypatch.setattr("fastflow.streaming.WINDOW", 50)
    runtime, exact, names = on_standin(model), Runtime(model, backend="reference"), set()
    real = runtime.tokenize

    def tokenize(texts):
        names.add(threading.current_thread().name.partition("_")[0])
        return real(texts)

    runtime._tokenizer = tokenize
    assert_same(runtime.encode(sentences[:170]), exact.encode(sentences[:170]))
    assert names == {"fastflow-ahead"}
    assert [start for start, _ in runtime.stream(iter(sentences[:170]))] == [0, 50, 100, 150]
    with pytest.raises(FastflowError, match="text 60 is int"):
        runtime.encode([*sentences[:60], 3, *sentences[:60]])
    names.clear()
    runtime.encode(sentences[:50])
    assert names == {threading.current_thread().name}, "one window needs no thread"


def test_a_forked_process_is_told_so(standin, model, monkeypatch):
    runtime = on_standin(model)
    runtime.encode("a dog")
    monkeypatch.setattr("fastflow.backends.triton.os.getpid", lambda: -1)  # what a child would see
    for call in (lambda: runtime.encode("a dog"), lambda: runtime.transform(np.ones((1, 32)))):
        with pytest.raises(FastflowError, match="cannot be used in a forked process; make a new one in each process"):
            call()


def test_auto_takes_the_gpu_where_there_is_one_and_else_says_why_not(standin, model, monkeypatch):
    monkeypatch.setattr(encoder, "GPU_FILES", ("/dev/null",))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert (Runtime(model).backend, Runtime(model, dtype="float16").backend) == ("triton", "triton")
    assert Runtime(model, device="cpu").backend == "cpu"
    assert Runtime(model, dtype="int8").backend == "cpu"
    monkeypatch.setattr(encoder, "_has_cuda", lambda: False)
    stepped = Runtime(model)
    assert stepped.backend == "cpu"
    assert "stepped down from the triton backend: triton: PyTorch finds no CUDA device" in stepped.info()["notes"][-1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert Runtime(model).info()["notes"] == stepped.info()["notes"][:-1], "a GPU that is hidden is not looked for"


def test_what_cannot_run_is_said_in_one_sentence(monkeypatch, standin, bert, tmp_path):
    with pytest.raises(UsageError, match="usable are float32, bfloat16, float16"):
        Runtime(bert, dtype="int8", backend="triton")
    assert "threads: a GPU has its own" in Runtime(bert, backend="triton", threads=2).info()["notes"]


def test_the_device_asks_pytorch_for_what_it_has():
    """No GPU is needed to see that names and arguments exist in the PyTorch at hand."""
    assert {"stream", "capture_error_mode"} <= set(inspect.signature(torch.cuda.graph.__init__).parameters)
    assert issubclass(torch.cuda.OutOfMemoryError, RuntimeError)
    for name in ("empty_cache", "memory_reserved", "CUDAGraph", "Event", "Stream", "current_stream", "stream"):
        assert hasattr(torch.cuda, name)
    wanted = {name for name in vars(CudaDevice) if not name.startswith("_")}
    assert wanted == {"pinned", "empty", "stream", "run", "record", "wait", "synchronize", "capture", "release"}


@pytest.mark.parametrize("dedupe", [False, True])
def test_a_file_is_read_and_tokenised_ahead(standin, model, sentences, tmp_path, monkeypatch, dedupe):
    monkeypatch.setattr(embed, "WINDOW", 16)
    source, threads = tmp_path / "in.txt", set()
    source.write_text("\n".join([*sentences[:70], *sentences[:9]]), encoding="utf-8")
    runtime, exact = on_standin(model), Runtime(model, backend="reference")

    class Listening(Tokenizer):
        def __call__(self, texts):
            threads.add(threading.current_thread().name.partition("_")[0])
            return super().__call__(texts)

    runtime.tokenize.__class__ = Listening
    embed.embed_file(runtime, str(source), tmp_path / "out.npy", embed.Settings(dedupe=dedupe), quiet=True)
    assert_same(np.load(tmp_path / "out.npy"), exact.encode([*sentences[:70], *sentences[:9]]))
    assert ("fastflow-ahead" in threads) is not dedupe
