"""A directory saved by Sentence Transformers -> its modules, strictly: every setting is known or an error names it.

modules.json                        the modules in their order, each with its folder and type
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
from fastflow.model.architecture import encoder_size, read_config
from fastflow.model.hashing import is_file
from fastflow.model.reading import is_whole, read_json, read_object, short
from fastflow.model.sentence_modules import (
    DenseModule,
    NormalizeModule,
    PoolingModule,
    TransformerModule,
    check_fields,
    read_dense,
    read_normalize,
    read_pooling,
    read_transformer,
)

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
KNOWN = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout")
# sentence_transformers.models.Pooling, or since 5.4 sentence_transformers.base.modules.dense.Dense and the like
TYPE = re.compile(
    r"sentence_transformers\.(?:models|base\.modules|sentence_transformer\.modules)\."
    rf"(?:(\w+)\.)?({'|'.join(KNOWN)})"
)
SIMILARITIES = {
    "cosine": "cosine",
    "dot": "dot",
    "dot_product": "dot",
    "euclidean": "euclidean",
    "manhattan": "manhattan",
}


@dataclass(frozen=True)
class Modules:
    """Everything that decides an embedding of the directory: modules in their order, prompts and similarity.

    ``after`` follow the pooling. ``dim`` is the width of an embedding, before ``truncate_dim``.
    """

    path: Path
    transformer: TransformerModule
    pooling: PoolingModule
    after: tuple[DenseModule | NormalizeModule, ...]
    dim: int
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    similarity: str = "cosine"
    truncate_dim: int | None = None

    def beyond_encoder(self) -> str:
        """The modules and settings that an encoder alone does not have, by name."""
        named = [str(module) for module in (self.pooling, *self.after)]
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

    def cannot_run(self) -> FastflowError:
        """The error for a directory that is opened as a model."""
        return FastflowError(
            f"{self.path} was saved by Sentence Transformers, and fastflow does not run its modules yet "
            f"({self.beyond_encoder()}): open it with Sentence Transformers, or calibrate its encoder with "
            f"fastflow-train CORPUS --encoder {self.path} --out MODEL"
        )

    def unused(self) -> str:
        """The warning for a calibration that is fitted on the encoder alone."""
        return (
            f"{self.path} was saved by Sentence Transformers: the calibration uses its encoder alone, without "
            f"{self.beyond_encoder()}"
        )


def read_modules(directory: Path) -> Modules | None:
    """The modules of ``directory``, None where it has no modules.json.

    Raises a FastflowError that names file and field for a module or a setting that is unknown, missing, or does not
    fit the others.
    """
    if not is_file(directory / MODULES):
        return None
    entries = _entries(directory)
    kinds = [kind for kind, _ in entries]
    where = directory / MODULES
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise FastflowError(f"{where}: must begin with a Transformer and a Pooling, not with {', '.join(kinds[:2])}")
    for kind in ("Transformer", "Pooling"):
        if kinds.count(kind) > 1:
            raise FastflowError(f"{where}: holds {kinds.count(kind)} modules of the type {kind}, where one can run")
    transformer = read_transformer(entries[0][1])
    size = encoder_size(read_config(transformer.directory), transformer.directory)
    if (transformer.max_seq_length or 0) >= size.max_tokens:
        transformer = replace(transformer, max_seq_length=None)
    pooling, width = read_pooling(entries[1][1], size.hidden)
    after: list[DenseModule | NormalizeModule] = []
    for kind, folder in entries[2:]:
        if kind == "Dense":
            dense = read_dense(folder, width)
            after.append(dense)
            width = dense.out_features
        elif kind == "Normalize":
            read_normalize(folder)
            after.append(NormalizeModule())
    return Modules(directory, transformer, pooling, tuple(after), width, **_settings(directory, width))


def encoder_folder(directory: Path) -> Path:
    """The folder of the encoder: that of the Transformer where there is a modules.json, else ``directory``."""
    modules = read_modules(directory)
    return directory if modules is None else modules.transformer.directory


def _entries(directory: Path) -> list[tuple[str, Path]]:
    """(kind, folder) of each module."""
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
    """Transformer, Pooling, Dense, Normalize or Dropout."""
    match = TYPE.fullmatch(name)
    if match is None or match[1] not in (None, match[2], match[2].lower()):
        raise FastflowError(f"{place}, field type: {short(name)} is unknown; known modules are {', '.join(KNOWN)}")
    return match[2]


def _folder(directory: Path, path: str, place: str) -> Path:
    """The folder ``path`` inside ``directory``; raises for a path that leads out of it, on any system."""
    windows = PureWindowsPath(path)
    if windows.anchor or ".." in windows.parts or "\0" in path or "\\" in path:
        raise FastflowError(f"{place}, field path: {short(path)} lies outside the directory")
    return directory / path


def _settings(directory: Path, width: int) -> dict[str, Any]:
    """prompts, default_prompt, similarity and truncate_dim, as Modules takes them."""
    where = directory / SETTINGS
    if not is_file(where):
        return {}
    found, place = read_object(where), str(where)
    names = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim")
    check_fields(found, ("__version__", "model_type", *names), place)
    if found.get("model_type", "SentenceTransformer") != "SentenceTransformer":
        raise FastflowError(
            f"{place}, field model_type: only SentenceTransformer is supported, not {short(found['model_type'])}"
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
    }
