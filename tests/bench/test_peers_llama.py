"""llama.cpp: its file and its parameters, by stand-ins for the packages; with them, its vectors."""

import base64
import json
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from fastflow.bench.measure.compare import least_cosine
from fastflow.bench.measure.row import Results
from fastflow.bench.peers import encoder, llama
from fastflow.bench.peers.encoder import PEERS, open_peers
from fastflow.bench.peers.pooled import reference
from fastflow.bench.report.ratios_texts import CLASSES, ragged_ratios
from fastflow.bench.suites import end_to_end
from fastflow.errors import FastflowError

from support.benches import absent, needs, subject_of

pytestmark = pytest.mark.usefixtures("as_in_a_run")
INFO = "CPU : AVX2 = 1 | AVX512 = 1 | AVX512_VNNI = 1 | REPACK = 1 | "
EVERY = [("xllamacpp", dtype) for dtype in PEERS["xllamacpp"][1]]


@pytest.fixture
def subject(tmp_path, bert):
    """A plain BERT, the mean of its last layer."""
    return subject_of(tmp_path, bert)


@pytest.fixture
def server(monkeypatch):
    """A stand-in for xllamacpp whose vectors are the texts' sums; gives the parameters and the requests."""
    seen = SimpleNamespace(params=None, requests=[], library=ModuleType("xllamacpp"))

    class Server:
        def __init__(self, params):
            seen.params = params

        def handle_embeddings(self, request):
            seen.requests.append(json.loads(request))
            sums = [np.full(3, sum(text), np.float32) for text in seen.requests[-1]["input"]]
            return json.dumps({"data": [{"embedding": base64.b64encode(z.tobytes()).decode()} for z in sums]})

    seen.library.Server = Server
    seen.library.CommonParams = lambda: SimpleNamespace(
        model=SimpleNamespace(), cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace()
    )
    seen.library.llama_flash_attn_type = SimpleNamespace(LLAMA_FLASH_ATTN_TYPE_ENABLED="flash")
    seen.library.get_system_info = lambda: INFO
    monkeypatch.setitem(sys.modules, "xllamacpp", seen.library)
    monkeypatch.setattr(llama, "gguf_file", lambda subject, dtype: subject.folder / f"{dtype}.gguf")
    return seen


def test_texts_are_given_without_padding_in_one_request_and_come_back_in_order(subject, server):
    prepare = llama.xllamacpp(subject, "int8", 3)
    ids, mask = np.arange(12).reshape(3, 4), np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    call = prepare(ids, mask)
    assert server.requests == []
    z = call()
    assert server.requests == [{"input": [[0, 1, 2, 3], [4, 5], [8]], "encoding_format": "base64"}]
    assert z.dtype == np.float32
    assert z.tolist() == [[6.0] * 3, [9.0] * 3, [8.0] * 3]
    with pytest.raises(ValueError, match=r"llama\.cpp answers: .*too large to process"):
        llama.vectors({"error": {"code": 500, "message": "input is too large to process"}})


def test_llama_cpp_has_the_benchs_threads_and_room_for_the_longest_text(subject, server):
    llama.xllamacpp(subject, "int8", 3)
    params = server.params
    assert (params.cpuparams.n_threads, params.cpuparams_batch.n_threads) == (3, 3)
    assert (params.embedding, params.embd_normalize, params.flash_attn_type) == (True, -1, "flash")
    assert (params.n_batch, params.n_ubatch, params.n_ctx) == (512, 512, subject.shape.positions)
    assert params.model.path == str(subject.folder / "int8.gguf")
    long = replace(subject, shape=subject.shape._replace(positions=2048))
    assert llama.settings(long, subject.folder, 1).n_ubatch == 2048


@pytest.mark.parametrize(
    ("info", "name"), [(INFO, " avx512"), (INFO.replace("AVX512 = 1", "AVX512 = 0"), " avx2"), ("CPU : ", "")]
)
def test_the_backend_names_the_widest_instruction_set_of_the_build(server, info, name):
    server.library.get_system_info = lambda: info
    assert llama.backend() == f"xllamacpp{name}"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"layers": (1, 3)}, r"pools layers \(1, 3\)"),
        ({"mode": "cls"}, "the plain mean is all that this peer pools"),
        ({"weights": np.ones(3)}, "without token weights"),
        ({"activation": "relu"}, "not of bert with relu"),
        ("roberta", "made of BERT with GELU, not of roberta"),
        ("distilbert", "made of BERT with GELU, not of distilbert"),
    ],
)
def test_another_model_is_refused_by_name(tmp_path, encoders, subject, change, reason):
    llama.check(subject)
    if isinstance(change, str):
        other = subject_of(tmp_path, encoders(change))
    elif "activation" in change:
        other = replace(subject, shape=subject.shape._replace(**change))
    else:
        other = replace(subject, **change)
    with pytest.raises(ValueError, match=reason):
        llama.check(other)


def test_the_file_has_every_tensor_in_its_precision_and_is_made_once(subject):
    needs("gguf")
    import gguf

    for dtype, kind in llama.TYPES.items():
        path = llama.gguf_file(subject, dtype)
        kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
        assert len(kinds) == 5 + 16 * subject.depth
        weights = {name for name in kinds if name.startswith("blk.") and name.endswith(".weight")}
        matrices = {name for name in weights if "norm" not in name}
        assert len(matrices) == 6 * subject.depth
        assert {kinds[name] for name in matrices} == {kind}
        assert {kinds[name] for name in kinds.keys() - matrices} == {"F32"}
        before = path.stat().st_mtime_ns
        assert llama.gguf_file(subject, dtype) == path
        assert path.stat().st_mtime_ns == before
    files = {path.name for path in subject.folder.glob("llama*")}
    assert files == {f"llama-{dtype}.gguf" for dtype in llama.TYPES}


def test_its_vectors_are_pytorchs_and_those_of_another_file_are_refused(subject):
    needs(*PEERS["xllamacpp"][0])
    skipped: list = []
    engines = list(open_peers(subject, EVERY, 1, skipped))
    assert skipped == []
    ids = np.random.default_rng(0).integers(5, 100, (70, 9))  # more texts than slots
    mask = (np.arange(9) < np.resize([9, 4, 1], 70)[:, None]).astype(np.int64)
    exact = reference(subject)(ids, mask)
    errors = {}
    for engine in engines:
        z = engine.prepare(ids, mask)()
        assert least_cosine(engine.name, engine.dtype, z, exact) <= 1 + 1e-6
        errors[engine.dtype] = np.abs(z - exact).max()
    assert errors["float32"] < errors["bfloat16"] < errors["int8"]
    with pytest.raises(FastflowError, match="xllamacpp float32 differs from PyTorch"):
        least_cosine("xllamacpp", "float32", engines[-1].prepare(ids[:, ::-1].copy(), mask)(), exact)


def test_it_is_a_peer_of_texts_too_and_counts_in_every_class(subject, sentences):
    of_class = {dtype for dtype, peers in CLASSES.items() if ("xllamacpp", dtype) in peers}
    assert of_class == {dtype for _, dtype in EVERY}
    needs(*PEERS["xllamacpp"][0], "fastflow.kernels._cpu")
    results = Results(ceilings=[{"fma_gflops": 100.0}])
    end_to_end.run_subject(subject, sentences[:20], "texts", ["xllamacpp"], 1, lambda message: None, results)
    assert {(row["name"], row["dtype"]) for row in results.rows} >= set(EVERY)
    assert results.skipped == []
    assert any("fastflow int8 against xllamacpp int8" in entry["name"] for entry in ragged_ratios(results.rows))


def test_without_its_packages_it_is_named_with_them(subject, monkeypatch):
    monkeypatch.setattr(encoder, "find_spec", lambda name: None if name in PEERS["xllamacpp"][0] else object())
    skipped: list = []
    assert list(open_peers(subject, EVERY, 1, skipped)) == []
    assert [(entry["name"], entry["reason"]) for entry in skipped] == [
        (f"xllamacpp {dtype}", absent("gguf, xllamacpp")) for _, dtype in EVERY
    ]
