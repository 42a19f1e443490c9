"""A run's request, and the models of the text suites. BERT-base has random weights, on which speed does not depend."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from fastflow.bench.measure.row import Results, Subject
from fastflow.bench.peers.encoder import find_missing_library
from fastflow.bench.suites.sizes import Sizes
from fastflow.errors import FastflowError
from fastflow.evaluation.agreement import quiet
from fastflow.model.artifact import load_model
from fastflow.model.encoder import encoder_shape, read_config
from fastflow.model.locate import UNTUNED

SEED = 0
# widths and depths in use, as settings of transformers' BertConfig
SHAPES: dict[str, dict[str, int]] = {
    "minilm-l6": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "minilm-l12": {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 1536},
    "bert-base": {},
}  # bge-small and e5-small are minilm-l12, bge-base and e5-base bert-base
NAMES = {"minilm-l6": "MiniLM-L6", "minilm-l12": "MiniLM-L12", "bert-base": "BERT-base"}


class Workbench:
    """Makes models to measure; ``bert``: how the random BERT differs from BERT-base; ``shape``: one of SHAPES."""

    def __init__(
        self, folder: Path, model: str | None, bert: Mapping[str, Any] | None = None, shape: str | None = None
    ) -> None:
        self.folder, self.model, self.shape = folder, model, shape
        self.bert = (bert or {}) if shape is None else SHAPES[shape]
        self._made: dict[str, Subject] = {}

    def base(self) -> Subject:
        directory = self.folder / "base"
        if not directory.is_dir():
            make_base(directory, self.bert)
        like = self.shape or ("" if self.bert else "bert-base")
        name = f"shape of {NAMES[like]}" if like else "a BERT"  # never the model's own name: the weights differ
        return self._make_subject(f"{name}, random weights", str(directory))

    def pick_subject(self) -> Subject:
        model = self.model or "default"
        return self._make_subject("the model default" if model == "default" else "the model given", model)

    def subjects(self) -> list[Subject]:
        if self.shape is not None:
            return [self.base()]
        return [self.pick_subject()] if self.model is not None else [self.pick_subject(), self.base()]

    def _make_subject(self, label: str, model: str | None) -> Subject:
        if label not in self._made:
            loaded = load_model(model)
            shape = encoder_shape(read_config(loaded.encoder), loaded.encoder)
            folder = self.folder / f"made-{len(self._made)}"
            folder.mkdir()
            pooling, prompts = loaded.pooling, loaded.prompts
            saved = None if loaded.modules is None else loaded.modules.path
            if (prompt := prompts.resolve()) and not prompts.pooled:
                raise FastflowError(f"bench: {label} leaves its default prompt out of the pooling, which no peer can")
            self._made[label] = Subject(
                f"{label}: {shape.layers} layers, {shape.hidden} wide", model, loaded.encoder, pooling.layers,
                loaded.max_length, shape, folder, pooling.weights, pooling.mode, saved, prompt, pooling.shares,
            )  # fmt: skip
        return self._made[label]


@dataclass(frozen=True)
class SuiteRun:
    """A run of a suite; ``against``: peers by name, None for all."""

    bench: Workbench
    against: Sequence[str] | None
    sizes: Sizes
    threads: int
    say: Callable[[str], None]
    device: str = "cpu"

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    def keep_judged(self, subjects: Iterable[Subject], results: Results) -> Iterator[Subject]:
        """Yield ``subjects``; leave out a packaged model if Sentence Transformers is needed and not installed."""
        for subject in subjects:
            if self.bench.model is None and (error := find_missing_library(subject.saved)):
                results.leave_out(subject.label, "every engine", str(error))
            else:
                yield subject


@contextmanager
def open_workbench(
    model: str | None, bert: Mapping[str, Any] | None = None, shape: str | None = None
) -> Iterator[Workbench]:
    """Open a Workbench with its own cache, and remove it afterwards."""
    with TemporaryDirectory(prefix="fastflow-bench-", ignore_cleanup_errors=True) as folder, _use_cache(Path(folder)):
        yield Workbench(Path(folder), model, bert, shape)


@contextmanager
def _use_cache(folder: Path) -> Iterator[None]:
    before = dict(os.environ)
    usual = Path(before.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ |= {
        "XDG_CACHE_HOME": str(folder / "cache"),
        "HF_HOME": before.get("HF_HOME", str(usual / "huggingface")),
    }
    try:
        yield
    finally:
        for name in ("XDG_CACHE_HOME", "HF_HOME"):
            os.environ.pop(name)
        os.environ |= before


def make_base(directory: Path, bert: Mapping[str, Any]) -> None:
    """Save a BERT with the packaged tokenizer and seeded random weights."""
    import transformers

    with quiet():
        torch.manual_seed(SEED)
        transformers.BertModel(transformers.BertConfig(**bert)).eval().save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(UNTUNED / "0_Transformer" / name, directory)
