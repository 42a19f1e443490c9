"""Format vectors as JSON, base64 or bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMATS = ("float", "base64", "bytes")
OCTETS = "application/octet-stream"


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
