"""Parse a method's name into the links of its chain."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fastflow.errors import UsageError

METHODS = (
    "flow, whiten[:K], standardize, components[:K], nullspace[:K], none, auto, or a chain such as whiten:128,flow or "
    "whiten,recolour"
)


@dataclass(frozen=True)
class Method:
    """One method of a chain: its kind, and K as ``dims``."""

    kind: str
    dims: int | None = None


def parse_method(text: str) -> list[Method]:
    """Parse ``whiten:128,flow`` or ``whiten:128+flow``; ``none`` has no link."""
    if text == "none":
        return []
    links = []
    for part in re.split("[,+]", text):
        match = re.fullmatch(r"(flow|standardize|whiten|recolour|components|nullspace)(?::(\d+))?", part.strip())
        if not match or (match[2] and match[1] in ("flow", "standardize", "recolour")):
            raise UsageError(f"unknown method {part.strip()!r}; use {METHODS}")
        links.append(Method(match[1], int(match[2]) if match[2] else None))
    if any(link.kind == "recolour" for link in links[:-1]) or links[0].kind == "recolour":
        raise UsageError(f"method {text!r}: recolour comes last, after the calibration whose spectrum it gives back")
    return links


def complete_chain(links: list[Method], latent: bool) -> list[Method]:
    """Add recolour if the last link is a flow, unless its output is wanted: ``latent``."""
    if links and links[-1].kind == "flow" and not latent:
        return [*links, Method("recolour")]
    return links
