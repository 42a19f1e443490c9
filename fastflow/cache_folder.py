"""The folder of files kept between runs: embeddings of training texts, results of int8's quality check."""

from __future__ import annotations

import os
from pathlib import Path

TRIAL = b"fastflow trial 1\n"  # the first bytes of a cached trial of int8
OWN = 0o600  # file mode in the cache: embeddings may reveal texts


def cache_directory(given: str | Path | None = None) -> Path:
    """Return ``given``, or fastflow's folder in the user's cache; RuntimeError without a home directory."""
    if given is not None:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastflow"
