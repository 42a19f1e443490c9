"""The model on disk: a directory that holds encoder, tokenizer, pooling and calibration, hashed and checked.

    MODEL/fastflow.json, calibration.safetensors, 0_Transformer/..., README.md

Nothing here runs code from the directory, opens a pickle, or touches the network for a local path.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from fastflow import calibration as calibrations
from fastflow.calibration import Stage
from fastflow.errors import FastflowError
from fastflow.pooling import Pooling
from fastflow.truncation import Truncation, read_truncation
from fastflow.weights import (
    WEIGHT_INDEX,
    Arrays,
    encoder_shape,
    has_pooler,
    max_tokens,
    read_config,
    read_tensors,
    weight_files,
)

FORMAT_VERSION = 1
MANIFEST = "fastflow.json"
CALIBRATION = "calibration.safetensors"
ENCODER = "0_Transformer"
CARD = "README.md"
DEFAULT = Path(__file__).parent / "default"


@dataclass(frozen=True)
class Model:
    """A checked model: where its encoder lies, how to pool, the calibration stages, and what identifies it."""

    path: Path
    encoder: Path
    pooling: Pooling
    max_length: int
    calibration: tuple[Stage, ...]
    fingerprint: str
    manifest: dict[str, Any] = field(default_factory=dict)
    note: str | None = None  # one line for stderr when something is assumed
    truncation: Truncation | None = None  # what truncate_dim keeps; None: the first dimensions


def load_model(path: str | Path | None = None) -> Model:
    """The model at ``path``; None is the one shipped in the package; a plain Hugging Face encoder is accepted too."""
    directory = DEFAULT if path is None else Path(path)
    if (directory / MANIFEST).is_file():
        return _load_saved(directory)
    if (directory / "config.json").is_file():
        return _load_plain(directory)
    if not directory.exists():
        raise FastflowError(f"{directory}: no such model directory")
    raise FastflowError(f"{directory} is not a model: it holds neither {MANIFEST} nor config.json")


def _load_plain(directory: Path) -> Model:
    shape = encoder_shape(read_config(directory), directory)
    note = f"{directory} is a plain encoder: no calibration, masked mean of the last layer"
    return Model(
        directory,
        directory,
        Pooling("mean", (shape.layers,)),
        max_tokens(shape),
        (),
        encoder_hash(directory),
        note=note,
    )


def _load_saved(directory: Path) -> Model:
    manifest = read_manifest(directory)
    check_hashes(directory, manifest, [name for name in manifest["files"] if name != CARD])
    encoder = _resolve_encoder(directory, manifest)
    _check_listed(directory, manifest, encoder)
    shape = encoder_shape(read_config(encoder), encoder)
    arrays = read_tensors(directory / CALIBRATION) if manifest["calibration"] else {}
    stages = _stages(directory, manifest, arrays)
    try:
        calibrations.check(stages, shape.hidden)
    except KeyError as error:
        raise FastflowError(f"{directory / MANIFEST}, field calibration: a stage lacks the setting {error}") from error
    pooling = _pooling(directory, manifest["pooling"], shape.layers)
    if pooling.mode == "pooler" and not has_pooler(encoder):
        raise FastflowError(f"{encoder}: pooling 'pooler' needs a pooler, and this encoder has none")
    if not 2 <= manifest["max_length"] <= max_tokens(shape):
        raise FastflowError(f"{directory / MANIFEST}, field max_length: must be 2 to {max_tokens(shape)}")
    if manifest["dim"] != (dim := calibrations.output_dim(stages, shape.hidden)):
        raise FastflowError(f"{directory / MANIFEST}, field dim: says {manifest['dim']}, the calibration gives {dim}")
    truncation = read_truncation(arrays, dim, str(directory / CALIBRATION))
    return Model(
        directory,
        encoder,
        pooling,
        manifest["max_length"],
        stages,
        manifest["fingerprint"],
        manifest,
        truncation=truncation,
    )


def _pooling(directory: Path, entry: dict[str, Any], depth: int) -> Pooling:
    mode, layers = entry.get("mode"), entry.get("layers")
    chosen = tuple(layers) if isinstance(layers, list) else ()
    exist = bool(chosen) and all(type(i) is int and 0 <= i <= depth for i in chosen)
    if exist and (mode == "mean" or (mode == "cls" and len(chosen) == 1) or (mode == "pooler" and chosen == (depth,))):
        return Pooling(mode, chosen)
    raise FastflowError(f"{directory / MANIFEST}, field pooling: {entry} does not fit the encoder's {depth} layers")


def _check_listed(directory: Path, manifest: dict[str, Any], encoder: Path) -> None:
    """Raise for a file that would be read though the manifest holds no hash of it."""
    used = [directory / CALIBRATION] if manifest["calibration"] else []
    used += encoder_files(encoder) if encoder == directory / ENCODER else []
    for path in used:
        if path.relative_to(directory).as_posix() not in manifest["files"]:
            raise FastflowError(f"{path} is not listed in {MANIFEST}: it does not belong to the model; remove it")


_FIELDS = {
    "pooling": dict, "max_length": int, "calibration": list, "dim": int, "encoder": dict, "files": dict,
    "fingerprint": str,
}  # fmt: skip


def read_manifest(directory: Path) -> dict[str, Any]:
    """fastflow.json, its version, fields and own fingerprint checked."""
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FastflowError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FastflowError(f"{path} is not JSON: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format_version") != FORMAT_VERSION:
        found = manifest.get("format_version") if isinstance(manifest, dict) else None
        raise FastflowError(
            f"{path}, field format_version: this fastflow reads version {FORMAT_VERSION}, not {found!r}"
        )
    for name, kind in _FIELDS.items():
        if not isinstance(manifest.get(name), kind):
            raise FastflowError(f"{path}, field {name}: missing or not a {kind.__name__}")
    if manifest["fingerprint"] != fingerprint(manifest):
        raise FastflowError(
            f"{path} was changed after it was saved: its fingerprint does not match; train or copy it anew"
        )
    return manifest


def fingerprint(manifest: dict[str, Any]) -> str:
    """sha256 of the manifest without its own fingerprint: it covers every file through the hashes in it."""
    content = {name: value for name, value in manifest.items() if name != "fingerprint"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def file_hash(path: Path) -> str:
    """sha256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as handle:
            while block := handle.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()
    except OSError as error:
        raise FastflowError(f"{path} cannot be read: {error.strerror}") from error


def check_hashes(directory: Path, manifest: dict[str, Any], names: list[str]) -> None:
    """Compare the named files with the manifest's hashes; the error names the first that is missing or differs."""
    for name in names:
        path, inside = directory / name, PurePosixPath(name)
        if not inside.parts or ".." in inside.parts or inside.is_absolute():
            raise FastflowError(f"{directory / MANIFEST}, field files: {name} lies outside the model")
        if not path.is_file():
            raise FastflowError(f"{path} is missing: the model is incomplete; copy it anew")
        if file_hash(path) != manifest["files"][name]:
            raise FastflowError(f"{path} is damaged: its sha256 differs from {MANIFEST}; copy or train the model anew")


def encoder_files(directory: Path) -> list[Path]:
    """The files that define an encoder: config, weights and tokenizer, in a fixed order."""
    names = ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", WEIGHT_INDEX)
    return [directory / name for name in names if (directory / name).is_file()] + weight_files(directory)


def encoder_hash(directory: Path) -> str:
    """sha256 over the names and hashes of ``encoder_files``: the identity of an encoder directory."""
    digest = hashlib.sha256()
    for path in encoder_files(directory):
        digest.update(f"{path.name} {file_hash(path)}\n".encode())
    return digest.hexdigest()


def _resolve_encoder(directory: Path, manifest: dict[str, Any]) -> Path:
    """The encoder beside the manifest, or the Hub snapshot of the recorded revision with its hash checked."""
    if (directory / ENCODER).is_dir():
        return directory / ENCODER
    encoder = manifest["encoder"]
    if not encoder.get("hub_id"):
        raise FastflowError(f"{directory / ENCODER} is missing: the model is incomplete; copy it anew")
    if not isinstance(encoder.get("revision"), str):
        raise FastflowError(f"{directory / MANIFEST}, field encoder: a Hub id needs the revision it was taken from")
    found = hub_snapshot(encoder["hub_id"], encoder["revision"])
    if encoder_hash(found) != encoder.get("sha256"):
        raise FastflowError(f"{encoder['hub_id']} at {found} differs from the encoder this model was trained with")
    return found


def hub_snapshot(hub_id: str, revision: str | None = None) -> Path:
    """The local folder of a Hub encoder, from the cache when it is there, else downloaded (safetensors only)."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise FastflowError(f"{hub_id} is on the Hub, which needs: pip install huggingface-hub") from error
    patterns = ["config.json", "*.safetensors", "model.safetensors.index.json", "tokenizer*", "vocab*", "merges.txt"]
    try:
        with contextlib.suppress(FileNotFoundError):  # LocalEntryNotFoundError: not in the cache yet
            found = Path(snapshot_download(hub_id, revision=revision, allow_patterns=patterns, local_files_only=True))
            if (found / "config.json").is_file() and any(found.glob("*.safetensors")):  # not a tokenizer alone
                return found
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=patterns))
    except Exception as error:  # the hub client raises its own, requests' and urllib's errors
        reason = str(error).strip().splitlines()[0]
        raise FastflowError(
            f"encoder {hub_id!r} is neither a local directory nor to be had from the Hub: {reason}"
        ) from error


def _stages(directory: Path, manifest: dict[str, Any], arrays: Arrays) -> tuple[Stage, ...]:
    stages = []
    for position, entry in enumerate(manifest["calibration"]):
        if not isinstance(entry, dict):
            raise FastflowError(f"{directory / MANIFEST}, field calibration: stage {position} is not an object")
        prefix = f"{position}."
        params = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
        settings = {name: value for name, value in entry.items() if name != "kind"}
        stages.append(Stage(str(entry.get("kind")), settings, params))
    return tuple(stages)


def verify(path: Path) -> list[str]:
    """Check every file of a saved model, card included, and that it loads; returns what was checked, a line each."""
    manifest = read_manifest(path)
    check_hashes(path, manifest, list(manifest["files"]))
    known = {MANIFEST, *manifest["files"]}
    if extra := sorted(
        str(p.relative_to(path)) for p in path.rglob("*") if p.is_file() and str(p.relative_to(path)) not in known
    ):
        raise FastflowError(f"{path} holds files that {MANIFEST} does not list: {', '.join(extra)}")
    model = load_model(path)
    return [
        f"{len(manifest['files'])} files match their sha256",
        f"calibration {calibrations.describe(model.calibration)}: shapes, dtypes and values are sound",
        f"fingerprint {model.fingerprint}",
    ]
