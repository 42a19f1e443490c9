"""OpenAI's routes."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fastflow.serve.batch import How
from fastflow.serve.fields import Fields
from fastflow.serve.formats import FORMATS, OCTETS, format_openai, to_octets, wants_octets
from fastflow.serve.refusals import Refused
from fastflow.serve.service import Service, make_response

FIELDS = (
    *("input", "model", "encoding_format", "dimensions", "user"),
    *("input_type", "prompt_name", "truncate", "normalize"),
)
NIM = {"NONE": False, "END": True}  # truncate of NVIDIA NIM's clients


async def answer_embeddings(request: Request) -> Response:
    """Answer with the embeddings of one text or many."""
    service: Service = request.app.state.service
    fields = Fields(await service.read(request), FIELDS)
    texts, batch = fields.texts("input", service.settings.max_inputs)
    name = fields.text("model")
    if name is not None and name not in service.model.names and not service.settings.any_model:
        known = " or ".join(service.model.names)
        message = f"the model {name:.80} does not exist here; this server has {known}; --any-model takes every name"
        raise Refused("model", message, "model")
    fields.text("user")
    encoding = fields.choice("encoding_format", FORMATS)
    if encoding is None:
        encoding = "bytes" if wants_octets(request.headers.getlist("accept")) else "float"
    dim = fields.count("dimensions")
    if dim is not None:
        await service.engine.run_in_thread(service.model.check_dim, dim)
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
    """Answer with the model under each of its names."""
    service: Service = request.app.state.service
    data = [
        {"id": name, "object": "model", "created": 0, "owned_by": "fastflow", "root": service.model.names[0]}
        for name in service.model.names
    ]
    return JSONResponse({"object": "list", "data": data})


ROUTES = [
    Route("/v1/embeddings", answer_embeddings, methods=["POST"]),
    Route("/embeddings", answer_embeddings, methods=["POST"]),
    Route("/v1/models", answer_models, methods=["GET"]),
]
