"""The server under its users' own clients: each is the published package, and is skipped where it is not installed."""

from __future__ import annotations

import numpy as np
import pytest
from servers import Running, serving

import fastflow

TEXTS = ["A man is playing a guitar.", "naïve café 東京 🎸", "a\nb"]
KEY = "a-key"


@pytest.fixture(scope="module")
def server():
    with serving(keys=(KEY,), names=("text-embedding-3-small",), rate=50_000.0) as running:
        yield running


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return fastflow.Runtime(None, "cpu").encode(TEXTS, normalize_embeddings=True)


def openai_client(server: Running, **options):
    openai = pytest.importorskip("openai", reason="the official client of OpenAI is not installed")
    given = {"base_url": f"{server.url}/v1", "api_key": KEY, "max_retries": 0, "timeout": 30.0}
    return openai, openai.OpenAI(**given | options)


@pytest.mark.parametrize("options", [{}, {"encoding_format": "base64"}, {"encoding_format": "float"}])
def test_openai_gets_the_vectors_of_the_runtime(server, vectors, options):
    """Its default is base64, which it decodes; a caller that names base64 gets the string."""
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


def test_openai_asks_for_base64_by_itself(server, monkeypatch):
    """The hot path: were its default another one, the test above would not show base64 in use."""
    from fastflow.serve import openai as routes

    asked, real = [], routes.openai_json

    def openai_json(z, encoding, *rest):
        asked.append(encoding)
        return real(z, encoding, *rest)

    monkeypatch.setattr(routes, "openai_json", openai_json)
    openai_client(server)[1].embeddings.create(model="default", input="a")
    assert asked == ["base64"]


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
