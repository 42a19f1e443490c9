"""txtai: vectors for its Embeddings; ``path`` is a Runtime, a path, a Hub id, or None for the packaged model.

>>> from txtai import Embeddings
>>> embeddings = Embeddings(method="fastflow.integrations.txtai.FastflowVectors", path=None)
>>> embeddings.index(["A cat sat.", "Shares fell."])
>>> embeddings.search("kitten", 1)[0][0]
0
"""

from __future__ import annotations

from typing import Any

from fastflow.integrations.adapter import StoreModel, check_fingerprint, library

with library("txtai"):
    from txtai.vectors import Vectors


class FastflowVectors(Vectors):
    """Embeds for an index, which opens the same model again and refuses another."""

    def loadmodel(self, path: Any) -> StoreModel:
        found = StoreModel(path)
        check_fingerprint(found.runtime, self.config.setdefault("fingerprint", found.runtime.fingerprint))
        self.config["path"] = found.settings()["model"]
        return found

    def encode(self, data: list[str], category: str | None = None) -> Any:
        """Embed B texts, (B, dim), as queries or documents."""
        runtime = self.model.runtime
        return runtime.encode_query(data) if category == "query" else runtime.encode_document(data)
