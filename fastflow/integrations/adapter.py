"""Models for all adapters, and checks of their fingerprints."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.model import Model, VectorModel
from fastflow.model.locate import is_same_model
from fastflow.runtime import Runtime
from fastflow.values import short

Source: TypeAlias = Runtime | str | os.PathLike[str] | Mapping[str, Any] | None


class MissingLibrary(FastflowError, ModuleNotFoundError):
    """Error: the library of an adapter is not installed."""


@contextmanager
def library(package: str) -> Iterator[None]:
    """Wrap an adapter's imports; a MissingLibrary names the command that installs ``package``."""
    try:
        yield
    except ModuleNotFoundError as error:
        sentence = f"this adapter needs {error.name}, which is not installed: run pip install {package}"
        raise MissingLibrary(sentence, name=error.name) from None


def ensure_runtime(model: Source) -> Runtime:
    """Return a Runtime as it is; open a path, a Hub id, ``StoreModel.settings``, or None, the packaged model.

    Raises a FastflowError if the settings' path has another model now.
    """
    if isinstance(model, Runtime):
        return model
    if not isinstance(model, Mapping):
        return Runtime(model)
    runtime = Runtime(model["model"], model["device"], model["dtype"])
    check_fingerprint(runtime, model["fingerprint"])
    return runtime


def check_fingerprint(runtime: Runtime, kept: str) -> None:
    """Raise a FastflowError unless ``runtime`` has the fingerprint ``kept``."""
    if not is_same_model(kept, runtime.fingerprint):
        raise FastflowError(
            f"the stored vectors are of the model {short(kept)}, and {runtime!r} is {runtime.fingerprint}: "
            "give the model that made them, or embed the texts again"
        )


class StoreModel:
    """A model for a vector store; vectors have length 1 if the model compares by cosine."""

    def __init__(self, model: Source) -> None:
        self.runtime = ensure_runtime(model)
        self.similarity = self.runtime.session.model.similarity

    def documents(self, texts: Iterable[str]) -> NDArray[Any]:
        """Embed B texts as documents, (B, dim)."""
        unit = self.similarity == "cosine"
        found: NDArray[Any] = self.runtime.encode_document(list(texts), normalize_embeddings=unit)
        return found

    def query(self, text: str) -> NDArray[Any]:
        """Embed a text as a query, (dim,)."""
        if not isinstance(text, str):
            raise UsageError(f"a query is one text, not {short(text)}")
        found: NDArray[Any] = self.runtime.encode_query(text, normalize_embeddings=self.similarity == "cosine")
        return found

    def settings(self) -> dict[str, Any]:
        """Return JSON settings for ``ensure_runtime``; raises a UsageError without a path."""
        model, device, dtype = (self.runtime._arguments[name] for name in ("model", "device", "dtype"))
        if isinstance(model, Model | VectorModel):
            raise UsageError("a library keeps a model by its path: open the Runtime from a path")
        place = None if model is None else str(model)
        return {"model": place, "device": device, "dtype": dtype, "fingerprint": self.runtime.fingerprint}

    def __reduce__(self) -> tuple[Any, ...]:
        return StoreModel, (self.settings(),)
