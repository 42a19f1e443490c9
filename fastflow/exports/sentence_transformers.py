"""A model as a directory of Sentence Transformers, of its own modules alone: it loads without trust_remote_code.

    0_Transformer -> WeightedLayerPooling -> WordWeights -> Pooling -> Dense, Dense, ... -> Normalize

The encoder lies in a folder of its own, so that a loader of plain encoders finds none: it would leave out the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.exports.chain import modules_of
from fastflow.exports.encoder import pooled_layers, pooler_of, write_encoder
from fastflow.exports.folder import write_json, write_tensors
from fastflow.exports.record import Record
from fastflow.exports.tokens import write_static_tokenizer, write_tokenizer
from fastflow.kernels.encoder.shape import LEAST, Dense, Head, Norm, Unit
from fastflow.model.encoder.architecture import is_static, size_of
from fastflow.model.hashing import MODULES
from fastflow.model.kinds import Model
from fastflow.model.sentence.modules import ACTIVATIONS, LEGACY_MODES
from fastflow.model.sentence.settings import SETTINGS
from fastflow.model.sentence.weights import WEIGHTS
from fastflow.model.static.table import BAG, open_table

NEEDED, STATIC, RESIDUAL = "3.0.0", "3.2.0", "5.7.0"  # the releases: of most modules, StaticEmbedding, use_residual
FOLDERS = {"StaticEmbedding": "Table"}  # in 0_StaticEmbedding model2vec takes the table, without the other modules
HEAVIER = 1e15  # times the least weight of a token: the squares of both are within float32
STRETCH = 2.0**19  # of one Dense: LARGEST of kernels/panels.py is the most that fastflow reads
LONGER = 4096  # times a vector: 1 + 1 / (2 * LONGER**2) is 1 in float32
PATH = {name: kind for kind, name in ACTIVATIONS.items()}


class Writer:
    """A directory to which modules are added in their order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entries: list[dict[str, Any]] = []
        self._release = NEEDED

    def module(
        self, kind: str, config: dict[str, Any] | None = None, file: str = "config.json", release: str = NEEDED
    ) -> Path:
        """Add a module with its settings, which loads from ``release`` on; its folder."""
        self._release = max(self._release, release)
        number = len(self._entries)
        name = f"{number}_{FOLDERS.get(kind, kind)}"
        entry = {"idx": number, "name": str(number), "path": name, "type": f"sentence_transformers.models.{kind}"}
        self._entries.append(entry)
        if config is not None:
            write_json(self.folder / name / file, config, indent=None if kind == "WordWeights" else 2)
        (self.folder / name).mkdir(exist_ok=True)
        return self.folder / name

    def after_pooling(self, head: Head, width: int) -> None:
        """Add the modules of ``head``, for vectors of ``width`` numbers."""
        for module in head:
            if isinstance(module, Dense):
                self._dense(module, width)
            elif isinstance(module, Norm):
                where = self.module("LayerNorm", {"dimension": width})
                write_tensors(where / WEIGHTS, {"norm.weight": module.scale, "norm.bias": module.bias})
            else:
                self.module("Normalize")
            width = module.width(width)

    def _dense(self, module: Dense, width: int) -> None:
        place = "linear" if module.activation == "identity" else "activation"
        config = {
            "in_features": width, "out_features": len(module.weight), "bias": True,
            "activation_function": f"torch.nn.modules.{place}.{PATH[module.activation]}",
        }  # fmt: skip
        arrays = {"linear.weight": module.weight, "linear.bias": module.bias}
        if module.residual:
            config["use_residual"] = True
            if module.projection is not None:
                arrays["residual.weight"] = module.projection
        where = self.module("Dense", config, release=RESIDUAL if module.residual else NEEDED)
        write_tensors(where / WEIGHTS, {name: np.ascontiguousarray(a, np.float32) for name, a in arrays.items()})

    def finish(self, model: Model, dim: int | None) -> None:
        """Write modules.json and the settings of the whole: prompts, similarity, dimensions."""
        write_json(self.folder / MODULES, self._entries)
        prompts = {} if model.modules is None else model.modules.prompts
        settings: dict[str, Any] = {
            "__version__": {"sentence_transformers": self._release},
            "prompts": prompts, "default_prompt_name": model.prompts.default, "similarity_fn_name": model.similarity,
        }  # fmt: skip
        if dim is None and model.truncate_dim is not None:
            settings["truncate_dim"] = model.truncate_dim
        write_json(self.folder / SETTINGS, settings)


def write_sentence_transformers(model: Model, folder: Path, record: Record) -> None:
    """Write the model to ``folder``. Raises a FastflowError that names what no modules can do."""
    head, writer = modules_of(model, record.dim, record.normalize), Writer(folder)
    width = size_of(model.encoder).hidden * len(model.pooling.parts)
    if is_static(model.encoder):
        head, width = _table(writer, model, head)
    else:
        _transformer(writer, model)
    writer.after_pooling(head, width)
    writer.finish(model, record.dim)


def _transformer(writer: Writer, model: Model) -> None:
    """The modules up to the pooling, of an encoder with layers."""
    how, layers, size = model.pooling, pooled_layers(model), size_of(model.encoder)
    settings: dict[str, Any] = {"max_seq_length": model.max_length, "do_lower_case": False}
    if how.weights is not None:
        settings["unpad_inputs"] = False  # FlashAttention without padding leaves the sum of the weights out
    where = writer.module("Transformer", settings, "sentence_bert_config.json")
    bare = write_encoder(model, where)
    write_tokenizer(model, where)
    if not bare and layers != (size.layers,):
        _layers(writer, layers, how.factors, size.layers, size.hidden)
    if how.weights is not None:
        writer.module("WordWeights", _word_weights(how.weights))
    modes = ("cls",) if how.mode == "pooler" else how.parts
    writer.module("Pooling", _pooling(modes, size.hidden, model.prompts.pooled))
    if how.mode == "pooler":
        writer.after_pooling([Dense(*pooler_of(model), "tanh")], size.hidden)


def _layers(writer: Writer, layers: Sequence[int], factors: Sequence[float], depth: int, width: int) -> None:
    start = min(layers)
    weights = np.zeros(depth + 1 - start, np.float32)
    weights[np.array(layers) - start] = factors
    config = {"word_embedding_dimension": width, "layer_start": start, "num_hidden_layers": depth}
    write_tensors(writer.module("WeightedLayerPooling", config) / WEIGHTS, {"layer_weights": weights})


def _word_weights(weights: NDArray[np.float32]) -> dict[str, Any]:
    """By id: words of the vocabulary may differ in their case alone, for which the module takes one weight."""
    names = [str(i) for i in range(len(weights))]
    return {"vocab": names, "word_weights": dict(zip(names, weights.tolist(), strict=True)), "unknown_word_weight": 1}


def _pooling(modes: Sequence[str], width: int, include_prompt: bool) -> dict[str, Any]:
    flags = {name: mode in modes for name, mode in LEGACY_MODES.items()}
    config: dict[str, Any] = {"word_embedding_dimension": width, **flags}
    if list(modes) != [mode for mode in LEGACY_MODES.values() if mode in modes]:  # which stand in another order
        config = {"embedding_dimension": width, "pooling_mode": list(modes)}
    return {**config, "include_prompt": include_prompt}


def _table(writer: Writer, model: Model, head: Head) -> tuple[Head, int]:
    """Add the StaticEmbedding of a token table; returns the modules after it, and the width that they take.

    It divides a sum by the number of all tokens, the model by the weight of the kept ones. A Normalize undoes any
    divisor. If ``head`` does not begin with one, each row gets its weight as one more number, so large next to the
    others that it alone is the length: a Normalize then gives the model's mean, shrunk, and a Dense stretches it.
    """
    table, weights, unknown = open_table(model.encoder), model.pooling.weights, model.tokenizer().left_out
    rows = np.array(table.vectors(np.arange(table.vocabulary), np.float32))
    counts = np.ones(len(rows), np.float32) if weights is None else weights / np.float32(_power(float(weights.min())))
    if counts.max() > HEAVIER:
        raise FastflowError(
            f"the token weights of {model.path} cannot be exported to Sentence Transformers: the largest is over "
            f"{HEAVIER:g} times the least, which its module StaticEmbedding would round away; use --to onnx"
        )
    if unknown is not None:
        counts[unknown] = 0
    if (counts != 1).any() and not (head and isinstance(head[0], Unit)):
        width, size = rows.shape[1], _power(LONGER * max(float(np.linalg.norm(rows, axis=1).max()), LEAST))
        rows = np.column_stack([rows / np.float32(size), np.ones(len(rows), np.float32)])
        stretch, rest = min(size, STRETCH), max(size / STRETCH, 1)
        more = [Dense(np.eye(width) * rest, np.zeros(width))] if rest > 1 else []
        head = [Unit(), Dense(np.eye(width, width + 1) * stretch, np.zeros(width)), *more, *head]
    where = writer.module("StaticEmbedding", release=STATIC)
    write_tensors(where / WEIGHTS, {BAG: rows * counts[:, None]})
    write_static_tokenizer(model, where)
    return head, rows.shape[1]


def _power(value: float) -> float:
    """The power of two from ``value`` on: products with it are exact."""
    return float(2.0 ** np.ceil(np.log2(value)))
