"""The route /compare: the similarity of pairs of texts before and after calibration, side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fastflow.errors import FastflowError
from fastflow.serve.batch import Floats, How
from fastflow.serve.fields import Fields
from fastflow.serve.model import ServedModel
from fastflow.serve.refusals import Refused
from fastflow.serve.service import Service

FIELDS = ("pairs", "truncate", "prompt_name")


async def compare(request: Request) -> Response:
    """The similarity of each pair of texts, of their raw vectors and of their embeddings."""
    service: Service = request.app.state.service
    fields = Fields(await service.read(request), FIELDS)
    texts = _texts(fields, service.settings.max_inputs)
    how = How(prompt=service.model.prompt(None, fields.text("prompt_name")), pooled=True)
    truncate = fields.flag("truncate", service.settings.truncate)
    done = await service.embed(request, texts, how, truncate, True)
    try:
        both = await service.engine.thread(similarities, service.model, done.vectors)
    except FastflowError as error:
        raise Refused("backend", f"the texts could not be compared: {error}") from error
    info = service.model.info
    names = {
        "similarity": info["similarity"],
        "calibration": info["calibration"],
        "raw_pooling": service.model.raw_pooling,
    }
    return JSONResponse({**names, "truncated_texts": done.cut, "pairs": both})


def similarities(model: ServedModel, vectors: Floats) -> list[dict[str, float]]:
    """The similarities of each pair, two rows of ``vectors`` (2 n, 2 D): raw, then pooled."""
    raw, pooled = np.split(vectors, 2, axis=1)
    sides = {"raw": raw, "calibrated": model.runtime.transform(pooled)}

    def of_pair(z: NDArray[Any], i: int) -> float:
        found = float(model.runtime.similarity(z[2 * i : 2 * i + 1], z[2 * i + 1 : 2 * i + 2])[0, 0])
        if not np.isfinite(found):
            raise FastflowError(f"the similarity of pair {i} is not finite")
        return found

    return [{name: of_pair(z, i) for name, z in sides.items()} for i in range(len(vectors) // 2)]


def _texts(fields: Fields, most: int) -> list[str]:
    """The texts of all pairs, one pair after the other."""
    pairs = fields.required("pairs")
    if not isinstance(pairs, list):
        raise Refused("validation", "pairs must be a list of pairs of strings", "pairs")
    if not pairs:
        raise Refused("empty", "pairs holds no pair", "pairs")
    if 2 * len(pairs) > most:
        message = f"pairs holds {2 * len(pairs)} texts, and a request may hold {most}: send them in parts"
        raise Refused("validation", message, "pairs")
    for i, pair in enumerate(pairs):
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise Refused("validation", f"pairs[{i}] must be a list of two strings", f"pairs[{i}]")
    return [text for pair in pairs for text in pair]


ROUTES = [Route("/compare", compare, methods=["POST"])]
