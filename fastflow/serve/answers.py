"""What each route answers, and vectors as JSON, base64 or bytes."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fastflow.errors import FastflowError, UsageError
from fastflow.kernels.encoder.texts import ACTIVATIONS
from fastflow.search import Hit
from fastflow.serve.engine import EmbedResult, Gone
from fastflow.serve.model import EmbedOptions, Floats, PairScorer
from fastflow.serve.requests import Refused, Values, refuse_expired
from fastflow.serve.searcher import Searcher
from fastflow.serve.service import Service
from fastflow.version import __version__

FORMATS = ("float", "base64", "bytes")
OCTETS = "application/octet-stream"
CHARACTERS = 500_000  # the most for /tokenize, which has a long answer

log = logging.getLogger("fastflow.serve")


@lru_cache(maxsize=64)
def _make_template(dim: int, digits: int) -> str:
    return "[" + ",".join([f"%.{digits}g"] * dim) + "]"


def format_rows(z: NDArray[np.floating[Any]]) -> list[str]:
    """Format rows of (B, D) as JSON arrays; the digits restore float32 and float64 exactly."""
    template = _make_template(z.shape[1], 9 if z.dtype == np.float32 else 17)
    return [template % tuple(row) for row in z.tolist()]


def to_octets(z: NDArray[np.floating[Any]]) -> bytes:
    """Return (B, D) as little-endian float32, row after row."""
    return np.ascontiguousarray(z, "<f4").tobytes()


def encode_base64(z: NDArray[np.floating[Any]]) -> list[str]:
    """Format rows of (B, D), little-endian float32, as JSON strings of base64."""
    return [f'"{base64.b64encode(row).decode()}"' for row in np.ascontiguousarray(z, "<f4")]


def format_tei(z: NDArray[np.floating[Any]]) -> bytes:
    """Format (B, D) as TEI's JSON."""
    return ("[" + ",".join(format_rows(z)) + "]").encode()


def format_openai(z: NDArray[np.floating[Any]], encoding: str, model: str, tokens: int, cut: int) -> bytes:
    """Format (B, D) as OpenAI's JSON; ``encoding``: float or base64."""
    rows = encode_base64(z) if encoding == "base64" else format_rows(z)
    data = ",".join(f'{{"object":"embedding","index":{i},"embedding":{row}}}' for i, row in enumerate(rows))
    usage = f'{{"prompt_tokens":{tokens},"total_tokens":{tokens},"truncated_texts":{cut}}}'
    return f'{{"object":"list","data":[{data}],"model":{json.dumps(model)},"usage":{usage}}}'.encode()


def wants_octets(accept: Sequence[str]) -> bool:
    """Say whether an Accept header names bytes and no JSON."""
    kinds = [part.split(";")[0].strip().lower() for line in accept for part in line.split(",")]
    return OCTETS in kinds and "application/json" not in kinds


def make_response(body: bytes, done: EmbedResult, media: str = "application/json") -> Response:
    """Make an answer with tokens, times and shape in its headers."""
    rows, dim = done.vectors.shape
    headers = {
        "x-compute-tokens": str(int(done.lengths.sum())),
        **{f"x-{name}-time": str(round(seconds * 1e3)) for name, seconds in done.times._asdict().items()},
        "x-truncated-texts": str(done.cut),
    }
    if media == OCTETS:
        headers["x-embedding-shape"] = f"{rows},{dim}"
    return Response(body, media_type=media, headers=headers)


# ---- routes


async def answer_embeddings(service: Service, request: Request, asked: Values) -> Response:
    """Answer in OpenAI's format."""
    done = await _embed(service, request, asked, *asked["input"])
    encoding = asked["encoding_format"]
    if encoding == "bytes" or (encoding is None and wants_octets(request.headers.getlist("accept"))):
        return make_response(to_octets(done.vectors), done, OCTETS)
    arguments = done.vectors, encoding, service.model.names[0], int(done.lengths.sum()), done.cut
    return make_response(await service.write(done.vectors.size, format_openai, *arguments), done)


async def answer_models(service: Service, request: Request, asked: Values) -> Response:
    """Answer with each name."""
    return JSONResponse({"object": "list", "data": [_describe(service, name) for name in service.names]})


async def answer_model(service: Service, request: Request, asked: Values) -> Response:
    """Answer with one name."""
    check_name(service, name := request.path_params["name"])
    return JSONResponse(_describe(service, name))


def _describe(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "fastflow",
        "root": service.choose(name).model.names[0],
    }


def check_name(service: Service, name: str, names: Sequence[str] = ()) -> None:
    """Refuse a model of another name than ``names``, or than the models'."""
    if name not in (names or service.names) and not service.settings.any_model:
        known = " or ".join(names or service.names)
        message = f"the model {name:.80} does not exist here; this server has {known}; --any-model takes every name"
        raise Refused("model", message, "model")


async def _embed(service: Service, request: Request, asked: Values, texts: list[str], batch: bool) -> EmbedResult:
    prompt = service.model.resolve_prompt(asked.get("input_type"), asked["prompt_name"])
    options = EmbedOptions(asked["normalize"], asked["dimensions"], prompt)
    return await service.embed(request, texts, batch, options, asked["truncate"])


async def answer_embed(service: Service, request: Request, asked: Values) -> Response:
    """Answer with a list of vectors."""
    done = await _embed(service, request, asked, *asked["inputs"])
    if wants_octets(request.headers.getlist("accept")):
        return make_response(to_octets(done.vectors), done, OCTETS)
    return make_response(await service.write(done.vectors.size, format_tei, done.vectors), done)


async def answer_similarity(service: Service, request: Request, asked: Values) -> Response:
    """Answer with similarities."""
    inputs, how = asked["inputs"], {"normalize": False, "dimensions": None} | asked["parameters"]
    done = await _embed(service, request, how, [inputs["source_sentence"], *inputs["sentences"][0]], True)
    found = service.model.runtime.similarity(done.vectors[:1], done.vectors[1:])
    return make_response(format_rows(found)[0].encode(), done)


async def answer_tokenize(service: Service, request: Request, asked: Values) -> Response:
    """Answer with the tokens of texts, uncut."""
    texts, name = asked["inputs"][0], asked["prompt_name"]
    prompt = service.model.resolve_prompt(None, name) if name is not None else ""
    if sum(map(len, texts)) > CHARACTERS:
        raise Refused("validation", f"inputs hold more than {CHARACTERS} characters: send them in parts", "inputs")
    describe, texts = service.model.runtime.tokenizer.describe, [prompt + text for text in texts]
    try:
        found = await service.engine.run_in_thread(describe, texts, asked["add_special_tokens"])
    except FastflowError as error:
        raise Refused("tokenizer", str(error), "inputs") from error
    return JSONResponse([[piece._asdict() for piece in pieces] for pieces in found])


async def answer_info(service: Service, request: Request, asked: Values) -> Response:
    """Answer with model and limits."""
    settings, queue = service.settings, service.engine.queue
    limits = {
        "max_concurrent_requests": settings.max_connections,
        "max_batch_tokens": queue.batch,
        "max_batch_requests": None,
        "max_client_batch_size": settings.max_inputs,
        "auto_truncate": settings.truncate,
        "tokenization_workers": settings.tokenizer_threads,
        "version": __version__,
        "sha": None,
        "docker_label": None,
        "max_body_bytes": settings.max_body,
        "max_queue_seconds": settings.max_queue,
        "timeout_seconds": settings.timeout,
        "tokens_per_second": round(queue.rate),
        "search": None if service.searcher is None else service.searcher.describe(),
        "reranker": None if service.scorer is None else service.scorer.describe(),
    }
    return JSONResponse(service.model.describe() | limits)


async def answer_health(service: Service, request: Request, asked: Values) -> Response:
    """Answer if requests are computed."""
    if not service.healthy:
        raise Refused("unhealthy", "the server is going down" if service.draining else "the model does not answer")
    return JSONResponse({"status": "ok"})


async def answer_metrics(service: Service, request: Request, asked: Values) -> Response:
    """Answer in Prometheus' format."""
    return Response(service.make_metrics_page(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def answer_search(searcher: Searcher, service: Service, request: Request, asked: Values) -> Response:
    """Answer with rows like each query."""
    (queries, batch), settings, found = asked["query"], service.settings, searcher.query_options
    deadline = time.monotonic() + settings.timeout
    searcher.check(asked["filter"])
    prompt = service.model.resolve_prompt("query", None)
    options = EmbedOptions(found["normalize_embeddings"], found["truncate_dim"], prompt)
    with searcher.turn(settings.max_queue):
        done = await service.embed(request, queries, batch, options, settings.truncate)
        how = {name: asked[name] for name in ("k", "by", "min_score", "distinct")} | {"where": asked["filter"]}
        pairs = zip(queries, done.vectors, strict=True)
        hits = [await _find(service, request, searcher, text, vector, how, deadline) for text, vector in pairs]
    letters = sum(len(hit.text or "") for of_one in hits for hit in of_one)
    return make_response(await service.write(letters, _format, searcher, done, hits), done)


async def _find(
    service: Service, request: Request, searcher: Searcher, text: str, vector: Floats, options: Values, deadline: float
) -> list[Hit]:
    if await request.is_disconnected():
        service.metrics.count("fastflow_cancelled_requests")
        raise Gone
    if time.monotonic() > deadline:
        raise refuse_expired()
    try:
        hits, spent = await searcher.find(vector, text, options)
    except UsageError as error:
        raise Refused("validation", str(error)) from error
    except FastflowError as error:
        log.error("a search failed: %s", error)
        message = f"{searcher.name} could not be searched, and the server's log says why: make the file again"
        raise Refused("backend", message) from error
    service.metrics.search.observe(spent)
    return hits


def _format(searcher: Searcher, done: EmbedResult, hits: list[list[Hit]]) -> bytes:
    rows = [[hit._asdict() for hit in of_one] for of_one in hits]
    try:
        return to_json({"similarity": searcher.similarity, "truncated_texts": done.cut, "hits": rows})
    except (TypeError, ValueError) as error:
        message = f"a row that was found in {searcher.name} holds a value that JSON has no form for: {error}"
        raise Refused("backend", message) from error


def to_json(value: Any) -> bytes:
    """Format an answer as JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


async def answer_rerank(scorer: PairScorer, service: Service, request: Request, asked: Values) -> Response:
    """Answer in TEI's format."""
    texts = asked["texts"][0]
    done, ranked = await _rank(scorer, service, request, asked["query"], texts, asked["truncate"], asked["raw_scores"])
    rows = [{"index": i, "score": score} | ({"text": texts[i]} if asked["return_text"] else {}) for i, score in ranked]
    return make_response(to_json(rows), done)


async def answer_ranked(scorer: PairScorer, service: Service, request: Request, asked: Values) -> Response:
    """Answer in the format of Cohere and Jina."""
    texts, whole = asked["documents"][0], asked["return_documents"]
    done, ranked = await _rank(scorer, service, request, asked["query"], texts, service.settings.truncate)
    rows = [
        {"index": i, "relevance_score": score} | ({"document": {"text": texts[i]}} if whole else {})
        for i, score in ranked[: asked["top_n"]]
    ]
    tokens = int(done.lengths.sum())
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "truncated_texts": done.cut}
    return make_response(to_json({"model": scorer.name, "object": "list", "results": rows, "usage": usage}), done)


async def _rank(
    scorer: PairScorer, service: Service, request: Request, query: str, texts: list[str], truncate: bool,
    raw: bool = False,
) -> tuple[EmbedResult, list[tuple[int, float]]]:  # fmt: skip
    """Return each text's number and score, best first; ``raw``: the score is the logit, not its sigmoid."""
    pairs, options = [(query, text) for text in texts], EmbedOptions(prompt=scorer.prompt)
    done = await service.embed(request, pairs, True, options, truncate, pairs=True)
    logits = done.vectors[:, 0]
    scores = logits if raw else ACTIVATIONS["sigmoid"](logits)
    return done, [(i, float(scores[i])) for i in np.argsort(-logits, kind="stable").tolist()]
