"""Changes of a saved model: with hashes that fit, so that only its content can be wrong, or without."""

import json
from pathlib import Path

from fastflow.model.hashing import file_hash
from fastflow.model.manifest import fingerprint


def change_manifest(directory: Path, forge: bool = True, **fields: object) -> Path:
    """Rewrite fastflow.json; ``...`` removes a field. ``forge`` makes its fingerprint agree again."""
    path = directory / "fastflow.json"
    manifest = {**json.loads(path.read_text()), **fields}
    manifest = {name: value for name, value in manifest.items() if value is not ...}
    if forge and "fingerprint" in manifest:
        manifest["fingerprint"] = fingerprint(manifest)
    path.write_text(json.dumps(manifest))
    return directory


def rehash(directory: Path) -> Path:
    """Make the manifest agree with the files as they are: only their content can still be wrong."""
    names = json.loads((directory / "fastflow.json").read_text())["files"]
    return change_manifest(directory, files={name: file_hash(directory / name) for name in names})
