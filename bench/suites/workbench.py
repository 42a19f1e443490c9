"""The models that the text suites measure, each made once for all suites.

Latency does not depend on the values of weights, so BERT-base is made with random ones, seeded; nothing is downloaded.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from fastflow.bench.measure.subject import Subject
from fastflow.bench.peers.pooled import quiet
from fastflow.errors import FastflowError
from fastflow.model.architecture import encoder_shape, read_config
from fastflow.model.artifact import DEFAULT, load_model

SEED = 0


class Workbench:
    """Subjects on demand, with a temporary folder that lives as long as the run.

    ``bert``: how the random BERT differs from BERT-base, as settings of transformers' BertConfig.
    """

    def __init__(self, folder: Path, model: str | None, bert: Mapping[str, Any] | None = None) -> None:
        self.folder, self.model, self.bert = folder, model, bert or {}
        self._made: dict[str, Subject] = {}

    def base(self) -> Subject:
        """BERT-base with random weights, mean of the last layer."""
        directory = self.folder / "base"
        if not directory.is_dir():
            make_base(directory, self.bert)
        return self._subject("BERT-base, random weights" if not self.bert else "BERT, random weights", str(directory))

    def named(self) -> Subject:
        """The model that was asked for, else the one in the package."""
        return self._subject("the default model" if self.model is None else "the model given", self.model)

    def _subject(self, label: str, model: str | None) -> Subject:
        if label not in self._made:
            loaded = load_model(model)
            if loaded.modules is not None:
                raise FastflowError(
                    f"bench: {label} was saved by Sentence Transformers, whose modules are not timed here"
                )
            if loaded.pooling.mode != "mean":
                raise FastflowError(f"bench: {label} pools by {loaded.pooling.mode}; only the mean is known here")
            shape = encoder_shape(read_config(loaded.encoder), loaded.encoder)
            folder = self.folder / f"made-{len(self._made)}"
            folder.mkdir()
            self._made[label] = Subject(
                f"{label}: {shape.layers} layers, {shape.hidden} wide", model, loaded.encoder, loaded.pooling.layers,
                loaded.max_length, shape, folder, loaded.pooling.weights,
            )  # fmt: skip
        return self._made[label]


@contextmanager
def workbench(model: str | None, bert: Mapping[str, Any] | None = None) -> Iterator[Workbench]:
    """A Workbench whose files are removed afterwards."""
    with TemporaryDirectory(prefix="fastflow-bench-", ignore_cleanup_errors=True) as folder:
        yield Workbench(Path(folder), model, bert)


def make_base(directory: Path, bert: Mapping[str, Any]) -> None:
    """A BERT with the tokenizer of the model in the package and seeded random weights, in Hugging Face's layout."""
    import transformers

    with quiet():
        torch.manual_seed(SEED)
        transformers.BertModel(transformers.BertConfig(**bert)).eval().save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEFAULT / "0_Transformer" / name, directory)
