"""The engines that take texts and tokenise them themselves: Sentence Transformers with its backends, and fastembed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fastflow.bench.measure.compare import Candidate
from fastflow.bench.measure.machine import describe
from fastflow.bench.measure.subject import Array, Subject
from fastflow.bench.peers.encoder import opened
from fastflow.bench.peers.onnx import exported, quantised, session_options, silence
from fastflow.evaluation.agreement import quiet

Embed = Callable[[Sequence[str]], Array]
BATCH = 32  # texts in a padded batch: Sentence Transformers' default; fastembed's own, 256 unsorted, pads more
MADE = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json")


@dataclass(frozen=True)
class TextCandidate(Candidate):
    """``prepare`` takes the texts."""

    pool: Embed | None = None  # texts -> the pooled vectors that are checked; None: those of the timed call
    layers: tuple[int, ...] | None = None  # it averages these layers, all tokens alike; None: the model's own pooling
    alone: bool = False  # it takes one text a call, no list


def open_texts(
    subject: Subject, wanted: Iterable[tuple[str, str]], threads: int, skipped: list[dict[str, Any]]
) -> Iterator[TextCandidate]:
    """The candidates of ``wanted`` (family, dtype); who cannot be opened is added to ``skipped`` with the reason."""
    makers: dict[str, Callable[[Subject, str, int], Embed]] = {
        "sentence-transformers": sentence_transformers,
        "sentence-transformers-onnx": sentence_transformers_onnx,
        "sentence-transformers-openvino": sentence_transformers_openvino,
        "fastembed": fastembed,
    }

    def make(family: str, dtype: str) -> TextCandidate:
        embed = makers[family](subject, dtype, threads)
        layers = plain_layers(subject) if family.startswith("sentence") else None
        return TextCandidate(
            family, dtype, family.partition("-")[0], lambda texts: partial(embed, texts), layers=layers
        )

    return opened(subject, wanted, skipped, make)


def plain_layers(subject: Subject) -> tuple[int, ...] | None:
    """The layers that Sentence Transformers averages: a plain encoder's last, or those that its own folder names."""
    return (subject.depth,) if subject.saved is None else None


def sentence_transformers(subject: Subject, dtype: str, _: int) -> Embed:
    """SentenceTransformer as users call it, on PyTorch."""
    return _embed(_sentence_transformer(subject, model_kwargs={"dtype": dtype}))


def sentence_transformers_onnx(subject: Subject, dtype: str, threads: int) -> Embed:
    """SentenceTransformer on ONNX Runtime, optimised at O3 or dynamically quantised, as its documentation advises."""
    from sentence_transformers import export_dynamic_quantized_onnx_model, export_optimized_onnx_model

    how = {"provider": "CPUExecutionProvider", "session_options": session_options(threads)}
    made = subject.folder / "sentence-transformers-onnx"
    if not made.is_dir():
        with silence():
            _sentence_transformer(subject, backend="onnx", model_kwargs=how | {"export": True}).save_pretrained(
                str(made)
            )
    isa = "avx512_vnni" if "avx512_vnni" in describe()["instruction_sets"] else "avx2"
    name = f"model_qint8_{isa}.onnx" if dtype == "int8" else "model_O3.onnx"
    if not (made / "onnx" / name).is_file():
        with silence():
            whole = _sentence_transformer(
                subject, made, backend="onnx", model_kwargs=how | {"file_name": "onnx/model.onnx"}
            )
            if dtype == "int8":
                export_dynamic_quantized_onnx_model(whole, isa, str(made))
            else:
                export_optimized_onnx_model(whole, "O3", str(made))
    return _embed(
        _sentence_transformer(subject, made, backend="onnx", model_kwargs=how | {"file_name": f"onnx/{name}"})
    )


def sentence_transformers_openvino(subject: Subject, dtype: str, threads: int) -> Embed:
    """SentenceTransformer on OpenVINO."""
    config = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "bf16" if dtype == "bfloat16" else "f32",
    }
    with silence():
        return _embed(_sentence_transformer(subject, backend="openvino", model_kwargs={"ov_config": config}))


def _sentence_transformer(subject: Subject, made: Path | None = None, **how: Any) -> Any:
    from sentence_transformers import SentenceTransformer

    directory = made or subject.saved or subject.encoder
    with quiet():
        model = SentenceTransformer(str(directory), device="cpu", local_files_only=True, **how)
    model.max_seq_length = subject.max_length
    return model


def _embed(model: Any) -> Embed:
    return lambda texts: np.asarray(model.encode(list(texts), batch_size=BATCH, show_progress_bar=False), np.float32)


def fastembed(subject: Subject, dtype: str, threads: int) -> Embed:
    """fastembed's TextEmbedding on the subject's ONNX file, which pools, so that it has nothing left to do after it."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    folder = _fastembed_folder(subject, quantised(subject, exported) if dtype == "int8" else exported(subject))
    name = f"fastflow-bench/{folder}"  # its registry is the process's and refuses a name twice
    if all(known["model"] != name for known in TextEmbedding.list_supported_models()):
        TextEmbedding.add_custom_model(
            model=name, pooling=PoolingType.DISABLED, normalization=False, sources=ModelSource(url="file:///nowhere"),
            dim=subject.shape.hidden, model_file="model.onnx",
        )  # fmt: skip
    model = TextEmbedding(name, threads=threads, specific_model_path=str(folder), local_files_only=True)
    before = subject.prompt
    return lambda texts: np.asarray(list(model.embed([before + text for text in texts], batch_size=BATCH)), np.float32)


def _fastembed_folder(subject: Subject, graph: Path) -> Path:
    """A folder as fastembed reads it: the graph and the tokenizer with its length limit."""
    folder = subject.folder / f"fastembed-{graph.stem}"
    if not folder.is_dir():
        folder.mkdir()
        for name in MADE:
            if (subject.encoder / name).is_file():
                shutil.copy(subject.encoder / name, folder)
        settings = folder / "tokenizer_config.json"
        given = json.loads(settings.read_text(encoding="utf-8")) if settings.is_file() else {}
        given |= {"model_max_length": subject.max_length, "max_length": subject.max_length}
        settings.write_text(json.dumps(given), encoding="utf-8")
        if not (folder / "special_tokens_map.json").is_file():
            (folder / "special_tokens_map.json").write_text("{}", encoding="utf-8")
        shutil.copy(graph, folder / "model.onnx")
    return folder
