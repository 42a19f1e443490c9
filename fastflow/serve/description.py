"""The OpenAPI description of the routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastflow.serve import page, routes
from fastflow.serve.refusals import KINDS
from fastflow.version import __version__

if TYPE_CHECKING:
    from fastflow.serve.service import Service

Schema = dict[str, Any]
NUMBERS: Schema = {"type": "array", "items": {"type": "number"}}
STRING: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
OPENAPI = ("/openapi.json", "/api-doc/openapi.json")
ENTRY = ("media", "body", "host", "key", "overloaded", "malformed", "unhealthy", "expired", "backend")


def _allow_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _make_fields(required: list[str], **properties: Schema) -> Schema:
    made = {name: each if name in required else _allow_null(each) for name, each in properties.items()}
    return {"type": "object", "required": required, "properties": made, "additionalProperties": False}


def _make_answer(**properties: Schema) -> Schema:
    return {"type": "object", "required": list(properties), "properties": properties}


OPENAI_ERROR = _make_answer(
    error=_make_answer(message=STRING, type=STRING, param=_allow_null(STRING), code=_allow_null(STRING))
)
MODEL = _make_answer(id=STRING, object={"const": "model"}, created=COUNT, owned_by=STRING, root=STRING)
TEI_ERROR = _make_answer(error=STRING, error_type={"enum": sorted({kind.tei_type for kind in KINDS.values()})})


def describe(service: Service) -> dict[str, Any]:
    """Make the OpenAPI 3.1 document of the server."""
    health = _get("Whether requests are computed", _make_answer(status={"const": "ok"}), public=True)
    pages = {path: {"get": _get("The page", STRING, media, public=True)} for path, (_, media) in page.FILES.items()}
    models = _make_answer(object={"const": "list"}, data={"type": "array", "items": MODEL})
    paths = {
        "/v1/embeddings": {"post": _embeddings(service)},
        "/embeddings": {"post": _embeddings(service)},
        "/v1/models": {"get": _get("The models", models, openai=True)},
        "/v1/models/{name}": {"get": _model()},
        "/embed": {"post": _embed(service)},
        "/invocations": {"post": _embed(service)},
        "/similarity": {"post": _similarity(service)},
        "/tokenize": {"post": _tokenize(service)},
        "/info": {"get": _get("The model and every limit", {"type": "object"})},
        "/health": {"get": health},
        "/ping": {"get": health},
        "/metrics": {"get": _get("Counts and times", STRING, "text/plain", public=True)},
        **{route.path: {"post": _search(service)} for route in routes.make_search_routes(service)},
        **{path: {"get": _get("This description", {"type": "object"})} for path in OPENAPI},
        **pages | {"/": pages["/"] | {"post": _embed(service)}},
    }
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "fastflow", "version": __version__, "description": "Calibrated sentence embeddings"},
        "paths": paths,
    }
    if service.settings.keys:
        document["components"] = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
        document["security"] = [{"key": []}]
    return document


def _texts(service: Service, most: int | None = None) -> Schema:
    most = service.settings.max_inputs if most is None else most
    return {"type": "array", "items": STRING, "minItems": 1, "maxItems": most}


def _how(service: Service) -> dict[str, Schema]:
    prompts = sorted(service.model.info["prompts"])
    name: Schema = {"enum": prompts} if prompts else {"type": "null", "description": "the model has no prompts"}
    return {
        "truncate": {"type": "boolean", "default": service.settings.truncate},
        "truncation_direction": {"enum": ["right", "Right"], "default": "right"},
        "prompt_name": name,
    }


def _shape(service: Service) -> dict[str, Schema]:
    return {
        "normalize": {"type": "boolean", "default": service.model.normalize},
        "dimensions": {"type": "integer", "minimum": 1, "maximum": service.model.opened.width},
    }


def _embeddings(service: Service) -> Schema:
    how, shape = _how(service), _shape(service)
    request = _make_fields(
        ["input"],
        input={"anyOf": [STRING, _texts(service)]},
        model=STRING if service.settings.any_model else {"enum": list(service.model.names)},
        encoding_format={"enum": ["float", "base64", "bytes"], "default": "float"},
        dimensions=shape["dimensions"], user=STRING, input_type={"enum": list(service.model.input_types)},
        prompt_name=how["prompt_name"], truncate={**how["truncate"], "type": ["boolean", "string"],
        "enum": [True, False, *routes.NIM]}, normalize=shape["normalize"],
    )  # fmt: skip
    embedding = _make_answer(object={"const": "embedding"}, index=COUNT, embedding={"anyOf": [NUMBERS, STRING]})
    usage = _make_answer(prompt_tokens=COUNT, total_tokens=COUNT, truncated_texts=COUNT)
    found = _make_answer(
        object={"const": "list"}, data={"type": "array", "items": embedding}, model=STRING, usage=usage
    )  # fmt: skip
    kinds = ("empty", "validation", "tokenizer", "model")
    return _post("Embeddings, as OpenAI's", request, found, kinds, openai=True, octets=True)


def _model() -> Schema:
    operation = _get("One name of the model", MODEL, openai=True)
    operation["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": STRING}]
    operation["responses"] |= _refusals(("model",), True)
    return operation


def _embed(service: Service) -> Schema:
    request = _make_fields(["inputs"], inputs={"anyOf": [STRING, _texts(service)]}, **_how(service), **_shape(service))
    found = {"type": "array", "items": NUMBERS}
    return _post("Embeddings, as TEI's", request, found, ("empty", "validation", "tokenizer"), octets=True)


def _similarity(service: Service) -> Schema:
    inputs = _make_fields(
        ["source_sentence", "sentences"],
        source_sentence=STRING, sentences=_texts(service, service.settings.max_inputs - 1),
    )  # fmt: skip
    request = _make_fields(["inputs"], inputs=inputs, parameters=_make_fields([], **_how(service)))
    return _post("Similarity of a sentence to others", request, NUMBERS, ("empty", "validation", "tokenizer"))


def _search(service: Service) -> Schema:
    request = _make_fields(
        ["query"],
        query={"anyOf": [STRING, _texts(service, routes.limit_queries(service))]},
        k={"type": "integer", "minimum": 1, "maximum": routes.MOST_ROWS, "default": routes.K},
    )  # fmt: skip
    hit = _make_answer(row=COUNT, score={"type": "number"}, text=STRING, id={}, fields={"type": "object"})
    of_one: Schema = {"type": "array", "items": hit}
    found = _make_answer(similarity=STRING, truncated_texts=COUNT, hits={"type": "array", "items": of_one})
    return _post("The rows most like a query", request, found, ("empty", "validation", "tokenizer"))


def _tokenize(service: Service) -> Schema:
    request = _make_fields(
        ["inputs"],
        inputs={"anyOf": [STRING, _texts(service)]}, add_special_tokens={"type": "boolean", "default": True},
        prompt_name=_how(service)["prompt_name"],
    )  # fmt: skip
    token = _make_answer(id=COUNT, text=STRING, special={"type": "boolean"}, start=COUNT, stop=COUNT)
    found = {"type": "array", "items": {"type": "array", "items": token}}
    return _post("The tokens of texts", request, found, ("empty", "validation", "tokenizer"))


def _post(
    summary: str, request: Schema, found: Schema, kinds: tuple[str, ...], openai: bool = False, octets: bool = False
) -> Schema:
    content: dict[str, Schema] = {"application/json": {"schema": found}}
    if octets:
        content["application/octet-stream"] = {"schema": {"description": "float32, little-endian, row after row"}}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": request}}},
        "responses": {"200": {"description": "Done", "content": content}, **_refusals((*kinds, *ENTRY), openai)},
    }


def _get(
    summary: str, found: Schema, media: str = "application/json", openai: bool = False, public: bool = False
) -> Schema:
    done = {"200": {"description": "Done", "content": {media: {"schema": found}}}}
    kinds = ("host", "unhealthy") if public else ("host", "key", "unhealthy", "body")
    operation: Schema = {"summary": summary, "responses": {**done, **_refusals(kinds, openai)}}
    return operation | ({"security": []} if public else {})


def _refusals(kinds: tuple[str, ...], openai: bool) -> dict[str, Schema]:
    error = OPENAI_ERROR if openai else TEI_ERROR
    by_status: dict[str, list[str]] = {}
    for kind in kinds:
        by_status.setdefault(str(KINDS[kind].status if openai else KINDS[kind].tei_status), []).append(kind)
    return {
        status: {"description": ", ".join(names), "content": {"application/json": {"schema": error}}}
        for status, names in sorted(by_status.items())
    }
