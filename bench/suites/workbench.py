"""The models that the text suites measure, and what is made of them once for all suites: ONNX files, reference vectors.

Latency does not depend on the values of weights, so BERT-base is made with random ones, seeded; nothing is downloaded.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.kernels.encoder.reference import EncoderShape
from fastflow.model.architecture import encoder_shape, read_config
from fastflow.model.artifact import DEFAULT, load_model

Array = NDArray[Any]
BASE: dict[str, Any] = {}  # what differs from transformers' BertConfig, which is BERT-base
SEED = 0
BYTES = {"float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2, "int8": 1}


@dataclass(frozen=True)
class Subject:
    """A model under test: where it is, how its hidden states are pooled, and a place for files made of it."""

    label: str
    model: str | None  # what Runtime takes; None is the model in the package
    encoder: Path
    layers: tuple[int, ...]  # the masked mean of these hidden states, averaged
    max_length: int
    shape: EncoderShape
    folder: Path
    weights: Array | None = field(default=None, compare=False, repr=False)  # (vocabulary,) of the mean's tokens

    @property
    def depth(self) -> int:
        """Number of layers."""
        return self.shape.layers

    def matrix_weights(self) -> int:
        """Weights of the layers' matrices, which every pass reads; the embedding tables are only picked from."""
        return self.depth * (4 * self.shape.hidden**2 + 2 * self.shape.hidden * self.shape.intermediate)

    def flop(self, batch: int, tokens: int) -> float:
        """Operations for ``batch`` texts of ``tokens`` tokens; a multiply-add is two; products only."""
        return 2.0 * batch * tokens * (self.matrix_weights() + 2 * self.depth * tokens * self.shape.hidden)


class Workbench:
    """Subjects on demand, with a temporary folder that lives as long as the run."""

    def __init__(self, folder: Path, model: str | None) -> None:
        self.folder, self.model = folder, model
        self._made: dict[str, Subject] = {}

    def base(self) -> Subject:
        """BERT-base with random weights, mean of the last layer."""
        directory = self.folder / "base"
        if not directory.is_dir():
            make_base(directory)
        return self._subject("BERT-base, random weights" if not BASE else "BERT, random weights", str(directory))

    def named(self) -> Subject:
        """The model that was asked for, else the one in the package."""
        return self._subject("the default model" if self.model is None else "the model given", self.model)

    def _subject(self, label: str, model: str | None) -> Subject:
        if label not in self._made:
            loaded = load_model(model)
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
def workbench(model: str | None) -> Iterator[Workbench]:
    """A Workbench whose files are removed afterwards."""
    with TemporaryDirectory(prefix="fastflow-bench-", ignore_cleanup_errors=True) as folder:
        yield Workbench(Path(folder), model)


def make_base(directory: Path) -> None:
    """A BERT with the tokenizer of the model in the package and seeded random weights, in Hugging Face's layout."""
    import transformers

    with quiet():
        torch.manual_seed(SEED)
        transformers.BertModel(transformers.BertConfig(**BASE)).eval().save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEFAULT / "0_Transformer" / name, directory)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the progress bars and remarks of transformers."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        logging.enable_progress_bar()


class Pooled(torch.nn.Module):
    """transformers' encoder and the subject's masked mean: (B, T) ids and mask int64 -> (B, D).

    ``layers`` None: the subject's own, weighted if it is; those named are averaged plainly, every token alike.
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
        self.eval()
        self.layers = subject.layers if layers is None else layers
        self.last = self.layers == (subject.depth,)
        table = subject.weights if layers is None else None
        # a column, looked up as the encoder's own tables are, which every exporter and compiler knows
        self.token_weights: torch.Tensor | None
        self.register_buffer("token_weights", None if table is None else torch.tensor(table)[:, None])

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Pooled vectors in float32; sums are in float32 too."""
        return self._pooled({"input_ids": input_ids, "attention_mask": attention_mask}, attention_mask)

    def unmasked(self, input_ids: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
        """The same for texts of equal length, without the mask that transformers reads back from a GPU."""
        return self._pooled({"input_ids": input_ids}, ones)

    def _pooled(self, given: dict[str, torch.Tensor], attention_mask: torch.Tensor) -> torch.Tensor:
        if self.last:
            hidden = self.encoder(**given).last_hidden_state
        else:
            states = self.encoder(**given, output_hidden_states=True).hidden_states
            hidden = sum(states[layer] for layer in self.layers) / len(self.layers)
        weights = attention_mask.unsqueeze(-1).to(torch.float32)
        if self.token_weights is not None:
            weights = weights * torch.nn.functional.embedding(given["input_ids"], self.token_weights)
        return (hidden.to(torch.float32) * weights).sum(1) / weights.sum(1)


def reference(subject: Subject, layers: tuple[int, ...] | None = None) -> Callable[[Array, Array], Array]:
    """PyTorch in float32, what everybody is checked against; ``layers`` as for Pooled."""
    module = Pooled(subject, torch.float32, layers=layers)

    def run(ids: Array, mask: Array) -> Array:
        with torch.inference_mode():
            return np.asarray(module(torch.from_numpy(ids), torch.from_numpy(mask)).numpy())

    return run
