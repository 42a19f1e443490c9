"""``fastflow.json``, the record of a saved model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastflow.errors import FastflowError
from fastflow.kernels.encoder import WORDS
from fastflow.model.encoder import vocabulary_of
from fastflow.model.hashing import MANIFEST
from fastflow.model.tensors import Arrays
from fastflow.transforms.calibration import Stage
from fastflow.transforms.pooling import BY_SHARES, WEIGHTED, Pooling, check_weights
from fastflow.values import is_whole, read_object, short

FORMAT_VERSION = 1
VECTORS_VERSION = 2  # without an encoder
MODULES_VERSION = 3  # with Sentence Transformers' modules
CALIBRATION = "calibration.safetensors"
WEIGHTS_ARRAY = "token_weights"  # an array in the file CALIBRATION
ENCODER = "0_Transformer"
MODULES_FOLDER = "0_SentenceTransformer"
MODULES_POOLING = {"mode": "modules", "calibration": "last"}
CARD = "README.md"
LARGEST = 1e300
SHARES_ERROR = 1e-6

_COMMON = {"calibration": list, "dim": int, "files": dict, "fingerprint": str}
_WITH_ENCODER = {"pooling": dict, "max_length": int, "encoder": dict, **_COMMON}
_FIELDS = {
    FORMAT_VERSION: _WITH_ENCODER,
    VECTORS_VERSION: {"input_dim": int, **_COMMON},
    MODULES_VERSION: _WITH_ENCODER,
}
_OF_TEXTS = ("pooling", "max_length", "least_cosine", "likelihood", "int8")  # likelihood: of default, not used


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read fastflow.json; checks version, fields and fingerprint."""
    path = directory / MANIFEST
    manifest = read_object(path)
    if not is_whole(found := manifest.get("format_version"), min(_FIELDS), max(_FIELDS)):
        known = f"{min(_FIELDS)} to {max(_FIELDS)}"
        raise FastflowError(f"{path}, field format_version: this fastflow reads versions {known}, not {short(found)}")
    for name, kind in _FIELDS[manifest["format_version"]].items():
        if not isinstance(manifest.get(name), kind):
            raise FastflowError(f"{path}, field {name}: missing or not a {kind.__name__}")
    if found == VECTORS_VERSION:
        _check_no_encoder(path, manifest)
    if not isinstance(manifest.get("least_cosine", {}), dict):
        raise FastflowError(f"{path}, field least_cosine: not an object")
    try:
        same = manifest["fingerprint"] == fingerprint(manifest)
    except RecursionError:
        raise FastflowError(f"{path} cannot be read: its JSON is nested too deep") from None
    if not same:
        raise FastflowError(
            f"{path} was changed after it was saved: its fingerprint does not match; train or copy it again"
        )
    return manifest


def _check_no_encoder(path: Path, manifest: dict[str, Any]) -> None:
    if "encoder" not in manifest or manifest["encoder"] is not None:
        raise FastflowError(f"{path}, field encoder: must be null in format version {VECTORS_VERSION}")
    if odd := [name for name in _OF_TEXTS if name in manifest]:
        raise FastflowError(f"{path}, field {odd[0]}: a model without an encoder has none")
    if odd := [name for name in manifest["files"] if name not in (CALIBRATION, CARD)]:
        raise FastflowError(f"{path}, field files: {short(odd[0])} does not belong to a model without an encoder")
    if (path.parent / ENCODER).exists():
        raise FastflowError(
            f"{path}, field encoder: says there is none, and {path.parent / ENCODER} is there; remove it"
        )


def fingerprint(manifest: dict[str, Any]) -> str:
    """Return the sha256 of the manifest without its fingerprint."""
    content = {name: value for name, value in manifest.items() if name != "fingerprint"}
    from hashlib import sha256

    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_files_listed(directory: Path, manifest: dict[str, Any], files: Sequence[Path]) -> None:
    """Raise for a file without a hash in the manifest."""
    for path in files:
        if path.relative_to(directory).as_posix() not in manifest["files"]:
            raise FastflowError(f"{path} is not listed in {MANIFEST}: it does not belong to the model; remove it")


def read_stages(directory: Path, manifest: dict[str, Any], arrays: Arrays) -> tuple[Stage, ...]:
    """Read the stages in the field calibration; the caller checks shapes."""
    stages: list[Stage] = []
    if (count := len(manifest["calibration"])) > len(arrays):
        where = f"{directory / MANIFEST}, field calibration"
        raise FastflowError(f"{where}: {count} stages, and {CALIBRATION} holds {len(arrays)} arrays")
    for position, entry in enumerate(manifest["calibration"]):
        if not isinstance(entry, dict):
            raise FastflowError(f"{directory / MANIFEST}, field calibration: stage {position} is not an object")
        prefix = f"{position}."
        params = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
        settings = {name: value for name, value in entry.items() if name != "kind"}
        stages.append(Stage(str(entry.get("kind")), settings, params))
    return tuple(stages)


def read_pooling(directory: Path, entry: dict[str, Any], depth: int, encoder: Path, arrays: Arrays) -> Pooling:
    """Read the pooling ``entry`` for an encoder of ``depth`` layers, with token weights from ``arrays``."""
    mode, layers, weights, shares = entry.get("mode"), entry.get("layers"), None, None
    if by_shares := isinstance(mode, str) and mode.endswith(BY_SHARES):
        mode, shares = mode.removesuffix(BY_SHARES), _shares(entry.get("shares"))
    if mode == WEIGHTED:
        where = f"{directory / CALIBRATION}, array {WEIGHTS_ARRAY}"
        mode, weights = "mean", check_weights(arrays.get(WEIGHTS_ARRAY), vocabulary_of(encoder), where)
    chosen = tuple(layers) if isinstance(layers, list) else ()
    least = WORDS if mode == "mean" else 0  # WORDS, without positions, can only be averaged
    exist = bool(chosen) and all(is_whole(i, least, depth) for i in chosen) and len(set(chosen)) == len(chosen)
    if by_shares:
        exist = exist and mode == "mean" and shares is not None and len(shares) == len(chosen)
    elif "shares" in entry:
        exist = False
    if exist and (mode == "mean" or (mode == "cls" and len(chosen) == 1) or (mode == "pooler" and chosen == (depth,))):
        return Pooling(mode, chosen, weights, shares)
    raise FastflowError(
        f"{directory / MANIFEST}, field pooling: {short(entry)} does not fit the encoder's {depth} layers"
    )


def _shares(found: object) -> tuple[float, ...] | None:
    if not isinstance(found, list) or not all(type(share) is float and 0 < share <= 1 for share in found):
        return None
    return tuple(found) if abs(sum(found) - 1) <= SHARES_ERROR else None
