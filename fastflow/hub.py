"""Encoders on the Hugging Face Hub, as local folders."""

from __future__ import annotations

import contextlib
from pathlib import Path

from fastflow.errors import FastflowError


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
