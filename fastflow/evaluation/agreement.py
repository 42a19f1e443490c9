"""Compare fastflow's vectors with Sentence Transformers' and ONNX Runtime's."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.exports.record import ExportRecord, read_record
from fastflow.model.encoder import is_static
from fastflow.model.sentence.directory import read_modules
from fastflow.runtime import Runtime
from fastflow.transforms.vectors import compute_paired_cosine
from fastflow.values import reason

TOLERANCE = 2e-6  # largest difference allowed, divided by the longest vector's length if above 1
ROUNDINGS = 10.0  # times the library's own float32 rounding is allowed; 3.8 was measured
SENTENCES = (
    "A man is playing a guitar on the street.",
    "Shares fell sharply after the central bank raised interest rates by 0.25%.",
    "Die Würde des Menschen ist unantastbar, sagte Frau Müller-Lüdenscheidt.",
    "El río crecía lentamente bajo la lluvia de abril.",
    "東京の夜は静かだった。",
    "def f(x): return x ** 2  # a comment",
    "WHY ARE YOU SHOUTING?!",
    "e-mail: someone@example.org, telephone (0) 123-4567",
)
BATCH = 8  # texts at a time
LEAST_COSINE = 0.95  # of int8 with float32: a trained BERT has at least 0.9987, random weights 0.91
LIBRARIES = {"st": "sentence_transformers", "onnx": "onnxruntime"}
WORDS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the library transformers."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        logging.enable_progress_bar()


@dataclass(frozen=True)
class Agreement:
    """The largest difference and least cosine of two programs' vectors, with their limits."""

    texts: int
    difference: float
    cosine: float
    allowed: float = TOLERANCE
    library: str = "Sentence Transformers"
    dtype: str = "float32"
    least: float = -1.0

    def report(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in ("texts", "difference", "cosine", "allowed")}

    def __str__(self) -> str:
        wide = f"; {self.allowed:.1e} is allowed, for its own float32 rounds as much"
        wide *= TOLERANCE < self.allowed < math.inf
        return (
            f"{self.texts} texts in {self.dtype}: largest difference to {self.library} {self.difference:.1e}, least "
            f"cosine {self.cosine:.7f}{wide}"
        )

    def check(self, path: Path) -> None:
        if not self.cosine >= self.least:
            raise FastflowError(
                f"{path}: {self.dtype} gives a vector at cosine {self.cosine:.3f} of float32's, below {self.least:g}; "
                "export the model in float32"
            )
        if not self.difference <= self.allowed:
            advice = f"open it with {self.library}" if self.library == "Sentence Transformers" else "do not use it"
            raise FastflowError(
                f"{path}: fastflow and {self.library} give different vectors, {self.difference:.1e} apart where "
                f"{self.allowed:.2g} is allowed; {advice}, and please report it"
            )


def probe_texts() -> list[str]:
    """Return texts to compare: empty, short, of several scripts, and long."""
    words = " ".join(SENTENCES).split()
    return [*SENTENCES, *(" ".join(words[i % len(words)] for i in range(count)) for count in WORDS), "  ", "\tx\n"]


def compare_vectors(found: NDArray[Any], wanted: NDArray[Any]) -> tuple[float, float]:
    """Compute the largest difference of two (B, D), relative as TOLERANCE, and the least cosine."""
    if found.shape != wanted.shape:
        return float("inf"), -1.0
    length = max(1.0, float(np.linalg.norm(wanted, axis=1).max()))
    both_zero = ~(found.any(axis=1) | wanted.any(axis=1))  # two zero vectors, of a text without tokens
    cosines = np.where(both_zero, 1.0, compute_paired_cosine(found, wanted))
    return float(np.abs(found - wanted).max()) / length, float(cosines.min())


def compare_with_st(path: Path, exported: Path | None = None) -> Agreement:
    """Compare the model at ``path``, for every prompt, to Sentence Transformers with ``exported`` or ``path``."""
    record = None if exported is None else read_record(exported, "st")
    if record is None and read_modules(path) is None:
        why = "it is a table of model2vec" if is_static(path) else "it has no modules.json"
        raise FastflowError(f"{path} was not saved by Sentence Transformers: {why}")
    from sentence_transformers import SentenceTransformer

    where = exported or path
    options: dict[str, Any] = {"device": "cpu", "local_files_only": True, "model_kwargs": {"dtype": "float32"}}
    try:
        with quiet():  # transformers warns of a missing pooler
            theirs = SentenceTransformer(str(where), **options)
    except Exception as error:  # the library raises many kinds
        raise FastflowError(f"{where}: Sentence Transformers cannot open it: {reason(error)}") from error
    with Runtime(path, device="cpu", dtype="float32") as ours:
        if record is not None:
            record.check(where, ours.fingerprint)
        names = (None, *(name for name, prompt in ours.prompts.items() if prompt))
        found = _encode(ours, [{"prompt_name": name} for name in names], record)

    def encode_theirs() -> list[NDArray[Any]]:
        texts = probe_texts()
        return [np.asarray(theirs.encode(texts, show_progress_bar=False, prompt_name=name)) for name in names]

    def encode_exactly() -> list[NDArray[Any]]:
        theirs.double()
        return encode_theirs()

    return _judge(found, encode_theirs(), encode_exactly)


def compare_with_onnx(path: Path, exported: Path | None = None) -> Agreement:
    """Compare the model at ``path``, for every prompt, to its ONNX export; in int8 only by cosines."""
    if exported is None:
        raise UsageError(f"--with onnx compares {path} with its export: give that directory after the model")
    record = read_record(exported, "onnx")
    with Runtime(path, device="cpu", dtype="float32") as ours:
        record.check(exported, ours.fingerprint)
        prompts = [*filter(None, ours.prompts.values()), ""]
        given = [{"prompt": prompt} for prompt in prompts]
        single = _encode(ours, given, record)
    found = [run(exported, [prompt + text for text in probe_texts()]) for prompt in prompts]

    def encode_exactly() -> list[NDArray[Any]]:
        with Runtime(path, device="cpu", dtype="float64", backend="reference") as exact:
            return _encode(exact, given, record)

    return _judge(found, single, encode_exactly, "ONNX Runtime", record.dtype)


def _encode(runtime: Runtime, given: Sequence[dict[str, Any]], record: ExportRecord | None) -> list[NDArray[Any]]:
    asked = {} if record is None else record.options()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return [runtime.encode(probe_texts(), **prompt, **asked) for prompt in given]


def _judge(
    found: Sequence[NDArray[Any]],
    single: Sequence[NDArray[Any]],
    exact: Callable[[], Sequence[NDArray[Any]]],
    library: str = "Sentence Transformers",
    dtype: str = "float32",
) -> Agreement:
    differences, cosines = zip(*map(compare_vectors, found, single), strict=True)
    difference, allowed = max(differences), TOLERANCE
    if dtype == "int8":
        allowed = math.inf
    elif TOLERANCE < difference < math.inf:
        rounding = max(compare_vectors(a, b)[0] for a, b in zip(single, exact(), strict=True))
        allowed = max(TOLERANCE, ROUNDINGS * rounding)
    least = LEAST_COSINE if dtype == "int8" else -1.0
    return Agreement(sum(map(len, found)), difference, min(cosines), allowed, library, dtype, least)


def run(exported: Path, texts: list[str]) -> NDArray[np.float32]:
    """Compute vectors (B, D') by ONNX Runtime with the files in ``exported``."""
    import onnxruntime
    from tokenizers import Tokenizer

    try:
        session = onnxruntime.InferenceSession(str(exported / "model.onnx"), providers=["CPUExecutionProvider"])
        tokenizer, found = Tokenizer.from_file(str(exported / "tokenizer.json")), []
        for start in range(0, len(texts), BATCH):
            batch = tokenizer.encode_batch(texts[start : start + BATCH])
            ids, mask = ([getattr(each, name) for each in batch] for name in ("ids", "attention_mask"))
            given = {"input_ids": ids, "attention_mask": mask}
            shaped = {name: np.array(rows, np.int64).reshape(len(batch), -1) for name, rows in given.items()}
            found.append(session.run(None, shaped)[0])
        return np.concatenate(found)
    except Exception as error:  # the libraries raise many kinds
        raise FastflowError(f"{exported}: ONNX Runtime cannot run it: {reason(error)}") from error
