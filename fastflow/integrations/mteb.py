"""MTEB: a model for ``mteb.evaluate``.

>>> import mteb
>>> from fastflow.integrations.mteb import FastflowEncoder
>>> mteb.evaluate(FastflowEncoder("my-model"), mteb.get_tasks(tasks=["STS12"]))  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastflow.integrations.adapter import Source, ensure_runtime, library

with library("mteb"):
    from mteb.models import ModelMeta
    from mteb.types import PromptType

if TYPE_CHECKING:
    from fastflow.types import Matrix


class FastflowEncoder:
    """Embeds for tasks; ``model``: a Runtime, path or Hub id; None is the packaged model."""

    def __init__(self, model: Source = None, revision: str | None = None, **_: Any) -> None:
        self.runtime = ensure_runtime(model)
        path = self.runtime.session.model.path
        known = {"name": f"fastflow/{path.name}", "revision": self.runtime.fingerprint, "embed_dim": self.runtime.dim}
        self.mteb_model_meta = ModelMeta.create_empty(overwrites=known)

    def encode(
        self,
        inputs: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        **options: Any,
    ) -> Matrix:
        calls = {PromptType.query: self.runtime.encode_query, PromptType.document: self.runtime.encode_document}
        texts = [text for batch in inputs for text in batch["text"]]
        found: Matrix = calls.get(prompt_type, self.runtime.encode)(texts, **options)
        return found

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        return self.runtime.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        return self.runtime.similarity_pairwise(embeddings1, embeddings2)
