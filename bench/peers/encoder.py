"""The other engines of encoders: which there are, which are installed, and how they are opened.

Each runs at its usual best, with the same weights, pooling and threads. A peer that is absent or fails is reported with
the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from fastflow.bench.measure.compare import Candidate
from fastflow.bench.measure.row import Results
from fastflow.bench.measure.subject import Array, Subject
from fastflow.bench.peers.pooled import open_pooled
from fastflow.errors import FastflowError, UsageError, missing_extra

Call = Callable[[], Any]
Prepare = Callable[[Array, Array], Call]
Embed = Callable[[Sequence[str]], Array]


@dataclass(frozen=True)
class EncoderCandidate(Candidate):
    """``prepare``: ids and mask, both (B, T) int64 -> the call that returns pooled vectors (B, D) float32."""

    prepare: Prepare
    shapes: frozenset[tuple[int, int]] | None = None  # only these batch x tokens; None: all


@dataclass(frozen=True)
class TextCandidate(Candidate):
    """``embed``: texts -> vectors (B, D'), tokenisation included."""

    embed: Embed
    pool: Embed | None = None  # texts -> the pooled vectors to check; None: the vectors of ``embed``
    layers: tuple[int, ...] | None = None  # it averages these layers, all tokens alike; None: the model's own pooling
    alone: bool = False  # it takes one text a call, no list

    def prepare(self, texts: Sequence[str]) -> Call:
        """Return the timed call."""
        return partial(self.embed, texts)


class Peer(NamedTuple):
    """One family: the modules of the extra 'peers' that it needs, its precisions, and its function in this folder."""

    modules: tuple[str, ...]
    dtypes: tuple[str, ...]
    function: str  # module.name: (subject, dtype, threads) -> Prepare, or Embed if it takes texts
    takes_texts: bool = False


_TORCH = ("torch", "transformers")
PEERS: dict[str, Peer] = {
    "torch-eager": Peer(_TORCH, ("float32", "bfloat16"), "encoder.open_torch_eager"),
    "torch-compile": Peer(_TORCH, ("float32",), "encoder.open_torch_compile"),
    "onnxruntime": Peer(("onnx", "onnxruntime"), ("float32", "int8"), "engines.open_onnxruntime"),
    "onnxruntime-plain": Peer(("onnx", "onnxruntime"), ("float32", "int8"), "engines.open_onnxruntime_plain"),
    "openvino": Peer(("onnx", "openvino"), ("float32", "bfloat16", "int8"), "engines.open_openvino"),
    "sentence-transformers": Peer(
        ("sentence_transformers",), ("float32", "bfloat16"), "engines.open_sentence_transformers", True
    ),
    "fastembed": Peer(("onnx", "fastembed"), ("float32", "int8"), "engines.open_fastembed", True),
}
COMPILED = "torch-compile"  # not in a quick run
MODULES = {("openvino", "int8"): ("nncf",)}  # needed besides


def choose(
    against: Sequence[str] | None, known: Iterable[str] = PEERS, suites: str = "the encoder suites"
) -> list[str]:
    """Return the names of ``known`` in ``against``, None for all; raise a UsageError for an unknown name."""
    names = list(known)
    for word in against or ():
        if word not in names:
            raise UsageError(f"unknown peer {word!r} for {suites}; known: {', '.join(names)}")
    return [name for name in names if against is None or name in against]


def missing(family: str, dtype: str) -> str | None:
    """Return the sentence about modules that ``family`` lacks, or None."""
    absent = [m for m in (*PEERS[family].modules, *MODULES.get((family, dtype), ())) if find_spec(m) is None]
    return str(missing_extra("peers", ", ".join(absent), "this peer")) if absent else None


def list_wanted(families: Iterable[str], takes_texts: bool, quick: bool = False) -> list[tuple[str, str]]:
    """Return (family, dtype) of the ``families`` that take texts, or of the others."""
    chosen = [f for f in families if PEERS[f].takes_texts == takes_texts and not (quick and f == COMPILED)]
    return [(family, dtype) for family in chosen for dtype in PEERS[family].dtypes]


def open_peers(
    subject: Subject, wanted: Iterable[tuple[str, str]], threads: int, results: Results
) -> Iterator[EncoderCandidate | TextCandidate]:
    """Yield the candidates of ``wanted`` (family, dtype); leave the others out of ``results`` with the reason."""
    for family, dtype in wanted:
        peer, reason = PEERS[family], missing(family, dtype)
        if reason is None:
            module, _, function = peer.function.partition(".")
            backend = family.partition("-")[0]
            try:
                opened = getattr(import_module(f"fastflow.bench.peers.{module}"), function)(subject, dtype, threads)
                if peer.takes_texts:
                    layers = plain_layers(subject) if family.startswith("sentence") else None
                    yield TextCandidate(family, dtype, backend, opened, layers=layers)
                else:
                    yield EncoderCandidate(family, dtype, backend, opened)
            except Exception as error:  # other people's converters raise anything; the run continues
                reason = f"it cannot be opened: {first_line(error)}"
        if reason is not None:
            results.leave_out(subject.label, f"{family} {dtype}", reason)


def plain_layers(subject: Subject) -> tuple[int, ...] | None:
    """Return the layers that Sentence Transformers averages: a plain encoder's last; None for its own directory."""
    return (subject.depth,) if subject.saved is None else None


def excuse(candidate: Candidate, error: Exception) -> str | None:
    """Return why a peer that failed or is wrong is left out; None for fastflow, so that its error ends the run."""
    if candidate.name.startswith("fastflow"):
        return None
    return str(error) if isinstance(error, FastflowError) else f"its call failed: {first_line(error)}"


def first_line(error: Exception) -> str:
    """Return the error's kind and first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"


def _call_with_tensors(module: Any) -> Prepare:
    def prepare(ids: Array, mask: Array) -> Call:
        given = torch.from_numpy(ids), torch.from_numpy(mask)
        return lambda: module(*given).numpy()

    return prepare


def open_torch_eager(subject: Subject, dtype: str, _: int) -> Prepare:
    """Open transformers as it is, with scaled-dot-product attention."""
    return _call_with_tensors(open_pooled(subject, getattr(torch, dtype)))


def open_torch_compile(subject: Subject, dtype: str, _: int) -> Prepare:
    """Open the same compiled, each shape by itself."""
    return _call_with_tensors(torch.compile(open_pooled(subject, getattr(torch, dtype)), dynamic=False))
