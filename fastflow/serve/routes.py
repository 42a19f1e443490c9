"""The routes of OpenAI, of Text Embeddings Inference (TEI), and /search."""

from __future__ import annotations

import json
import logging
import time
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fastflow.errors import FastflowError
from fastflow.search import Hit
from fastflow.serve.batch import Floats, How
from fastflow.serve.engine import Embedded, Gone
from fastflow.serve.fields import Fields
from fastflow.serve.formats import FORMATS, OCTETS, format_openai, format_rows, format_tei, to_octets, wants_octets
from fastflow.serve.refusals import Refused, refuse_expired
from fastflow.serve.searcher import Searcher
from fastflow.serve.service import Service, make_response
from fastflow.version import __version__

OPENAI = (
    *("input", "model", "encoding_format", "dimensions", "user"),
    *("input_type", "prompt_name", "truncate", "normalize"),
)
NIM = {"NONE": False, "END": True}  # values of truncate from NVIDIA NIM's clients
EMBED = ("inputs", "normalize", "truncate", "truncation_direction", "prompt_name", "dimensions")
PARAMETERS = ("truncate", "truncation_direction", "prompt_name")
TOKENIZE = ("inputs", "add_special_tokens", "prompt_name")
LEFT_OUT = {  # route of TEI -> why this server lacks it
    "/embed_all": "calibration is made for the vector of a text, and not for one of each token",
    "/embed_sparse": "the model gives dense vectors",
    "/rerank": "the model scores no pairs; POST /similarity compares texts by their embeddings",
    "/predict": "the model has no classes",
    "/decode": "token ids are not taken; POST /tokenize gives the text of each id",
    "/vertex": "Google's envelope is not read; send its instances as inputs to POST /embed",
}
CHARACTERS = 500_000  # the most for /tokenize, which has a long answer
NO_FILE = "no file is loaded to search: start the server with --search FILE.db"
SEARCH = ("query", "k")
K, MOST_ROWS, MOST_QUERIES = 10, 100, 32  # default and most rows; most queries

log = logging.getLogger("fastflow.serve")


async def answer_embeddings(request: Request) -> Response:
    """Answer with embeddings in OpenAI's format."""
    service: Service = request.app.state.service
    fields = Fields(await service.read(request), OPENAI)
    texts, batch = fields.texts("input", service.settings.max_inputs)
    if (name := fields.text("model")) is not None:
        _check_name(service, name)
    fields.text("user")
    encoding = fields.choice("encoding_format", FORMATS)
    if encoding is None:
        encoding = "bytes" if wants_octets(request.headers.getlist("accept")) else "float"
    service.model.check_dim(dim := fields.count("dimensions"))
    prompt = service.model.resolve_prompt(
        fields.choice("input_type", service.model.input_types), fields.text("prompt_name")
    )
    how = How(fields.flag("normalize", service.model.normalize), dim, prompt)
    truncate = fields.flag("truncate", service.settings.truncate, NIM)
    done = await service.embed(request, texts, how, truncate, batch)
    if encoding == "bytes":
        return make_response(to_octets(done.vectors), done, OCTETS)
    arguments = done.vectors, encoding, service.model.names[0], int(done.lengths.sum()), done.cut
    return make_response(await service.write(done.vectors.size, format_openai, *arguments), done, "application/json")


async def answer_models(request: Request) -> Response:
    """Answer with each name of the model."""
    service: Service = request.app.state.service
    return JSONResponse({"object": "list", "data": [_describe(service, name) for name in service.model.names]})


async def answer_model(request: Request) -> Response:
    """Answer with one name of the model."""
    service: Service = request.app.state.service
    _check_name(service, name := request.path_params["name"])
    return JSONResponse(_describe(service, name))


def _describe(service: Service, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "fastflow", "root": service.model.names[0]}


def _check_name(service: Service, name: str) -> None:
    if name not in service.model.names and not service.settings.any_model:
        known = " or ".join(service.model.names)
        message = f"the model {name:.80} does not exist here; this server has {known}; --any-model takes every name"
        raise Refused("model", message, "model")


async def answer_embed(request: Request) -> Response:
    """Answer TEI's /embed with a list of vectors."""
    service: Service = request.app.state.service
    fields = Fields(await service.read(request), EMBED)
    texts, batch = fields.texts("inputs", service.settings.max_inputs)
    service.model.check_dim(dim := fields.count("dimensions"))
    truncate, prompt = _how(service, fields)
    how = How(fields.flag("normalize", service.model.normalize), dim, prompt)
    done = await service.embed(request, texts, how, truncate, batch)
    if wants_octets(request.headers.getlist("accept")):
        return make_response(to_octets(done.vectors), done, OCTETS)
    return make_response(await service.write(done.vectors.size, format_tei, done.vectors), done, "application/json")


async def answer_similarity(request: Request) -> Response:
    """Answer with the similarity of a sentence to others."""
    service: Service = request.app.state.service
    fields = Fields(await service.read(request), ("inputs", "parameters"))
    if not isinstance(fields.require("inputs"), dict):
        raise Refused("validation", "inputs must be an object with source_sentence and sentences", "inputs")
    inputs = Fields(fields.get("inputs"), ("source_sentence", "sentences"), "inputs.")
    parameters = Fields(
        fields.get("parameters") if fields.get("parameters") is not None else {}, PARAMETERS, "parameters."
    )
    source = inputs.text("source_sentence")
    inputs.require("source_sentence")
    sentences, listed = inputs.texts("sentences", service.settings.max_inputs - 1)
    if not listed:
        raise Refused("validation", "inputs.sentences must be a list of strings", "inputs.sentences")
    truncate, prompt = _how(service, parameters)
    done = await service.embed(request, [str(source), *sentences], How(False, None, prompt), truncate, True)
    found = service.model.runtime.similarity(done.vectors[:1], done.vectors[1:])
    return make_response(format_rows(found)[0].encode(), done, "application/json")


async def answer_tokenize(request: Request) -> Response:
    """Answer with the tokens of texts, uncut."""
    service: Service = request.app.state.service
    fields = Fields(await service.read(request), TOKENIZE)
    texts, _ = fields.texts("inputs", service.settings.max_inputs)
    name = fields.text("prompt_name")
    prompt = service.model.resolve_prompt(None, name) if name is not None else ""
    special = fields.flag("add_special_tokens", True)
    if sum(map(len, texts)) > CHARACTERS:
        raise Refused("validation", f"inputs hold more than {CHARACTERS} characters: send them in parts", "inputs")
    try:
        found = await service.engine.run_in_thread(
            service.model.runtime.tokenizer.describe, [prompt + text for text in texts], special
        )
    except FastflowError as error:
        raise Refused("tokenizer", str(error), "inputs") from error
    return JSONResponse([[piece._asdict() for piece in pieces] for pieces in found])


async def answer_info(request: Request) -> Response:
    """Answer with model, limits, and searched file."""
    service: Service = request.app.state.service
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
    }
    return JSONResponse(service.model.describe() | limits)


async def answer_health(request: Request) -> Response:
    """Answer whether the server computes requests."""
    service: Service = request.app.state.service
    if not service.healthy:
        raise Refused("unhealthy", "the server is going down" if service.draining else "the model does not answer")
    return JSONResponse({"status": "ok"})


async def answer_metrics(request: Request) -> Response:
    """Answer in Prometheus' format."""
    service: Service = request.app.state.service
    return Response(service.make_metrics_page(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _how(service: Service, fields: Fields) -> tuple[bool, str]:
    if fields.choice("truncation_direction", ("left", "right", "Left", "Right"), "right") in ("left", "Left"):
        raise Refused(
            "validation", "truncation_direction must be right: texts are cut at their end alone", "truncation_direction"
        )
    truncate = fields.flag("truncate", service.settings.truncate)
    return truncate, service.model.resolve_prompt(None, fields.text("prompt_name"))


async def answer_search(request: Request, searcher: Searcher) -> Response:
    """Answer with the rows most like each query."""
    service: Service = request.app.state.service
    fields = Fields(await service.read(request), SEARCH)
    queries, batch = fields.texts("query", limit_queries(service))
    k = fields.count("k") or K
    if k > MOST_ROWS:
        raise Refused("validation", f"k must be a whole number from 1 to {MOST_ROWS}, not {k}", "k")
    options = searcher.query_options
    how = How(options["normalize_embeddings"], options["truncate_dim"], service.model.resolve_prompt("query", None))
    deadline = time.monotonic() + service.settings.timeout
    with searcher.turn(service.settings.max_queue):
        done = await service.embed(request, queries, how, None, batch)
        hits = [await _find(request, searcher, vector, k, deadline) for vector in done.vectors]
    letters = sum(len(hit.text or "") for of_one in hits for hit in of_one)
    return make_response(await service.write(letters, _format, searcher, done, hits), done, "application/json")


async def _find(request: Request, searcher: Searcher, vector: Floats, k: int, deadline: float) -> list[Hit]:
    metrics = request.app.state.service.metrics
    if await request.is_disconnected():
        metrics.count("fastflow_cancelled_requests")
        raise Gone
    if time.monotonic() > deadline:
        raise refuse_expired()
    try:
        hits, spent = await searcher.find(vector, k)
    except FastflowError as error:
        log.error("a search failed: %s", error)
        message = f"{searcher.name} could not be searched, and the server's log says why: start the server again"
        raise Refused("backend", message) from error
    metrics.search.observe(spent)
    return hits


def _format(searcher: Searcher, done: Embedded, hits: list[list[Hit]]) -> bytes:
    rows = [[hit._asdict() for hit in of_one] for of_one in hits]
    answer: dict[str, Any] = {"similarity": searcher.similarity, "truncated_texts": done.cut, "hits": rows}
    try:
        return json.dumps(answer, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        message = f"a row that was found in {searcher.name} holds a value that JSON has no form for: {error}"
        raise Refused("backend", message) from error


def limit_queries(service: Service) -> int:
    """Return the most queries of a request."""
    return min(MOST_QUERIES, service.settings.max_inputs)


def make_search_routes(service: Service) -> list[Route]:
    """Make the route of /search, if a file is loaded."""
    if service.searcher is None:
        return []
    return [Route("/search", partial(answer_search, searcher=service.searcher), methods=["POST"])]


ROUTES = [
    Route("/v1/embeddings", answer_embeddings, methods=["POST"]),
    Route("/embeddings", answer_embeddings, methods=["POST"]),
    Route("/v1/models", answer_models, methods=["GET"]),
    Route("/v1/models/{name:path}", answer_model, methods=["GET"]),  # a name may have a slash
    Route("/embed", answer_embed, methods=["POST"]),
    Route("/invocations", answer_embed, methods=["POST"]),  # Amazon SageMaker calls it, and /ping
    Route("/similarity", answer_similarity, methods=["POST"]),
    Route("/tokenize", answer_tokenize, methods=["POST"]),
    Route("/info", answer_info, methods=["GET"]),
    Route("/health", answer_health, methods=["GET"]),
    Route("/ping", answer_health, methods=["GET"]),
    Route("/metrics", answer_metrics, methods=["GET"]),
]
