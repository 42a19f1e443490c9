"""Who runs encoders besides fastflow: each engine at its usual best, with the same weights, pooling and threads.

A candidate is opened with a Subject and gives pooled vectors (B, D) float32 of padded token ids. A peer that is not
installed, or fails, is reported with the reason, never left out in silence.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from fastflow.bench.measure.compare import Candidate, Who
from fastflow.bench.measure.subject import Array, Subject
from fastflow.bench.peers.pooled import pooled
from fastflow.errors import FastflowError, UsageError, missing_extra
from fastflow.evaluation.agreement import quiet

Call = Callable[[], Any]


@dataclass(frozen=True)
class EncoderCandidate(Candidate):
    """``prepare`` takes ids and mask, both (B, T) int64."""

    shapes: frozenset[tuple[int, int]] | None = None  # only these batch x tokens; None: all


# family -> the modules it needs, which the extra 'peers' brings, and the precisions it runs in
PEERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "torch-eager": (("torch", "transformers"), ("float32", "bfloat16")),
    "torch-compile": (("torch", "transformers"), ("float32",)),
    "zentorch": (("torch", "transformers", "zentorch"), ("float32", "bfloat16")),
    "onnxruntime": (("onnx", "onnxruntime"), ("float32", "int8")),
    "onnxruntime-plain": (("onnx", "onnxruntime"), ("float32", "int8")),
    "openvino": (("onnx", "openvino"), ("float32", "bfloat16", "int8")),
    "ctranslate2": (("ctranslate2",), ("float32", "int8")),
    "xllamacpp": (("gguf", "xllamacpp"), ("float32", "bfloat16", "int8")),
    "sentence-transformers": (("sentence_transformers",), ("float32", "bfloat16")),
    "sentence-transformers-onnx": (("sentence_transformers", "optimum.onnxruntime"), ("float32", "int8")),
    "sentence-transformers-openvino": (("sentence_transformers", "optimum.intel"), ("float32", "bfloat16")),
    "fastembed": (("onnx", "fastembed"), ("float32", "int8")),
}
TEXTS = tuple(family for family in PEERS if family.startswith(("sentence", "fastembed")))  # they take texts
COMPILED = ("torch-compile", "zentorch")  # nothing for a quick run
MODULES = {("openvino", "int8"): ("nncf",)}  # needed besides
# families that never share a process with zentorch -> why
CLASHES = {"ctranslate2": "ctranslate2 gives wrong vectors", "xllamacpp": "xllamacpp aborts the interpreter"}
# modules that want older versions of transformers than the extra brings -> the command for an environment of their own
APART = {
    "optimum.onnxruntime": "pip install 'sentence-transformers[onnx]'",
    "optimum.intel": "pip install 'sentence-transformers[openvino]'",
}


def chosen(against: Sequence[str] | None) -> list[str]:
    """The families that ``against`` picks, None for all; raises a UsageError for an unknown one, and for a clash."""
    for word in against or ():
        if word not in PEERS:
            raise UsageError(f"unknown peer {word!r} for the encoder suites; known: {', '.join(PEERS)}")
    if clashes := clashing(against or ()):
        raise UsageError(f"--against {','.join(against or ())}: {_why(clashes)}")
    return [name for name in PEERS if against is None or name in against]


def missing(family: str, dtype: str) -> str | None:
    """Why ``family`` cannot be opened for want of a module, or None."""
    absent = [m for m in (*PEERS[family][0], *MODULES.get((family, dtype), ())) if not _there(m)]
    if apart := [m for m in absent if m in APART]:
        return (
            f"this peer needs {', '.join(absent)}, which is not installed: run {APART[apart[0]]} in an environment of "
            "its own, for it wants older versions of transformers"
        )
    return str(missing_extra("peers", ", ".join(absent), "this peer")) if absent else None


def _there(module: str) -> bool:
    """Whether ``module`` is installed; of a dotted name the package comes first, for the search inside imports it."""
    package, _, inner = module.partition(".")
    return find_spec(package) is not None and (not inner or find_spec(module) is not None)


def open_peers(
    subject: Subject, wanted: Iterable[tuple[str, str]], threads: int, skipped: list[dict[str, Any]]
) -> Iterator[EncoderCandidate]:
    """The candidates of ``wanted`` (family, dtype); who cannot be opened is added to ``skipped`` with the reason."""
    from fastflow.bench.peers import llama as peers_llama
    from fastflow.bench.peers import onnx as peers_onnx

    makers: dict[str, Callable[[Subject, str, int], Callable[[Array, Array], Call]]] = {
        "torch-eager": torch_eager,
        "torch-compile": torch_compile,
        "zentorch": zentorch,
        "onnxruntime": peers_onnx.onnxruntime,
        "onnxruntime-plain": peers_onnx.onnxruntime_plain,
        "openvino": peers_onnx.openvino,
        "ctranslate2": ctranslate2,
        "xllamacpp": peers_llama.xllamacpp,
    }

    def make(family: str, dtype: str) -> EncoderCandidate:
        check_process(family)
        backend = peers_llama.backend() if family == "xllamacpp" else family.partition("-")[0]
        return EncoderCandidate(family, dtype, backend, makers[family](subject, dtype, threads))

    return opened(subject, together(subject, list(wanted), skipped), skipped, make)


def clashing(families: Iterable[str]) -> list[str]:
    """Those of the installed ``families`` that cannot share a process with zentorch, if that is among them too."""
    there = [family for family in families if missing(family, PEERS[family][1][0]) is None]
    return [family for family in there if family in CLASHES] if "zentorch" in there else []


def _why(clashes: Iterable[str]) -> str:
    found = " and ".join(CLASHES[family] for family in clashes)
    return f"in one process with zentorch {found}; measure zentorch in a run of its own, with --against zentorch"


def together(subject: Subject, wanted: list[tuple[str, str]], skipped: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """``wanted`` without zentorch if it clashes with other peers; it is added to ``skipped`` with the reason."""
    clashes = clashing(dict(wanted))
    kept = [(family, dtype) for family, dtype in wanted if not clashes or family != "zentorch"]
    skipped.extend(left_out(subject, *one, _why(clashes)) for one in wanted if one not in kept)
    return kept


def check_process(family: str) -> None:
    """Raise ValueError if this process has loaded an engine that ``family`` cannot share a process with."""
    others = CLASHES if family == "zentorch" else ["zentorch"] if family in CLASHES else []
    if loaded := [other for other in others if other in sys.modules]:
        raise ValueError(f"this process has loaded {', '.join(loaded)}; give {family} a run of its own, with --against")


def opened(
    subject: Subject, wanted: Iterable[tuple[str, str]], skipped: list[dict[str, Any]],
    make: Callable[[str, str], Who],
) -> Iterator[Who]:  # fmt: skip
    """``make`` of every (family, dtype) of ``wanted``; who is missing or fails is added to ``skipped`` by name."""
    for family, dtype in wanted:
        reason = missing(family, dtype)
        if reason is None:
            try:
                yield make(family, dtype)
            except Exception as error:  # other people's converters raise anything; the run goes on without them
                reason = f"it cannot be opened: {said(error)}"
        if reason is not None:
            skipped.append(left_out(subject, family, dtype, reason))


def left_out(subject: Subject, name: str, dtype: str, reason: str) -> dict[str, Any]:
    """The entry under ``skipped``."""
    return {"subject": subject.label, "name": f"{name} {dtype}", "reason": reason}


def excuse(candidate: Candidate, error: Exception) -> str | None:
    """Why a peer that failed or is wrong is left out; None for fastflow, whose error ends the run."""
    if candidate.name.startswith("fastflow"):
        return None
    return str(error) if isinstance(error, FastflowError) else f"its call failed: {said(error)}"


def said(error: Exception) -> str:
    """The error's kind and first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"


def _tensors(module: Any) -> Callable[[Array, Array], Call]:
    def prepare(ids: Array, mask: Array) -> Call:
        given = torch.from_numpy(ids), torch.from_numpy(mask)
        return lambda: module(*given).numpy()

    return prepare


def torch_eager(subject: Subject, dtype: str, _: int) -> Callable[[Array, Array], Call]:
    """transformers as it is, scaled-dot-product attention."""
    return _tensors(pooled(subject, getattr(torch, dtype)))


def torch_compile(subject: Subject, dtype: str, _: int) -> Callable[[Array, Array], Call]:
    """The same compiled, each shape by itself."""
    module = pooled(subject, getattr(torch, dtype))
    return _tensors(torch.compile(module, dynamic=False))


def zentorch(subject: Subject, dtype: str, _: int) -> Callable[[Array, Array], Call]:
    """AMD's plug-in through torch.compile, one compilation for all shapes."""
    import zentorch as _registers  # noqa: F401 - the backend, by being imported

    return _tensors(torch.compile(pooled(subject, getattr(torch, dtype)), backend="zentorch", dynamic=True))


def ctranslate2(subject: Subject, dtype: str, threads: int) -> Callable[[Array, Array], Call]:
    """CTranslate2's encoder, which gives the last layer's states; the mean is NumPy's."""
    import ctranslate2 as library

    if subject.saved is not None or subject.mode != "mean":
        raise ValueError("the mean of the last layer is all that this peer pools, without modules behind it")
    if subject.layers != (subject.depth,):
        raise ValueError(f"it gives the last layer only, and this model pools layers {subject.layers}")
    converted = subject.folder / "ctranslate2"
    if not converted.is_dir():
        source = subject.folder / "ctranslate2-source"
        shutil.copytree(subject.encoder, source)
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        config["position_embedding_type"] = "absolute"  # its converter asks for what transformers no longer writes
        (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
        with quiet():
            library.converters.TransformersConverter(str(source)).convert(str(converted))
        shutil.rmtree(source)
    encoder = library.Encoder(str(converted), device="cpu", compute_type=dtype, inter_threads=1, intra_threads=threads)

    def prepare(ids: Array, mask: Array) -> Call:
        small, lengths = ids.astype(np.int32), mask.sum(1).astype(np.int32)
        counts = mask if subject.weights is None else mask * subject.weights[ids]  # not timed, in its favour
        weights = (counts / counts.sum(1, keepdims=True)).astype(np.float32)[:, None]

        def call() -> Array:
            view = library.StorageView.from_array
            states = np.asarray(encoder.forward_batch(view(small), view(lengths)).last_hidden_state)
            return (weights @ states)[:, 0]

        return call

    return prepare
