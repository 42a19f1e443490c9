"""Read a directory saved by Sentence Transformers.

modules.json                        the modules in order, with folder and type
sentence_bert_config.json           of the Transformer: max_seq_length, do_lower_case
1_Pooling/config.json, 2_Dense/...  of the other modules
config_sentence_transformers.json   prompts, similarity
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path, PureWindowsPath
from typing import Any

from fastflow.errors import FastflowError
from fastflow.model.encoder import is_model2vec, read_config, size_of
from fastflow.model.hashing import MODULES, is_file
from fastflow.model.sentence.modules import (
    DenseModule,
    LayerNormModule,
    LayersModule,
    NormalizeModule,
    PoolingModule,
    StaticModule,
    TransformerModule,
    WordWeightsModule,
    check_fields,
    read_dense,
    read_layer_norm,
    read_layers,
    read_normalize,
    read_pooling,
    read_transformer,
)
from fastflow.model.static.table import open_table
from fastflow.values import is_whole, read_json, read_object, short

KNOWN = (
    *("Transformer", "Pooling", "Dense", "Normalize", "LayerNorm", "Dropout"),
    *("WordWeights", "WeightedLayerPooling", "StaticEmbedding"),
)
# before Sentence Transformers 5.4, and since
TYPE = re.compile(
    r"sentence_transformers\.(?:models|base\.modules|sentence_transformer\.modules)\."
    rf"(?:(\w+)\.)?({'|'.join(KNOWN)})"
)
BEFORE = (
    ["Transformer"],
    ["Transformer", "WeightedLayerPooling"],
    ["Transformer", "WordWeights"],
    ["Transformer", "WeightedLayerPooling", "WordWeights"],
)
FILES = {
    "WordWeights": "word_weights", "WeightedLayerPooling": "weighted_layer_pooling", "LayerNorm": "layer_norm",
    "StaticEmbedding": "static_embedding",
}  # fmt: skip
SETTINGS = "config_sentence_transformers.json"
SIMILARITIES = {
    "cosine": "cosine",
    "dot": "dot",
    "dot_product": "dot",
    "euclidean": "euclidean",
    "manhattan": "manhattan",
}
AFTER = ("Dense", "Normalize", "LayerNorm", "Dropout")


After = DenseModule | LayerNormModule | NormalizeModule


@dataclass(frozen=True)
class Modules:
    """Modules of a directory in order, prompts and similarity.

    ``dim``: width of an embedding before ``truncate_dim``. ``folders``: the folders after the Transformer's.
    """

    path: Path
    transformer: TransformerModule
    pooling: PoolingModule
    after: tuple[After, ...]
    dim: int
    layers: LayersModule | None = None
    word_weights: WordWeightsModule | None = None
    folders: tuple[Path, ...] = ()
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    similarity: str = "cosine"
    truncate_dim: int | None = None

    def names(self) -> list[str]:
        before = [module for module in (self.layers, self.word_weights) if module is not None]
        return [str(module) for module in (*before, self.pooling, *self.after)]

    def beyond_encoder(self) -> str:
        named = self.names()[isinstance(self.pooling, StaticModule) :]
        if self.transformer.do_lower_case:
            named.append("do_lower_case")
        if self.transformer.max_seq_length is not None:
            named.append(f"max_seq_length {self.transformer.max_seq_length}")
        if prompts := [name for name, prompt in self.prompts.items() if prompt]:
            named.append(f"prompts ({', '.join(prompts)})")
        if self.similarity != "cosine":
            named.append(f"similarity {self.similarity}")
        if self.truncate_dim is not None:
            named.append(f"truncate_dim {self.truncate_dim}")
        return ", ".join(named)

    def warn_of_unused(self) -> str:
        return (
            f"{self.path} was saved by Sentence Transformers: the calibration uses its encoder alone, without "
            f"{self.beyond_encoder()}"
        )


def read_modules(directory: Path) -> Modules | None:
    """Read the modules; None without a modules.json, or if model2vec wrote it."""
    if not is_file(directory / MODULES) or is_model2vec(directory):
        return None
    entries = read_entries(directory)
    kinds = [kind for kind, _ in entries]
    where = directory / MODULES
    if kinds[0] == "StaticEmbedding":
        return _read_static(directory, entries)
    before = kinds[: kinds.index("Pooling")] if "Pooling" in kinds else kinds
    if before not in BEFORE or len(before) == len(kinds):
        raise FastflowError(
            f"{where}: must begin with a Transformer and a Pooling, not with {', '.join(kinds[: len(before) + 1][:4])}"
            "; WeightedLayerPooling and then WordWeights may come between them, and a StaticEmbedding in their place"
        )
    for kind in ("Transformer", "Pooling", "WeightedLayerPooling", "WordWeights"):
        if kinds.count(kind) > 1 or kind in kinds[len(before) + 1 :]:
            raise FastflowError(f"{where}: holds {kinds.count(kind)} modules of the type {kind}, where one can run")
    folder_of = dict(reversed(entries))
    transformer = read_transformer(folder_of["Transformer"])
    config = read_config(transformer.directory)
    size = size_of(transformer.directory)
    if (transformer.max_seq_length or 0) >= size.max_tokens:
        transformer = replace(transformer, max_seq_length=None)
    layers = word_weights = None
    if "WeightedLayerPooling" in before:
        folder = folder_of["WeightedLayerPooling"]
        layers = read_layers(folder, config, transformer.directory, size.hidden, size.layers)
    if "WordWeights" in before:
        word_weights = WordWeightsModule(folder_of["WordWeights"])
    pooling, width = read_pooling(folder_of["Pooling"], size.hidden)
    after, width = _read_after(entries[len(before) + 1 :], width)
    folders = tuple(folder for kind, folder in entries if kind != "Transformer")
    return Modules(
        directory, transformer, pooling, after, width, layers, word_weights, folders, **read_settings(directory, width)
    )  # fmt: skip


def _read_static(directory: Path, entries: list[tuple[str, Path]]) -> Modules:
    if odd := [kind for kind, _ in entries[1:] if kind not in AFTER]:
        raise FastflowError(f"{directory / MODULES}: {odd[0]} cannot come after a StaticEmbedding")
    folder = entries[0][1]
    if is_file(folder / "config.json") and not is_model2vec(folder):
        raise FastflowError(f"{folder / 'config.json'} has no place next to a StaticEmbedding: remove it")
    if is_model2vec(folder):
        raise FastflowError(f"{folder / 'config.json'} is model2vec's, whose vectors differ: open {folder} itself")
    after, width = _read_after(entries[1:], open_table(folder).rows.shape[1])
    return Modules(
        directory, TransformerModule(folder, None, False), StaticModule(("mean",), True), after, width,
        folders=tuple(folder for _, folder in entries[1:]), **read_settings(directory, width),
    )  # fmt: skip


def _read_after(entries: list[tuple[str, Path]], width: int) -> tuple[tuple[After, ...], int]:
    after: list[After] = []
    for kind, folder in entries:
        if kind == "Dense":
            dense = read_dense(folder, width)
            after.append(dense)
            width = dense.out_features
        elif kind == "LayerNorm":
            after.append(read_layer_norm(folder, width))
        elif kind == "Normalize":
            read_normalize(folder)
            after.append(NormalizeModule())
    return tuple(after), width


def read_settings(
    directory: Path, width: int, kind: str = "SentenceTransformer", more: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Read prompts, default_prompt, similarity and truncate_dim, the fields of Modules, and the fields ``more``."""
    where = directory / SETTINGS
    if not is_file(where):
        return {}
    found, place = read_object(where), str(where)
    names = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim")
    check_fields(found, ("__version__", "model_type", *names, *more), place)
    if found.get("model_type", "SentenceTransformer") != kind:
        raise FastflowError(
            f"{place}, field model_type: only {kind} is supported, not {short(found.get('model_type'))}"
        )
    prompts = found.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str | None) for prompt in prompts.values()):
        raise FastflowError(f"{place}, field prompts: must be an object of texts")
    default = found.get("default_prompt_name")
    if default is not None and (not isinstance(default, str) or prompts.get(default) is None):
        raise FastflowError(f"{place}, field default_prompt_name: {short(default)} is not the name of a prompt")
    similarity = found.get("similarity_fn_name") or "cosine"
    if not isinstance(similarity, str) or similarity not in SIMILARITIES:
        known = ", ".join(SIMILARITIES)
        raise FastflowError(f"{place}, field similarity_fn_name: {short(similarity)} is unknown; known are {known}")
    dim = found.get("truncate_dim")
    if dim is not None and not is_whole(dim, 1, width):
        raise FastflowError(f"{place}, field truncate_dim: must be 1 to {width}, not {short(dim)}")
    return {
        "prompts": {name: prompt for name, prompt in prompts.items() if prompt is not None},
        "default_prompt": default,
        "similarity": SIMILARITIES[similarity],
        "truncate_dim": dim,
        **{name: found.get(name) for name in more},
    }


def encoder_folder(directory: Path) -> Path:
    """Return the Transformer's folder, else ``directory``."""
    modules = read_modules(directory)
    return directory if modules is None else modules.transformer.directory


def read_entries(directory: Path) -> list[tuple[str, Path]]:
    """Return kind and folder of each module in modules.json."""
    where = directory / MODULES
    found = read_json(where)
    if not isinstance(found, list) or not found:
        raise FastflowError(f"{where} cannot be read: it does not hold a list of modules")
    out: list[tuple[str, Path]] = []
    seen: set[str] = set()
    for index, entry in enumerate(found):
        place = f"{where}, module {index}"
        if not isinstance(entry, dict):
            raise FastflowError(f"{place}: not an object")
        check_fields(entry, ("idx", "name", "path", "type", "kwargs"), place)
        for name in ("name", "path", "type"):
            if not isinstance(entry.get(name), str):
                raise FastflowError(f"{place}, field {name}: missing or not a text")
        if entry.get("idx", index) != index:
            raise FastflowError(
                f"{place}, field idx: must be {index}, its place in the list, not {short(entry['idx'])}"
            )
        if entry.get("kwargs"):
            raise FastflowError(f"{place}, field kwargs: arguments of a module are not supported")
        if entry["name"] in seen:
            raise FastflowError(f"{place}, field name: {short(entry['name'])} is there twice")
        seen.add(entry["name"])
        out.append((_kind(entry["type"], place), _folder(directory, entry["path"], place)))
    folders = [folder for _, folder in out]
    for index, folder in enumerate(folders):
        if folder in folders[:index]:
            raise FastflowError(
                f"{where}, module {index}, field path: {short(str(found[index]['path']))} is there twice"
            )
    return out


def _kind(name: str, place: str) -> str:
    match = TYPE.fullmatch(name)
    if match is None or match[1] not in (None, match[2], FILES.get(match[2], match[2].lower())):
        raise FastflowError(f"{place}, field type: {short(name)} is unknown; known modules are {', '.join(KNOWN)}")
    return match[2]


def _folder(directory: Path, path: str, place: str) -> Path:
    windows = PureWindowsPath(path)
    if windows.anchor or ".." in windows.parts or not path.isprintable() or "\\" in path:
        raise FastflowError(f"{place}, field path: {short(path)} lies outside the directory")
    return directory / path
