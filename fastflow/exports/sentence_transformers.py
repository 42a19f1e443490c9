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

from fastflow.exports.chain import modules_of
from fastflow.exports.encoder import pooled_layers, pooler_of, write_encoder
from fastflow.exports.folder import write_json, write_tensors
from fastflow.exports.record import Record
from fastflow.exports.tokens import write_static_tokenizer, write_tokenizer
from fastflow.kernels.encoder.shape import Dense, Head, Norm, Unit
from fastflow.model.architecture import is_static, size_of
from fastflow.model.hashing import MODULES
from fastflow.model.kinds import Model
from fastflow.model.sentence_modules import ACTIVATIONS, LEGACY_MODES
from fastflow.model.sentence_settings import SETTINGS
from fastflow.model.sentence_weights import WEIGHTS
from fastflow.model.static import BAG, open_table
from fastflow.values import MOST

NEEDED, RESIDUAL = "3.0.0", "5.7.0"  # the release that loads the modules; that with use_residual
NO_LIMIT = 1_000_000  # tokens, as the module WordEmbeddings has it
TOKENIZER = "sentence_transformers.models.tokenizer.TransformersTokenizerWrapper"
PATH = {name: kind for kind, name in ACTIVATIONS.items()}


class Writer:
    """A directory to which modules are added in their order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entries: list[dict[str, Any]] = []
        self._release = NEEDED

    def module(self, kind: str, config: dict[str, Any] | None = None, file: str = "config.json") -> Path:
        """Add a module with its settings; its folder."""
        number = len(self._entries)
        name = f"{number}_{kind}"
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
            config["use_residual"], self._release = True, RESIDUAL
            if module.projection is not None:
                arrays["residual.weight"] = module.projection
        where = self.module("Dense", config)
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
    if is_static(model.encoder):
        _table(writer, model, head)
    else:
        _transformer(writer, model)
    writer.after_pooling(head, size_of(model.encoder).hidden * len(model.pooling.parts))
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


def _table(writer: Writer, model: Model, head: Head) -> None:
    """The modules up to the pooling, of a token table: a StaticEmbedding if the mean counts every token once.

    If a Normalize comes first in ``head``, the count does not matter, so that the row of an id that is left out is 0.
    """
    table, weights, unknown = open_table(model.encoder), model.pooling.weights, model.tokenizer().left_out
    rows = np.array(table.vectors(np.arange(table.vocabulary), np.float32))
    if unknown is not None:
        rows[unknown] = 0
    if weights is None and (unknown is None or (head and isinstance(head[0], Unit))):
        where = writer.module("StaticEmbedding")
        write_tensors(where / WEIGHTS, {BAG: rows})
        write_static_tokenizer(model, where)
        return
    weights = np.ones(len(rows), np.float32) if weights is None else np.array(weights)
    if unknown is not None:
        weights[unknown] = 0
    limit = NO_LIMIT if model.max_length == MOST else model.max_length
    config = {"tokenizer_class": TOKENIZER, "update_embeddings": False, "max_seq_length": limit}
    where = writer.module("WordEmbeddings", config, "wordembedding_config.json")
    write_tensors(where / WEIGHTS, {"emb_layer.weight": rows})
    write_static_tokenizer(model, where)
    writer.module("WordWeights", _word_weights(weights))
    writer.module("Pooling", _pooling(("mean",), rows.shape[1], True))
