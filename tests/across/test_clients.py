"""The server under its users' own clients: each is the published package, and is skipped if it is not installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

import fastflow

from support.databases import make
from support.processes import HANGS
from support.servers import Running, serving

TEXTS = ["A man is playing a guitar.", "naïve café 東京 🎸", "a\nb"]
KEY = "a-key"
PATIENT = {"max_queue": HANGS, "timeout": HANGS, "receive": HANGS, "send": HANGS}  # on a busy machine too


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    model = {"fingerprint": fastflow.Runtime(None, "cpu").fingerprint}
    rows = make(tmp_path_factory.mktemp("rows") / "rows.db", np.eye(3, 256, dtype=np.float32), model)
    with serving(keys=(KEY,), names=("text-embedding-3-small",), rate=50_000.0, search=rows, **PATIENT) as running:
        yield running


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return fastflow.Runtime(None, "cpu").encode(TEXTS, normalize_embeddings=True)


def openai_client(server: Running, **options):
    openai = pytest.importorskip("openai", reason="the official client of OpenAI is not installed")
    given = {"base_url": f"{server.url}/v1", "api_key": KEY, "max_retries": 0, "timeout": HANGS}
    return openai, openai.OpenAI(**given | options)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"encoding_format": "base64"}, {"encoding_format": "float"}])
def test_openai_gets_the_vectors_of_the_runtime(server, vectors, options):
    _, client = openai_client(server)
    found = client.embeddings.create(model="text-embedding-3-small", input=TEXTS, **options)
    rows = [row.embedding for row in found.data]
    if options == {"encoding_format": "base64"}:
        import base64

        rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]
    np.testing.assert_allclose(rows, vectors, atol=1e-6)
    assert [row.index for row in found.data] == [0, 1, 2]
    assert found.model == "text-embedding-3-small"
    assert found.usage.prompt_tokens == found.usage.total_tokens > 0


@pytest.mark.slow
def test_openai_without_v1(server, vectors):
    openai, client = openai_client(server, base_url=server.url)
    found = client.embeddings.create(model="default", input=TEXTS, extra_body={"input_type": "search_document"})
    np.testing.assert_allclose([row.embedding for row in found.data], vectors, atol=1e-6)
    with pytest.raises(openai.BadRequestError, match="input_type must be one of query, search_query, document"):
        client.embeddings.create(model="default", input="a", extra_body={"input_type": "image"})


def test_huggingface_hub_knows_the_address_only(server, vectors, monkeypatch):
    """It sends POST /, as to Text Embeddings Inference."""
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # which it takes for every address
    client = hub.InferenceClient(server.url, token=KEY, timeout=30)
    np.testing.assert_allclose(client.feature_extraction(TEXTS), vectors, atol=1e-6)
    np.testing.assert_allclose(client.feature_extraction(TEXTS[0], normalize=True), vectors[:1], atol=1e-6)
    assert client.feature_extraction(TEXTS, dimensions=64).shape == (3, 64)
    with pytest.raises(hub.errors.HfHubHTTPError, match="422"):
        client.feature_extraction(TEXTS, prompt_name="none")


@pytest.mark.slow
def test_openai_asks_for_base64_by_itself(server, monkeypatch):
    """The hot path: were its default another one, the test above would not show base64 in use."""
    from fastflow.serve import answers

    asked, real = [], answers.format_openai

    def format_openai(z, encoding, *rest):
        asked.append(encoding)
        return real(z, encoding, *rest)

    monkeypatch.setattr(answers, "format_openai", format_openai)
    openai_client(server)[1].embeddings.create(model="default", input="a")
    assert asked == ["base64"]


@pytest.mark.slow
def test_openai_shortens_and_lists_models(server):
    _, client = openai_client(server)
    found = client.embeddings.create(model="default", input="a", dimensions=64).data[0].embedding
    assert len(found) == 64
    assert np.linalg.norm(found) == pytest.approx(1, abs=1e-5)
    assert {model.id for model in client.models.list()} == {"text-embedding-3-small", "default"}


def test_openai_knows_each_refusal(server):
    openai, client = openai_client(server)
    with pytest.raises(openai.NotFoundError, match="no-such-model does not exist here"):
        client.embeddings.create(model="no-such-model", input="a")
    with pytest.raises(openai.BadRequestError, match="dimensions must be a whole number from 1 to 256") as caught:
        client.embeddings.create(model="default", input="a", dimensions=1536)
    assert caught.value.param == "dimensions"
    with pytest.raises(openai.BadRequestError, match="token ids"):
        client.embeddings.create(model="default", input=[[1, 2, 3]])
    with pytest.raises(openai.BadRequestError, match="holds no text"):
        client.embeddings.create(model="default", input=[])
    with pytest.raises(openai.AuthenticationError, match="API key") as denied:
        openai_client(server, api_key="wrong")[1].embeddings.create(model="default", input="a")
    assert denied.value.code == "invalid_api_key"


@pytest.mark.slow
def test_openai_reads_429_and_when_to_come_back():
    with serving(rate=50_000.0, max_bodies=1) as busy:
        openai, client = openai_client(busy)
        with pytest.raises(openai.RateLimitError) as caught:
            client.embeddings.create(model="default", input="a")
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert caught.value.code == "rate_limit_exceeded"


def test_the_asynchronous_client_of_openai(server, vectors):
    openai, _ = openai_client(server)
    import asyncio

    async def both():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
            return await asyncio.gather(*(client.embeddings.create(model="default", input=text) for text in TEXTS))

    np.testing.assert_allclose([found.data[0].embedding for found in asyncio.run(both())], vectors, atol=1e-6)


def langchain(server: Running, **options):
    found = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    given = {"model": "default", "base_url": f"{server.url}/v1", "api_key": KEY, "max_retries": 0}
    return found.OpenAIEmbeddings(**given | options)


@pytest.mark.slow
def test_langchain_with_its_lengths_unchecked(server, vectors):
    client = langchain(server, check_embedding_ctx_length=False)
    np.testing.assert_allclose(client.embed_documents(TEXTS), vectors, atol=1e-6)
    np.testing.assert_allclose(client.embed_query(TEXTS[0]), vectors[0], atol=1e-6)


@pytest.fixture
def tiktoken_of_bytes(monkeypatch):
    """tiktoken with one token a byte: the tables of its encodings would be fetched."""
    tiktoken = pytest.importorskip("tiktoken", reason="neither langchain-openai nor its tiktoken is installed")
    of_bytes = tiktoken.Encoding(
        name="bytes", pat_str=".", mergeable_ranks={bytes([i]): i for i in range(256)}, special_tokens={}
    )
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: of_bytes)
    monkeypatch.setattr(tiktoken, "encoding_for_model", lambda name: of_bytes)


@pytest.mark.slow
def test_langchain_is_told_why_its_token_ids_are_refused(server, tiktoken_of_bytes):
    with pytest.raises(Exception, match=r"OpenAIEmbeddings\(check_embedding_ctx_length=False\)"):
        langchain(server).embed_documents(TEXTS)


@pytest.fixture
def mteb_model(server, tiktoken_of_bytes, monkeypatch, tmp_path):
    """mteb's wrapper of the openai client, which fails at the first error: it would sleep 10 s, then 60 s."""
    monkeypatch.setenv("MTEB_CACHE", str(tmp_path))  # a folder that its import makes
    pytest.importorskip("mteb", reason="mteb is not installed", exc_type=ImportError)
    from mteb.models.model_implementations.openai_models import OpenAIModel

    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail(f"mteb sleeps {seconds} s after an error"))
    _, client = openai_client(server)
    return OpenAIModel("text-embedding-3-small", max_tokens=200, embed_dim=256, client=client)


@pytest.mark.slow
def test_mteb_encodes(mteb_model):
    """More texts than it sends at once, a blank one, which it leaves out, and one that it cuts to its own limit."""
    long = "a word " * 100
    texts = [*(f"sentence number {i}" for i in range(2048)), " ", long]
    batches = [{"text": texts[:1000]}, {"text": texts[1000:]}]
    found = mteb_model.encode(batches, task_metadata=None, hf_split="test", hf_subset="default")
    assert found.shape == (2050, 256)
    runtime = fastflow.Runtime(None, "cpu")
    expected = runtime.encode([*texts[:3], texts[2047], long[:200]], normalize_embeddings=True)
    np.testing.assert_allclose(found[[0, 1, 2, 2047, 2049]], expected, atol=1e-6)
    assert not found[2048].any()


def curl(*arguments: str, data: bytes | None = None) -> bytes:
    found = shutil.which("curl")
    if found is None:
        pytest.skip("curl is not installed")
    return subprocess.run(
        [found, "-sS", "--max-time", str(HANGS), *arguments], input=data, capture_output=True, check=True
    ).stdout


@pytest.mark.slow
def test_curl(server, vectors):
    """The lines of docs/serve.md; curl without -H sends a form, which is refused with the header to send."""
    body, key = json.dumps({"input": TEXTS}), ("-H", f"Authorization: Bearer {KEY}")
    url, kind = f"{server.url}/v1/embeddings", ("-H", "Content-Type: application/json")
    found = json.loads(curl(url, *key, *kind, "-d", body))
    np.testing.assert_allclose([row["embedding"] for row in found["data"]], vectors, atol=1e-6)
    octets = curl(url, *key, *kind, "-H", "Accept: application/octet-stream", "-d", body)
    np.testing.assert_allclose(np.frombuffer(octets, "<f4").reshape(3, -1), vectors, atol=1e-6)
    assert "Content-Type: application/json" in json.loads(curl(url, *key, "-d", body))["error"]["message"]
    assert "Authorization: Bearer KEY" in json.loads(curl(url, *kind, "-d", body))["error"]["message"]
    large = json.dumps({"inputs": ["a" * 40] * 2000}).encode()  # curl asks "Expect: 100-continue" before it sends this
    assert len(json.loads(curl(f"{server.url}/embed", *key, *kind, "--data-binary", "@-", data=large))) == 2000


@pytest.mark.whole
def test_schemathesis_finds_no_answer_outside_the_description(server, tmp_path):
    if find_spec("schemathesis") is None:
        pytest.skip("schemathesis is not installed")
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--seed", "1"),
        *("--phases", "examples,coverage,fuzzing", "--max-examples", "10", "--generation-database", "none"),
        *("--header", f"Authorization: Bearer {KEY}", "--suppress-health-check", "all", "--no-color"),
        *("--request-timeout", str(HANGS)),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
