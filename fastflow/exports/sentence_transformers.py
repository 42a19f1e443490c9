"""A directory of Sentence Transformers that loads without trust_remote_code.

0_Transformer -> WeightedLayerPooling -> WordWeights -> Pooling -> Dense, Dense, ... -> Normalize
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.exports.record import (
    ExportRecord,
    number_layers,
    read_pooler,
    write_encoder,
    write_json,
    write_static_tokenizer,
    write_tensors,
    write_tokenizer,
)
from fastflow.kernels.encoder import LEAST, Dense, Head, Norm, Unit, head_width
from fastflow.kernels.flow import Plan
from fastflow.model import Model
from fastflow.model.encoder import is_static, size_of
from fastflow.model.hashing import MODULES
from fastflow.model.sentence.directory import SETTINGS
from fastflow.model.sentence.modules import ACTIVATIONS, LEGACY_MODES
from fastflow.model.sentence.weights import WEIGHTS
from fastflow.model.static.table import BAG, open_table
from fastflow.plan import fold
from fastflow.plan.builder import LARGEST
from fastflow.transforms.calibration import output_dim

Array = NDArray[Any]


class DenseChain:
    """Dense modules activation(W x + b) + R x, then a pending map y = map x + shift in float64.

    A coupling u <- u + V h adds two modules: each outputs u, copied by R, and hidden units.
    """

    def __init__(self, width: int) -> None:
        self._modules: list[Dense] = []
        self._map, self._shift = np.eye(width), np.zeros(width)

    def map(self, matrix: Array, shift: Array | float = 0.0) -> None:
        """Apply y <- matrix y + shift."""
        self._map, self._shift = matrix @ self._map, matrix @ self._shift + shift

    def run(self, plan: Plan) -> None:
        if plan.R is not None:
            raise FastflowError(
                "a flow of affine couplings cannot be exported to Sentence Transformers: it multiplies numbers of a "
                "vector, and none of its modules does; fit the model again with --coupling additive"
            )
        if plan.m.any() and not self._modules:  # a module subtracts the mean first: small numbers round less
            self._modules.append(Dense(np.eye(plan.inputs), -plan.m))
        else:
            self._shift = self._shift - plan.m
        self.map(np.diag(plan.s))
        if plan.L is not None:
            self.map(plan.L)
        for k in range(plan.steps):
            self._couple(plan, k)
        self.map(plan.S if plan.gather is None else np.diag(plan.S) @ np.eye(plan.state)[plan.gather], plan.t)

    def _couple(self, plan: Plan, k: int) -> None:
        count, wide = plan.state, plan.width
        own = slice(k * wide, (k + 1) * wide)
        self._relu(self._map, plan.U[own] @ self._map, plan.U[own] @ self._shift + plan.c[own])
        read = np.zeros((wide, count + self._hidden))
        read[:, count : count + wide] = plan.B[k]
        self._relu(np.eye(count, count + self._hidden), read, plan.d[k])
        self._map = np.eye(count, count + self._hidden)
        self._map[:, count : count + wide] = plan.V[:, own]
        self._shift = self._shift + plan.p[k]

    def _relu(self, carried: Array, weight: Array, bias: Array) -> None:
        """Add a module x -> [carried x, relu(weight x + bias)]."""
        count, inputs = carried.shape
        out = count + len(bias)
        out += out == inputs  # with equal widths a module would add x, not R x
        product, residual, shift = np.zeros((out, inputs)), np.zeros((out, inputs)), np.zeros(out)
        residual[:count] = carried
        product[count : count + len(bias)], shift[count : count + len(bias)] = weight, bias
        self._modules.append(Dense(product, shift, "relu", True, residual))
        self._hidden = out - count

    def close(self) -> list[Dense]:
        count, inputs = self._map.shape
        if self._shift.any() or count != inputs or (self._map != np.eye(count)).any():
            self._modules.append(Dense(self._map, self._shift))
        return [_round(module) for module in self._modules]


def _round(module: Dense) -> Dense:
    arrays = [array for array in (module.weight, module.bias, module.projection) if array is not None]
    if not all((np.abs(array) <= LARGEST).all() for array in arrays):  # false for NaN
        raise FastflowError(f"the calibration folds to numbers above {LARGEST:g}, beyond float32; fit it again")
    projection = None if module.projection is None else module.projection.astype(np.float32)
    return module._replace(
        weight=module.weight.astype(np.float32), bias=module.bias.astype(np.float32), projection=projection
    )


def make_modules(model: Model, dim: int | None, normalize: bool) -> Head:
    """Make all modules after the pooling."""
    chain = DenseChain(model.pooled_dim)
    for plan in fold(model.calibration, model.pooled_dim):
        chain.run(plan)
    if dim is not None and model.truncation is not None:
        chain.map(model.truncation.basis[:, :dim].T.astype(np.float64))
    elif dim is not None:
        chain.map(np.eye(dim, output_dim(model.calibration, model.pooled_dim)))
    return [*model.head, *chain.close(), *([Unit()] if normalize else [])]


NEEDED, STATIC, RESIDUAL = "3.0.0", "3.2.0", "5.7.0"  # releases with most modules, StaticEmbedding, use_residual
FOLDERS = {"StaticEmbedding": "Table"}  # not 0_StaticEmbedding, which model2vec would open
HEAVIER = 1e15  # the largest token weight over the least
STRETCH = 2.0**19  # the largest factor of one Dense
LONGER = 4096  # the extra number over the longest row: 1 + 1 / (2 * LONGER**2) is 1 in float32
PATH = {name: kind for kind, name in ACTIVATIONS.items()}


class Writer:
    """A directory to which modules are added in their order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entries: list[dict[str, Any]] = []
        self._release = NEEDED

    def add_module(
        self, kind: str, config: dict[str, Any] | None = None, file: str = "config.json", release: str = NEEDED
    ) -> Path:
        """Add a module that needs Sentence Transformers ``release``; return its folder."""
        self._release = max(self._release, release)
        number = len(self._entries)
        name = f"{number}_{FOLDERS.get(kind, kind)}"
        entry = {"idx": number, "name": str(number), "path": name, "type": f"sentence_transformers.models.{kind}"}
        self._entries.append(entry)
        if config is not None:
            write_json(self.folder / name / file, config, indent=None if kind == "WordWeights" else 2)
        (self.folder / name).mkdir(exist_ok=True)
        return self.folder / name

    def add_word_weights(self, weights: NDArray[np.float32]) -> None:
        ids = map(str, range(len(weights)))  # ids, for words that differ only in case would share a weight
        named = dict(zip(ids, weights.tolist(), strict=True))
        self.add_module("WordWeights", {"vocab": [*named], "word_weights": named, "unknown_word_weight": 1})

    def add_head(self, head: Head, width: int) -> None:
        for module in head:
            if isinstance(module, Dense):
                self._add_dense(module, width)
            elif isinstance(module, Norm):
                where = self.add_module("LayerNorm", {"dimension": width})
                write_tensors(where / WEIGHTS, {"norm.weight": module.scale, "norm.bias": module.bias})
            else:
                self.add_module("Normalize")
            width = head_width([module], width)

    def _add_dense(self, module: Dense, width: int) -> None:
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
        where = self.add_module("Dense", config, release=RESIDUAL if module.residual else NEEDED)
        write_tensors(where / WEIGHTS, {name: np.ascontiguousarray(a, np.float32) for name, a in arrays.items()})

    def finish(self, model: Model, dim: int | None) -> None:
        write_json(self.folder / MODULES, self._entries)
        prompts = {} if model.modules is None else model.modules.prompts
        settings: dict[str, Any] = {
            "__version__": {"sentence_transformers": self._release},
            "prompts": prompts, "default_prompt_name": model.prompts.default, "similarity_fn_name": model.similarity,
        }  # fmt: skip
        if dim is None and model.truncate_dim is not None:
            settings["truncate_dim"] = model.truncate_dim
        write_json(self.folder / SETTINGS, settings)


def write_sentence_transformers(model: Model, folder: Path, record: ExportRecord) -> None:
    """Write the model; raises a FastflowError that names a part that no module computes."""
    head, writer = make_modules(model, record.dim, record.normalize), Writer(folder)
    width = size_of(model.encoder).hidden * len(model.pooling.parts)
    if is_static(model.encoder):
        head, width = _add_table(writer, model, head)
    else:
        _add_transformer(writer, model)
    writer.add_head(head, width)
    writer.finish(model, record.dim)


def _add_transformer(writer: Writer, model: Model) -> None:
    how, layers, size = model.pooling, number_layers(model), size_of(model.encoder)
    settings: dict[str, Any] = {"max_seq_length": model.max_length, "do_lower_case": False}
    if how.weights is not None:
        settings["unpad_inputs"] = False  # unpadded inputs lose the sum of the weights
    where = writer.add_module("Transformer", settings, "sentence_bert_config.json")
    bare = write_encoder(model, where)
    write_tokenizer(model, where)
    if not bare and layers != (size.layers,):
        _add_layers(writer, layers, how.factors, size.layers, size.hidden)
    if how.weights is not None:
        writer.add_word_weights(how.weights)
    modes = ("cls",) if how.mode == "pooler" else how.parts
    writer.add_module("Pooling", make_pooling(modes, size.hidden, model.prompts.pooled))
    if how.mode == "pooler":
        writer.add_head([Dense(*read_pooler(model), "tanh")], size.hidden)


def _add_layers(writer: Writer, layers: Sequence[int], factors: Sequence[float], depth: int, width: int) -> None:
    start = min(layers)
    weights = np.zeros(depth + 1 - start, np.float32)
    weights[np.array(layers) - start] = factors
    config = {"word_embedding_dimension": width, "layer_start": start, "num_hidden_layers": depth}
    write_tensors(writer.add_module("WeightedLayerPooling", config) / WEIGHTS, {"layer_weights": weights})


def make_pooling(modes: Sequence[str], width: int, include_prompt: bool) -> dict[str, Any]:
    """Make the settings of a Pooling."""
    flags = {name: mode in modes for name, mode in LEGACY_MODES.items()}
    config: dict[str, Any] = {"word_embedding_dimension": width, **flags}
    if list(modes) != [mode for mode in LEGACY_MODES.values() if mode in modes]:
        config = {"embedding_dimension": width, "pooling_mode": list(modes)}
    return {**config, "include_prompt": include_prompt}


def _add_table(writer: Writer, model: Model, head: Head) -> tuple[Head, int]:
    """Add the StaticEmbedding of a token table; return later modules and their width.

    The module divides by the number of all tokens, the model by the weight of the kept tokens; Normalize undoes both.
    Without a Normalize at the start of ``head``, each row gets its weight as an extra number, which decides the length;
    Normalize and an enlarging Dense then give the model's mean.
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
    where = writer.add_module("StaticEmbedding", release=STATIC)
    write_tensors(where / WEIGHTS, {BAG: rows * counts[:, None]})
    write_static_tokenizer(model, where)
    return head, rows.shape[1]


def _power(value: float) -> float:
    return float(2.0 ** np.ceil(np.log2(value)))
