"""A model's tokenizer as tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastflow.exports.record import write_json
from fastflow.model import Model
from fastflow.model.encoder import read_config
from fastflow.model.static.tokens import StaticTokenizer
from fastflow.model.tokenizer.files import load_tokenizer, lowercase_first
from fastflow.values import MOST, read_object, system_errors

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
