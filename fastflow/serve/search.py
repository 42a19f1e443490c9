"""The route /search."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fastflow.errors import FastflowError
from fastflow.search import Hit
from fastflow.serve.batch import Floats, How
from fastflow.serve.engine import Embedded, Gone
from fastflow.serve.fields import Fields
from fastflow.serve.refusals import Refused, refuse_expired
from fastflow.serve.searcher import Searcher
from fastflow.serve.service import Service, make_response

PATH = "/search"
NO_FILE = "no file is loaded to search: start the server with --search FILE.db"
FIELDS = ("query", "k")
K, MOST_ROWS, MOST_QUERIES = 10, 100, 32  # default and most rows of a query; most queries of a request

log = logging.getLogger("fastflow.serve")


async def answer_search(request: Request, searcher: Searcher) -> Response:
    """Answer with the rows that are most like each query, and their texts."""
    service: Service = request.app.state.service
    fields = Fields(await service.read(request), FIELDS)
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


def make_routes(service: Service) -> list[Route]:
    """Make the route, if a file is loaded."""
    searcher = service.searcher
    if searcher is None:
        return []

    async def of_file(request: Request) -> Response:
        return await answer_search(request, searcher)

    return [Route(PATH, of_file, methods=["POST"])]
