"""The declaration of each route, and the OpenAPI description made of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from fastflow.search.scan import BY
from fastflow.serve import answers, requests
from fastflow.serve.model import PairScorer
from fastflow.serve.requests import KINDS, STRING, Field, Schema, Values, allow_null, is_openai, take_object
from fastflow.serve.service import Service
from fastflow.version import __version__

NIM = {"NONE": False, "END": True}  # values of truncate from NVIDIA NIM's clients
SEARCHED = ("query", "k", "by", "min_score", "distinct", "filter")  # fields of /search
K, MOST_ROWS, MOST_QUERIES = 10, 100, 32  # default and most rows; most queries


def describe_object(**properties: Schema) -> Schema:
    """Describe an object of an answer."""
    return {"type": "object", "required": list(properties), "properties": properties}


def describe_list(items: Schema) -> Schema:
    """Describe a list of an answer."""
    return {"type": "array", "items": items}


OPENAI_ERROR = describe_object(
    error=describe_object(message=STRING, type=STRING, param=allow_null(STRING), code=allow_null(STRING))
)
TEI_ERROR = describe_object(error=STRING, error_type={"enum": sorted({kind.tei_type for kind in KINDS.values()})})
POSTED: tuple[str, ...] = ("empty", "validation", "tokenizer", "media", "body", "host", "key")
POSTED += ("overloaded", "malformed", "unhealthy", "expired", "backend")


class Endpoint(NamedTuple):
    """A route, declared once.

    ``answer(service, request, values)`` gets the values of ``body``'s fields; GET has no body. ``found``: schema of the
    answer. ``kinds``: refusals of this route only. ``public``: needs no API key, and answers while the server stops.
    ``computed``: the number of the engine that computes it; an overload refuses it before its body is read.
    """

    paths: tuple[str, ...]
    summary: str
    answer: Callable[[Any, Request, Values], Awaitable[Response]]
    found: Schema
    body: Field | None = None
    example: Values | None = None
    kinds: tuple[str, ...] = ()
    media: str = "application/json"
    octets: bool = False
    public: bool = False
    computed: int | None = None

    @property
    def method(self) -> str:
        return "GET" if self.body is None else "POST"

    @property
    def openai(self) -> bool:
        return is_openai(self.paths[0])

    def describe(self, path: str) -> Schema:
        content: Schema = {self.media: {"schema": self.found}}
        if self.octets:
            content["application/octet-stream"] = {"schema": {"description": "float32, little-endian, row after row"}}
        kinds: tuple[str, ...] = ("host", "unhealthy") if self.public else ("host", "key", "unhealthy", "body")
        found: Schema = {"summary": self.summary}
        if self.body is not None:
            kinds = POSTED
            found["requestBody"] = {"required": True, "content": {"application/json": {"schema": self.body.schema}}}
        found["responses"] = {"200": {"description": "Done", "content": content}, **self._describe_refusals(kinds)}
        if self.public:
            found["security"] = []
        if "{name}" in path:
            found["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": STRING}]
        return found

    def _describe_refusals(self, kinds: tuple[str, ...]) -> Schema:
        error = OPENAI_ERROR if self.openai else TEI_ERROR
        by_status: dict[str, list[str]] = {}
        for kind in (*self.kinds, *kinds):
            by_status.setdefault(str(KINDS[kind].status if self.openai else KINDS[kind].tei_status), []).append(kind)
        return {
            status: {"description": ", ".join(names), "content": {"application/json": {"schema": error}}}
            for status, names in sorted(by_status.items())
        }


def describe(endpoints: Sequence[Endpoint], locked: bool) -> dict[str, Any]:
    """Make the OpenAPI 3.1 document of routes; ``locked``: whether an API key is needed."""
    paths: dict[str, Schema] = {}
    for endpoint in endpoints:
        for path in (each.replace(":path", "") for each in endpoint.paths):
            paths.setdefault(path, {})[endpoint.method.lower()] = endpoint.describe(path)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "fastflow", "version": __version__, "description": "Calibrated sentence embeddings"},
        "paths": paths,
    }
    if locked:
        document["components"] = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
        document["security"] = [{"key": []}]
    return document


COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
NUMBERS = describe_list(NUMBER)
LISTED: Schema = {"const": "list"}
EMBEDDING = describe_object(object={"const": "embedding"}, index=COUNT, embedding={"anyOf": [NUMBERS, STRING]})
USAGE = describe_object(prompt_tokens=COUNT, total_tokens=COUNT, truncated_texts=COUNT)
EMBEDDINGS = describe_object(object=LISTED, data=describe_list(EMBEDDING), model=STRING, usage=USAGE)
MODEL = describe_object(id=STRING, object={"const": "model"}, created=COUNT, owned_by=STRING, root=STRING)
MODELS = describe_object(object=LISTED, data=describe_list(MODEL))
TOKEN = describe_object(id=COUNT, text=STRING, special={"type": "boolean"}, start=COUNT, stop=COUNT)
HIT = describe_object(
    row=COUNT,
    score=NUMBER,
    text=requests.allow_null(STRING),
    id={},
    fields={"type": "object"},
    rows=describe_list(COUNT),
    similarity=requests.allow_null(NUMBER),
    words=requests.allow_null(NUMBER),
)
HITS = describe_object(similarity=STRING, truncated_texts=COUNT, hits=describe_list(describe_list(HIT)))
RANKED = describe_list(describe_object(index=COUNT, score={"type": "number"}))
RELEVANT = describe_object(index=COUNT, relevance_score={"type": "number"})
RANKING = describe_object(model=STRING, object=LISTED, results=describe_list(RELEVANT), usage=USAGE)
HEALTH = describe_object(status={"const": "ok"})


def declare(service: Service) -> list[Endpoint]:
    """Declare every route but the pages, with the bounds and defaults of the model and the settings."""
    fields = _declare_fields(service)

    def pick(*names: str) -> dict[str, Field]:
        return {name: fields[name] for name in names}

    texts, cut = fields["texts"], pick("truncate", "truncation_direction", "prompt_name")
    openai = pick(
        "model", "encoding_format", "dimensions", "user", "input_type", "prompt_name", "truncate", "normalize"
    )
    openai["truncate"] = fields["truncate_or_word"]
    parameters = take_object("truncate, truncation_direction, prompt_name", **cut)
    pair = take_object("source_sentence, and sentences to compare with it", **pick("source_sentence", "sentences"))
    endpoints = [
        Endpoint(
            ("/v1/embeddings", "/embeddings"), "Embeddings, as OpenAI's", answers.answer_embeddings, EMBEDDINGS,
            take_object(input=texts, **openai), {"input": ["one", "two"]}, kinds=("model",), octets=True, computed=0,
        ),
        Endpoint(("/v1/models",), "The models", answers.answer_models, MODELS),
        Endpoint(("/v1/models/{name:path}",), "One name of the model", answers.answer_model, MODEL, kinds=("model",)),
        Endpoint(  # Amazon SageMaker calls /invocations and /ping; huggingface_hub posts to /
            ("/embed", "/invocations", "/"), "Embeddings, as TEI's", answers.answer_embed, describe_list(NUMBERS),
            take_object(inputs=texts, **cut, **pick("normalize", "dimensions")), {"inputs": ["one", "two"]},
            octets=True, computed=0,
        ),
        Endpoint(
            ("/similarity",), "Similarity of a sentence to others", answers.answer_similarity, NUMBERS,
            take_object(inputs=pair, parameters=parameters),
            {"inputs": {"source_sentence": "a cat", "sentences": ["a dog", "a stone"]}}, computed=0,
        ),
        Endpoint(
            ("/tokenize",), "The tokens of texts", answers.answer_tokenize, describe_list(describe_list(TOKEN)),
            take_object(inputs=texts, **pick("add_special_tokens", "prompt_name")), {"inputs": "a sentence"},
        ),
        Endpoint(("/info",), "The model and every limit", answers.answer_info, {"type": "object"}),
        Endpoint(("/health", "/ping"), "Whether requests are computed", answers.answer_health, HEALTH, public=True),
        Endpoint(("/metrics",), "Counts and times", answers.answer_metrics, STRING, media="text/plain", public=True),
    ]  # fmt: skip
    if service.searcher is not None:
        answer, body = partial(answers.answer_search, service.searcher), take_object(**pick(*SEARCHED))
        example = {"query": "a storm at sea", "k": 3}
        endpoints += [Endpoint(("/search",), "The rows most like a query", answer, HITS, body, example, computed=0)]
    return endpoints if service.scorer is None else endpoints + _declare_ranking(service, service.scorer, fields)


def _declare_ranking(service: Service, scorer: PairScorer, fields: dict[str, Field]) -> list[Endpoint]:
    most, query = service.settings.max_inputs, requests.take_string("a text")._replace(required=True)
    texts = requests.take_texts("texts to score for the query", most, listed=True)
    named = {"query": query, "documents": texts, "model": _take_model(service, (scorer.name, "default"))}
    return [
        Endpoint(
            ("/rerank",), "Texts by their score for a query, as TEI's", partial(answers.answer_rerank, scorer), RANKED,
            take_object(
                query=query, texts=texts,
                raw_scores=requests.take_flag("true: logits; false: their sigmoid, from 0 to 1", False),
                return_text=requests.take_flag("true: the texts too", False),
                truncate=fields["truncate"], truncation_direction=fields["truncation_direction"],
            ), {"query": "a storm at sea", "texts": ["a gale", "a farm"]}, computed=1,
        ),
        Endpoint(
            ("/v1/rerank",), "Documents by their relevance to a query, as Cohere's and Jina's",
            partial(answers.answer_ranked, scorer), RANKING,
            take_object(
                **named, top_n=requests.take_count("documents of the answer", most),
                return_documents=requests.take_flag("true: the documents too", False),
            ), {"query": "a storm at sea", "documents": ["a gale", "a farm"]}, kinds=("model",), computed=1,
        ),
    ]  # fmt: skip


def _declare_fields(service: Service) -> dict[str, Field]:
    model, settings, width = service.model, service.settings, service.model.opened.width
    prompts, no_prompts = sorted(model.info["prompts"]), {"type": "null", "description": "the model has no prompts"}
    truncate = "false: refuse a text over the model's limit of tokens"
    return {
        "texts": requests.take_texts("a text, or a list of texts", settings.max_inputs),
        "model": _take_model(service),
        "encoding_format": requests.take_choice(  # Accept's without it
            "float, base64 or bytes (little-endian float32, row after row)", answers.FORMATS, "float"
        )._replace(default=None),
        "dimensions": requests.take_count("the first dimensions, which lead", width, ", the model's width"),
        "user": requests.take_string("ignored"),
        "input_type": requests.take_choice("a task, such as query or document: its prompt", model.input_types),
        "prompt_name": requests.take_string("a prompt by its name", {"enum": prompts} if prompts else no_prompts),
        "truncate": requests.take_flag(truncate, settings.truncate),
        "truncate_or_word": requests.take_flag(truncate + "; NONE and END mean false and true", settings.truncate, NIM),
        "truncation_direction": requests.take_choice(
            "right", ("right", "Right"), "right", ": texts are cut at their end only"
        ),
        "normalize": requests.take_flag("false: vectors of another length than 1", model.normalize),
        "source_sentence": requests.take_string("a text")._replace(required=True),
        "sentences": requests.take_texts("texts to compare with it", settings.max_inputs - 1, listed=True),
        "add_special_tokens": requests.take_flag("false: only the tokens of the text", True),
        "query": requests.take_texts("a text, or a list of texts", min(MOST_QUERIES, settings.max_inputs)),
        "k": requests.take_count("hits", MOST_ROWS, default=K),
        "by": requests.take_choice("what ranks; auto: both if the file has words and they help", ("auto", *BY), "auto"),
        "min_score": requests.take_number("the least score of a hit"),
        "distinct": requests.take_flag("false: rows of equal texts are hits of their own", True),
        "filter": requests.take_map("a value, or a list of values, for each column by its name"),
    }


def _take_model(service: Service, names: Sequence[str] = ()) -> Field:
    schema: Schema = STRING if service.settings.any_model else {"enum": [*(names or service.names)]}
    field = requests.take_string("a name of the reranker" if names else "a name of /v1/models", schema)
    field = field._replace(meaning=f"{field.meaning}; may be left out")

    def read(name: str, value: Any) -> None:
        answers.check_name(service, field.read(name, value), names)

    return field._replace(read=read)
