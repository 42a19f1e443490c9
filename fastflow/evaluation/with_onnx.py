"""Comparison with ONNX Runtime."""

from __future__ import annotations

import math
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError, missing_extra
from fastflow.evaluation.agreement import Agreement, allow_difference, compare_vectors, probe_texts
from fastflow.exports.record import read_record
from fastflow.runtime import Runtime
from fastflow.values import reason

MODEL, TOKENIZER = "model.onnx", "tokenizer.json"
LEAST_COSINE = 0.95  # of int8 with float32: a trained BERT (4 layers, 256 wide) has at least 0.9987, random ones 0.91
BATCH = 8  # texts


def check_installed() -> None:
    """Raise a FastflowError that names the missing ONNX Runtime."""
    if find_spec("onnxruntime") is None:
        raise missing_extra("onnx", "onnxruntime", "vectors were not compared: --with onnx")


def compare(path: Path, exported: Path | None = None) -> Agreement:
    """Compare every prompt of the model at ``path`` with its ONNX export.

    In int8 the cosines decide, not the differences.
    """
    if exported is None:
        raise UsageError(f"--with onnx compares {path} with its export: give that directory after the model")
    record = read_record(exported, "onnx")
    check_installed()
    texts, asked = probe_texts(), record.options()
    with Runtime(path, device="cpu", dtype="float32") as ours, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        record.check(exported, ours.fingerprint)
        prompts: dict[str | None, str] = {name: text for name, text in ours.prompts.items() if text}
        prompts[""] = ""
        single = [ours.encode(texts, prompt=prompt, **asked) for prompt in prompts.values()]
    found = [run(exported, [prompt + text for text in texts]) for prompt in prompts.values()]
    differences, cosines = zip(*map(compare_vectors, found, single), strict=True)

    def encode_exactly() -> list[NDArray[Any]]:
        with Runtime(path, device="cpu", dtype="float64", backend="reference") as exact, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return [exact.encode(texts, prompt=prompt, **asked) for prompt in prompts.values()]

    allowed, least = math.inf, LEAST_COSINE
    if record.dtype != "int8":
        allowed, least = allow_difference(max(differences), single, encode_exactly), -1.0
    count = len(texts) * len(prompts)
    return Agreement(count, max(differences), min(cosines), allowed, "ONNX Runtime", record.dtype, least)


def run(exported: Path, texts: list[str]) -> NDArray[np.float32]:
    """Compute vectors (B, D') with the files in ``exported``."""
    import onnxruntime
    from tokenizers import Tokenizer

    try:
        session = onnxruntime.InferenceSession(str(exported / MODEL), providers=["CPUExecutionProvider"])
        tokenizer = Tokenizer.from_file(str(exported / TOKENIZER))
        return np.concatenate([
            session.run(None, _inputs(tokenizer.encode_batch(texts[start : start + BATCH])))[0]
            for start in range(0, len(texts), BATCH)
        ])  # fmt: skip
    except Exception as error:  # the libraries raise many kinds
        raise FastflowError(f"{exported}: ONNX Runtime cannot run it: {reason(error)}") from error


def _inputs(batch: list[Any]) -> dict[str, NDArray[np.int64]]:
    names = {"input_ids": "ids", "attention_mask": "attention_mask"}
    return {
        name: np.array([getattr(encoding, own) for encoding in batch], np.int64).reshape(len(batch), -1)
        for name, own in names.items()
    }
