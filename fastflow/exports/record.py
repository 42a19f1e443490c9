"""The files of an export: record, JSON and tensors."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.kernels.encoder import WORDS, mean_position
from fastflow.kernels.stored import widen
from fastflow.model import Model
from fastflow.model.encoder import encoder_shape, is_native, read_config, size_of
from fastflow.model.encoder.weights import SCALES, WEIGHT_INDEX, MappedWeights, weight_files, widen_words
from fastflow.model.static.tokens import StaticTokenizer
from fastflow.model.tensors import MappedTensors
from fastflow.model.tokenizer.files import load_tokenizer, lowercase_first
from fastflow.values import MOST, is_whole, read_object, short, system_errors

RECORD = "fastflow-export.json"


class ExportRecord(NamedTuple):
    """Format, model fingerprint and options of an export."""

    format: str
    fingerprint: str
    dim: int | None = None
    normalize: bool = False
    dtype: str = "float32"

    def options(self) -> dict[str, Any]:
        return {"truncate_dim": self.dim, "normalize_embeddings": self.normalize}

    def check(self, where: Path, fingerprint: str) -> None:
        if self.fingerprint != fingerprint:
            raise FastflowError(
                f"{where} was exported from another model: its fingerprint is {self.fingerprint[:16]}, not "
                f"{fingerprint[:16]}; export the model again"
            )


def read_record(folder: Path, wanted: str) -> ExportRecord:
    """Read the record of an export of the format ``wanted``."""
    path = folder / RECORD
    if not path.is_file():
        raise UsageError(f"{folder} was not written by fastflow export: it has no {RECORD}")
    found = read_object(path)
    kinds = {"format": str, "fingerprint": str, "normalize": bool, "dtype": str}
    for name, kind in kinds.items():
        if not isinstance(found.get(name), kind):
            raise FastflowError(f"{path}, field {name}: must be a {kind.__name__}, not {short(found.get(name))}")
    if (dim := found.get("dim")) is not None and not is_whole(dim, 1):
        raise FastflowError(f"{path}, field dim: must be a whole number or null, not {short(dim)}")
    if found["format"] != wanted:
        raise UsageError(f"{folder} is an export of the format {short(found['format'])}, not {wanted!r}")
    return ExportRecord(found["format"], found["fingerprint"], dim, found["normalize"], found["dtype"])


def write_json(path: Path, value: Any, indent: int | None = 2) -> None:
    """Write ``value`` as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tensors(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write ``arrays`` as a safetensors file that transformers loads too."""
    from safetensors.numpy import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    with system_errors():
        save_file(dict(arrays), path, {"format": "pt"})


CONFIG, WEIGHTS = "config.json", "model.safetensors"
POSITIONS = "embeddings.position_embeddings.weight"
OF_A_LAYER = re.compile(r"(^|\.)layer\.\d+\.")
LAYERS = {"distilbert": "n_layers"}  # other families have num_hidden_layers
WITH_LAYERS = ("modernbert",)  # exported with all layers, even to pool layer 0
FOREIGN = ("auto_map", "torch_dtype", "quantization_config")  # dropped: foreign code; the older name of dtype


def number_layers(model: Model) -> tuple[int, ...]:
    """Return the pooled layers as Sentence Transformers counts them: WORDS becomes layer 0."""
    layers = model.pooling.layers
    if WORDS not in layers:
        return layers
    if len(layers) > 1 and read_config(model.encoder).get("model_type") not in WITH_LAYERS:
        raise FastflowError(
            f"the pooling ({model.pooling.describe()}) cannot be exported to Sentence Transformers: one encoder there "
            "has one position table; fit the model with --pooling words or --pooling first-last, or export it with "
            "--to onnx"
        )
    return tuple(0 if layer == WORDS else layer for layer in layers)


def write_encoder(model: Model, folder: Path) -> bool:
    """Write configuration and weights; return whether unpooled layers were left out."""
    config = {name: value for name, value in read_config(model.encoder).items() if name not in FOREIGN}
    layers, kind = number_layers(model), config.get("model_type")
    config["dtype"] = "float32"  # else weights in half precision would be computed in it
    folder.mkdir(parents=True, exist_ok=True)
    bare = layers == (0,) and is_native(model.encoder) and kind not in WITH_LAYERS
    if bare:
        config[LAYERS.get(str(kind), "num_hidden_layers")] = 0
        write_tensors(folder / WEIGHTS, _read_embedding_layer(model, config))
    elif WORDS in model.pooling.layers and kind not in WITH_LAYERS:
        raise FastflowError(
            f"the pooling ({model.pooling.describe()}) of an encoder of the architecture {kind} cannot be exported to "
            "Sentence Transformers; fit the model with another --pooling"
        )
    else:
        index = model.encoder / WEIGHT_INDEX
        for path in [*weight_files(model.encoder), *([index] if index.is_file() else [])]:
            if path != index and SCALES in (arrays := MappedTensors(path).arrays):
                write_tensors(folder / path.name, widen_words({name: np.array(a) for name, a in arrays.items()}))
            else:
                shutil.copyfile(path, folder / path.name)
        config["output_hidden_states"] = layers != (size_of(model.encoder).layers,)
    write_json(folder / CONFIG, config)
    return bare


def _read_embedding_layer(model: Model, config: dict[str, Any]) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    for path in weight_files(model.encoder):
        for name, array in MappedTensors(path).arrays.items():
            if not OF_A_LAYER.search(name):
                found[name] = np.array(widen(array))
    found = widen_words(found)
    if WORDS in model.pooling.layers:  # every row of positions becomes their mean
        name = next(name for name in found if name.endswith(POSITIONS))
        start = encoder_shape(read_config(model.encoder), model.encoder).position_start
        mean = mean_position(found[name].astype(np.float32), start)
        found[name] = np.tile(mean, (len(found[name]), 1))
    return found


def read_pooler(model: Model) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Read weight (D, D) and bias (D,) of BERT's pooler."""
    config = read_config(model.encoder)
    stored = MappedWeights(model.encoder, config, encoder_shape(config, model.encoder)).stored
    weight, bias = (np.array(widen(np.asarray(stored[f"pooler.{name}"])), np.float32) for name in ("weight", "bias"))
    return weight, bias


SETTINGS = "tokenizer_config.json"
NAMES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token", "bos_token", "eos_token")
LONGEST = 2**31 - 1  # model_max_length, for loaders that need 32 bits
UNLIMITED = 10**30  # no limit, as transformers writes it


def write_tokenizer(model: Model, folder: Path, batches: bool = False) -> None:
    """Write tokenizer.json and its settings; ``batches``: tokenizer.json pads and cuts too."""
    library = load_tokenizer(model.encoder)
    if model.modules is not None and model.modules.transformer.do_lower_case:
        lowercase_first(library)
    library.no_padding()
    library.no_truncation()
    pad = read_config(model.encoder).get("pad_token_id")
    settings = _make_settings(model.encoder, library, model.max_length, pad)
    if batches:
        name = settings["pad_token"]
        library.enable_truncation(model.max_length)
        library.enable_padding(pad_id=library.token_to_id(name), pad_token=name)
    folder.mkdir(parents=True, exist_ok=True)
    with system_errors():
        library.save(str(folder / "tokenizer.json"), pretty=False)
    write_json(folder / SETTINGS, settings)


def write_static_tokenizer(model: Model, folder: Path, batches: bool = False) -> None:
    """Write the tokenizer of a token table; it keeps the unknown id, which the table leaves out."""
    tokenizer = model.tokenizer()
    assert isinstance(tokenizer, StaticTokenizer)  # noqa: S101 - for mypy
    library = load_tokenizer(model.encoder)
    state = json.loads(library.to_str())
    state["post_processor"], state["padding"], state["truncation"] = None, None, None
    if (most := tokenizer.most_characters) is not None:
        cut = {"type": "Replace", "pattern": {"Regex": rf"(?<=\A[\s\S]{{{most}}})[\s\S]+"}, "content": ""}
        own = [] if state["normalizer"] is None else [state["normalizer"]]
        state["normalizer"] = {"type": "Sequence", "normalizers": [cut, *own]}
    if tokenizer.max_length < MOST:
        state["truncation"] = {
            "direction": "Right", "max_length": tokenizer.max_length, "strategy": "LongestFirst", "stride": 0,
        }  # fmt: skip
    limit = tokenizer.max_length if tokenizer.max_length < MOST else UNLIMITED
    settings = _make_settings(model.encoder, library, limit, None)
    if batches:
        name = settings["pad_token"]
        state["padding"] = {
            "strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None,
            "pad_id": library.token_to_id(name), "pad_type_id": 0, "pad_token": name,
        }  # fmt: skip
        settings["model_max_length"] = min(limit, LONGEST)
    write_json(folder / "tokenizer.json", state, indent=None)
    write_json(folder / SETTINGS, settings)


def _make_settings(source: Path, library: Any, limit: int, pad: int | None) -> dict[str, Any]:
    own = source / SETTINGS
    told = read_object(own) if own.is_file() else {}
    found: dict[str, Any] = {name: token for name in NAMES if (token := _content(told.get(name), library)) is not None}
    if pad is not None and (token := library.id_to_token(pad)) is not None:
        found["pad_token"] = token
    found.setdefault("pad_token", library.id_to_token(0))
    splitter = {} if library.pre_tokenizer is None else json.loads(library.pre_tokenizer.__getstate__())
    if splitter.get("add_prefix_space"):  # transformers 4 would drop the field
        found["add_prefix_space"] = True
    # an architecture's own class may change the rules
    return {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": limit, "padding_side": "right", **found}


def _content(token: Any, library: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) and library.token_to_id(text) is not None else None
