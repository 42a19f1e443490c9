"""Types of the arguments and results of a Runtime, for type checkers."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypedDict

import numpy as np
from numpy.typing import ArrayLike

Precision = Literal["float32", "float16", "int8", "uint8", "binary", "ubinary"]
Device = Literal["auto", "cpu", "cuda", "cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:4", "cuda:5", "cuda:6", "cuda:7"]
Dtype = Literal["auto", "float32", "bfloat16", "int8", "float16", "float64"]
BackendName = Literal["auto", "cpu", "triton", "torch", "reference"]
FloatVector = np.ndarray[tuple[int], np.dtype[np.float32]]
FloatMatrix = np.ndarray[tuple[int, int], np.dtype[np.float32]]  # float64 of a Runtime in float64
Vector = np.ndarray[tuple[int], np.dtype[np.number]]
Matrix = np.ndarray[tuple[int, int], np.dtype[np.number]]
Scores = np.ndarray[tuple[int], np.dtype[np.float64]]
Similarity = np.ndarray[tuple[int], np.dtype[np.floating]]
Similarities = np.ndarray[tuple[int, int], np.dtype[np.floating]]


class EncodeOptions(TypedDict, total=False):
    """The options of ``Runtime.encode`` that ``encode_query`` and ``encode_document`` pass to it."""

    batch_size: int | None
    normalize_embeddings: bool
    convert_to_numpy: bool
    show_progress_bar: bool | None
    precision: Precision
    truncate_dim: int | None
    ranges: Matrix | None


class QueryOptions(TypedDict):
    """Options with which ``Runtime.encode_query`` makes vectors comparable with a file's."""

    normalize_embeddings: bool
    truncate_dim: int | None


class Calibration(Protocol):
    """A calibration for ``fastflow.fit``, as scikit-learn's transformers are: ``transform`` maps (n, D) to (n, k)."""

    def fit(self, X: Any, /) -> Any: ...

    def transform(self, X: Any, /) -> Any: ...


class FitOptions(TypedDict, total=False):
    """The named options of ``fastflow.fit``; fastflow-train --help explains them."""

    preset: str
    stop: str
    max_length: int | None
    levels: int
    depth: int | None
    width: int | None
    coupling: str
    permutation: str
    spectrum: float | None
    mean_share: float | None
    demoted: int | None
    latent: bool
    background: int | None
    background_words: str | None
    background_sentences: str | None
    language: str
    order_from: str | None
    init: str
    encoder_dropout: bool
    epochs: float
    batch_size: int
    lr: float
    sample: int | None
    sentences: bool
    stream: bool
    device: str


class SearchOptions(TypedDict, total=False):
    """Options of ``Index.search``."""

    by: str
    min_score: float | None
    distinct: bool
    vectors: ArrayLike | None


class Report(TypedDict, total=False):
    """The result of ``Fit.report``, for JSON; ``texts`` or ``vectors``: how many were fitted on."""

    method: str
    calibration: str
    pooling: str | None
    texts: int
    vectors: int
    measures: dict[str, dict[str, object]]
    choice: dict[str, object]
    reasons: list[str]
    verdict: str
    notes: list[str]
    warnings: list[str]


class Info(TypedDict):
    """The result of ``Runtime.info``, for JSON; ``pooling`` and ``max_length`` are None without an encoder."""

    model: str
    fingerprint: str
    takes: str  # texts or vectors
    backend: str
    device: str
    dtype: str
    dim: int
    pooled_dim: int
    pooling: str | None
    max_length: int | None
    tokenizer: str | None
    modules: list[str] | None
    prompts: dict[str, str]
    default_prompt: str | None
    similarity: str
    calibration: str
    truncation: str
    notes: list[str]
    details: list[str]
