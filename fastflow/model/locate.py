"""Find a model's directory: in the package, at a path, or in the Hub's cache."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fastflow.errors import FastflowError, UsageError
from fastflow.model import Model, VectorModel
from fastflow.model.hashing import MANIFEST
from fastflow.values import reason, short

OF_ENCODER = ["config.json", "model.safetensors.index.json", "tokenizer*", "vocab*", "merges.txt"]
OF_MODULES = ["modules.json", "config_sentence_transformers.json", "sentence_*_config.json"]
PATTERNS = [*OF_ENCODER, *OF_MODULES, "*.safetensors", *(f"*/{name}" for name in (*OF_ENCODER, OF_MODULES[-1]))]
HUB_ID = re.compile(r"[^\W_][\w.-]{0,95}/[^\W_][\w.-]{0,95}", re.ASCII)
PACKAGED = {
    name: Path(__file__).parent.parent / name for name in ("default", "multilingual", "small", "static", "untuned")
}
DEFAULT, UNTUNED = PACKAGED["default"], PACKAGED["untuned"]
FORMER = "ec43439ff49f64aec6420ee43636c36a690a0527bf91c399a902a47d9b2b2f5b"  # untuned, when it was called default
RENAMED = {FORMER: "26200cf5d76d7f29f61784fc605e63225ed41a26fa5a27081ccc305267836ebc"}  # fingerprints of equal models


def resolve_name(model: str | Path | None) -> Path:
    """Return a model's directory; an existing path wins over a name of PACKAGED."""
    if model is None:
        return DEFAULT
    return PACKAGED[str(model)] if str(model) in PACKAGED and not Path(model).exists() else Path(model)


def is_same_model(made: str, fingerprint: str) -> bool:
    """Return whether a model with ``fingerprint`` gives the vectors of the model with the fingerprint ``made``."""
    return RENAMED.get(made, made) == fingerprint


def find_present_name(run: dict[str, Any]) -> str | None:
    """Return the model that the record of a ``run`` names, by its name now."""
    return "untuned" if run.get("fingerprint") in RENAMED else run.get("model")


def find_packaged_name(directory: Path) -> str | None:
    """Return the name of a packaged model's directory, or None."""
    return next((name for name, place in PACKAGED.items() if place == directory), None)


def find_model(model: str | Path | None, allow_download: bool = False) -> Path:
    """Find a model's directory, else the local folder of a Hub id."""
    directory = resolve_name(model)
    if str(model).startswith(("./", "../")):
        return directory
    if os.path.exists(directory):
        return directory
    return hub_model(str(directory), allow_download) or directory


def resolve_model(model: Any, allow_download: bool) -> Path | Model | VectorModel | None:
    """Check the argument ``model``; returns an open model, an absolute path, or None for the default."""
    if model is None or isinstance(model, Model | VectorModel):
        return model
    if not isinstance(model, str | os.PathLike):
        raise UsageError(f"a model is the path of a directory, not {short(model)}")
    found = find_model(model if isinstance(model, str) else Path(model), allow_download)
    return None if found == DEFAULT else Path(os.path.abspath(found))  # a pickle may be opened in another folder


def list_models() -> Iterator[tuple[str, Path, Path | None]]:
    """Yield name, folder and whole snapshot of packaged models and of the Hub's cache."""
    yield from ((name, place, place) for name, place in PACKAGED.items())
    with suppress(ImportError):
        from huggingface_hub.constants import HF_HUB_CACHE

        for folder in sorted(Path(HF_HUB_CACHE).glob("models--*")):
            name = folder.name.removeprefix("models--").replace("--", "/")
            yield name, folder, find_snapshot(name)


class NotCached(FastflowError):
    """The local cache does not hold the encoder."""


def hub_snapshot(hub_id: str, revision: str | None = None) -> Path:
    """Return a Hub encoder's local folder; fetches it if the cache lacks it."""
    return find_snapshot(hub_id, revision) or _snapshot(hub_id, revision)


def find_snapshot(hub_id: str, revision: str | None = None) -> Path | None:
    """Return a Hub encoder's complete folder in the cache, or None; uses no network."""
    try:
        found = _snapshot(hub_id, revision, local_files_only=True)
    except NotCached:
        return None
    folders = [found, *(path for path in found.iterdir() if path.is_dir())]
    names = ("config.json", "tokenizer.json")  # a StaticEmbedding has no config.json
    whole = any(any((path / name).is_file() for name in names) and any(path.glob("*.safetensors")) for path in folders)
    return found if whole else None


def hub_model(name: str, allow_download: bool) -> Path | None:
    """Return the folder of a Hub repository, fetched if allowed; None if ``name`` is not a Hub id."""
    if not HUB_ID.fullmatch(name):
        return None
    found = hub_snapshot(name) if allow_download else find_snapshot(name)
    if found is None:
        raise FastflowError(
            f"{name}: no such model directory, and not in the local Hub cache either; check the name, or fetch it "
            f"with: fastflow pull {name} -o DIR, and give DIR; in Python allow_download=True does both"
        )
    return found


def find_encoder(directory: Path, entry: dict[str, Any], allow_download: bool) -> Path:
    """Return the encoder's folder, fetched if allowed; its hash is not checked."""
    hub_id, revision = entry.get("hub_id"), entry.get("revision")
    if not isinstance(hub_id, str) or not isinstance(revision, str):
        raise FastflowError(f"{directory / MANIFEST}, field encoder: a Hub id needs the revision it was taken from")
    found = hub_snapshot(hub_id, revision) if allow_download else find_snapshot(hub_id, revision)
    if found is None:
        raise FastflowError(
            f"{directory} holds no encoder, and {hub_id} is not in the local Hub cache: fetch it with "
            f"'hf download {hub_id} --revision {revision}', or open the model with allow_download=True"
        )
    return found


def _snapshot(hub_id: str, revision: str | None, **options: Any) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise FastflowError(f"{hub_id} is on the Hub, which needs: pip install huggingface-hub") from error
    try:
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=PATTERNS, **options))
    except Exception as error:
        kind = NotCached if options and isinstance(error, FileNotFoundError) else FastflowError
        raise kind(
            f"encoder {hub_id!r} is neither a local directory nor to be had from the Hub: {reason(error)}"
        ) from error
