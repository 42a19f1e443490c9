"""The other engines of encoders at their usual best, and the reference, PyTorch in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fastflow.backends.torch import build_words_layer, get_states, restore_words
from fastflow.bench.measure.compare import Candidate
from fastflow.bench.measure.row import Array, Results, Subject
from fastflow.errors import FastflowError, UsageError, missing_extra
from fastflow.evaluation.agreement import quiet
from fastflow.kernels.encoder import WORDS
from fastflow.model.encoder import max_tokens


class Pooled(torch.nn.Module):
    """transformers' encoder and the subject's pooling: (B, T) ids and mask int64 -> (B, D) float32.

    ``layers``: pool the plain mean of these layers and of all tokens; None: as the subject pools.
    """

    def __init__(
        self, subject: Subject, dtype: torch.dtype, attention: str = "sdpa", layers: tuple[int, ...] | None = None
    ) -> None:
        super().__init__()
        import transformers

        with quiet():
            self.encoder = transformers.AutoModel.from_pretrained(
                subject.encoder, attn_implementation=attention, dtype=dtype
            )
            restore_words(self.encoder, subject.encoder)
        self.eval()
        self.layers = subject.layers if layers is None else layers
        self.shares = subject.shares if layers is None else None
        self.mode = subject.mode if layers is None else "mean"
        self.words: torch.nn.Module | None = None
        if WORDS in self.layers:
            self.words = build_words_layer(self.encoder, max_tokens(subject.shape), subject.encoder)
        self.last = self.layers == (subject.depth,)
        table = subject.weights if layers is None else None
        # (V, 1), looked up like the encoder's tables
        self.token_weights: torch.Tensor | None
        self.register_buffer("token_weights", None if table is None else torch.tensor(table)[:, None])

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self._pool({"input_ids": input_ids, "attention_mask": attention_mask}, attention_mask)

    def pool_without_mask(self, input_ids: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
        """Pool texts of equal length without the mask, which transformers reads back from a GPU."""
        return self._pool({"input_ids": input_ids}, ones)

    def _pool(self, given: dict[str, torch.Tensor], attention_mask: torch.Tensor) -> torch.Tensor:
        if self.mode == "pooler":
            return self.encoder(**given).pooler_output.to(torch.float32)
        if self.last:
            hidden = self.encoder(**given).last_hidden_state
        else:
            states = self._compute_states(given)
            found = [states[layer] for layer in self.layers]
            if self.shares is None:
                hidden = sum(found) / len(found)
            else:
                hidden = sum(share * state for share, state in zip(self.shares, found, strict=True))
        if self.mode == "cls":
            return hidden[:, 0].to(torch.float32)
        weights = attention_mask.unsqueeze(-1).to(torch.float32)
        if self.token_weights is not None:
            weights = weights * torch.nn.functional.embedding(given["input_ids"], self.token_weights)
        return (hidden.to(torch.float32) * weights).sum(1) / weights.sum(1)

    def _compute_states(self, given: dict[str, torch.Tensor]) -> dict[int, torch.Tensor]:
        if self.layers == (WORDS,) and self.words is not None:
            return {WORDS: self.words(given["input_ids"])}
        states = dict(enumerate(get_states(self.encoder(**given, output_hidden_states=True))))
        states[WORDS] = states[0] if self.words is None else self.words(given["input_ids"])
        return states


def find_missing_library(saved: Path | None) -> FastflowError | None:
    """Return an error if Sentence Transformers made the directory ``saved`` and is not installed to check engines."""
    if saved is None or find_spec("sentence_transformers"):
        return None
    return missing_extra("peers", "sentence_transformers", f"the bench of {saved}, which it saved,")


class SentenceModules(torch.nn.Module):
    """A directory of Sentence Transformers, run by its own modules: (B, T) ids and mask int64 -> (B, D') float32."""

    def __init__(self, directory: Path, dtype: torch.dtype, attention: str = "sdpa") -> None:
        super().__init__()
        if error := find_missing_library(directory):
            raise error
        from sentence_transformers import SentenceTransformer

        how = {"dtype": dtype, "attn_implementation": attention}
        with quiet():
            self.model = SentenceTransformer(str(directory), device="cpu", local_files_only=True, model_kwargs=how)
        self.eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        found = self.model({"input_ids": input_ids, "attention_mask": attention_mask})["sentence_embedding"]
        return torch.as_tensor(found).to(torch.float32)

    def pool_without_mask(self, input_ids: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
        return self(input_ids, ones)


class Scores(torch.nn.Module):
    """A cross-encoder of transformers: (B, T) ids, mask and token types int64 -> logits (B, labels) float32."""

    def __init__(self, directory: Path, dtype: torch.dtype, attention: str) -> None:
        super().__init__()
        import transformers

        with quiet():
            self.model = transformers.AutoModelForSequenceClassification.from_pretrained(
                directory, attn_implementation=attention, dtype=dtype
            )
        self.eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        found = self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=types)
        return torch.as_tensor(found.logits).to(torch.float32)


def open_pooled(subject: Subject, dtype: torch.dtype, attention: str = "sdpa") -> Any:
    """Open the subject as a module of (ids, mask), or of a cross-encoder's (ids, mask, token types)."""
    if subject.pairs:
        return Scores(subject.encoder, dtype, attention)
    if subject.saved is not None:
        modules = SentenceModules(subject.saved, dtype, attention)
        restore_words(modules.model[0].auto_model, subject.encoder)
        return modules
    return Pooled(subject, dtype, attention)


def open_reference(
    subject: Subject, layers: tuple[int, ...] | None = None, device: str = "cpu"
) -> Callable[..., Array]:
    """Open PyTorch in float32, the reference of every check; ``layers`` as for Pooled."""
    module = open_pooled(subject, torch.float32) if layers is None else Pooled(subject, torch.float32, layers=layers)
    module.to(device)

    def run(*given: Array) -> Array:
        with torch.inference_mode():
            return np.asarray(module(*(torch.from_numpy(a).to(device) for a in given)).cpu().numpy())

    return run


Call = Callable[[], Any]
Prepare = Callable[..., Call]
Embed = Callable[[Sequence[Any]], Array]


@dataclass(frozen=True)
class EncoderCandidate(Candidate):
    """``prepare``: ids, mask and a pair's token types, (B, T) int64 -> the call, which returns (B, D) float32."""

    prepare: Prepare
    shapes: frozenset[tuple[int, int]] | None = None  # only these batch x tokens; None: all


@dataclass(frozen=True)
class TextCandidate(Candidate):
    """``embed``: texts -> vectors (B, D'), tokenisation included."""

    embed: Embed
    pool: Embed | None = None  # texts -> the pooled vectors to check; None: the vectors of ``embed``
    layers: tuple[int, ...] | None = None  # it averages these layers over all tokens; None: as the model pools
    alone: bool = False  # whether it takes one text a call

    def prepare(self, texts: Sequence[str]) -> Call:
        return partial(self.embed, texts)


class Peer(NamedTuple):
    """A family of peers: needed modules of the extra 'peers', dtypes, and the function that opens it."""

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
MODULES = {("openvino", "int8"): ("nncf",)}  # further modules needed


def choose(
    against: Sequence[str] | None, known: Iterable[str] = PEERS, suites: str = "the encoder suites"
) -> list[str]:
    """Return the ``known`` names that are in ``against``, None for all; raise a UsageError for other names."""
    names = list(known)
    for word in against or ():
        if word not in names:
            raise UsageError(f"unknown peer {word!r} for {suites}; known: {', '.join(names)}")
    return [name for name in names if against is None or name in against]


def missing(family: str, dtype: str) -> str | None:
    """Return the sentence about the modules that ``family`` lacks, or None."""
    absent = [m for m in (*PEERS[family].modules, *MODULES.get((family, dtype), ())) if find_spec(m) is None]
    return str(missing_extra("peers", ", ".join(absent), "this peer")) if absent else None


def list_wanted(families: Iterable[str], takes_texts: bool, quick: bool = False) -> list[tuple[str, str]]:
    """Return (family, dtype) of ``families`` that take texts, or else token ids."""
    chosen = [f for f in families if PEERS[f].takes_texts == takes_texts and not (quick and f == COMPILED)]
    return [(family, dtype) for family in chosen for dtype in PEERS[family].dtypes]


def open_peers(
    subject: Subject, wanted: Iterable[tuple[str, str]], threads: int, results: Results
) -> Iterator[EncoderCandidate | TextCandidate]:
    """Yield the candidates of ``wanted`` (family, dtype); leave out others with the reason."""
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
            except Exception as error:
                reason = f"it cannot be opened: {first_line(error)}"
        if reason is not None:
            results.leave_out(subject.label, f"{family} {dtype}", reason)


def plain_layers(subject: Subject) -> tuple[int, ...] | None:
    """Return the layer that Sentence Transformers averages; None if a saved directory says."""
    return (subject.depth,) if subject.saved is None else None


def excuse(candidate: Candidate, error: Exception) -> str | None:
    """Return why a failed or wrong peer is left out; None for fastflow."""
    if candidate.name.startswith("fastflow"):
        return None
    return str(error) if isinstance(error, FastflowError) else f"its call failed: {first_line(error)}"


def first_line(error: Exception) -> str:
    """Return the error's kind and first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"


def _call_with_tensors(module: Any) -> Prepare:
    def prepare(*arrays: Array) -> Call:
        given = [*map(torch.from_numpy, arrays)]
        return lambda: module(*given).numpy()

    return prepare


def open_torch_eager(subject: Subject, dtype: str, _: int) -> Prepare:
    """Open transformers with scaled-dot-product attention."""
    return _call_with_tensors(open_pooled(subject, getattr(torch, dtype)))


def open_torch_compile(subject: Subject, dtype: str, _: int) -> Prepare:
    """Open the same module, compiled for each shape."""
    return _call_with_tensors(torch.compile(open_pooled(subject, getattr(torch, dtype)), dynamic=False))
