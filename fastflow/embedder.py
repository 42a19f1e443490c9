"""A Runtime as a model of KeyBERT, BERTopic and LangChain.

KeyBERT and BERTopic load a model of their own, without a word, if the one given is neither an instance of their
BaseEmbedder nor of a library that they know by its name. So a Runtime is an instance once they are imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastflow.types import Matrix, Vector

BASES = ("keybert.backend", "bertopic.backend")  # the modules that have a BaseEmbedder


@cache
def kind_of(own: type, bases: tuple[type, ...]) -> type:
    """A class that is ``own`` and each of ``bases``; only isinstance looks at it."""
    return type(own.__name__, (own, *bases), {"__module__": own.__module__, "__doc__": own.__doc__})


class Embedder:
    """The calls of those libraries' models."""

    encode: Any
    encode_query: Any
    encode_document: Any

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        bases = tuple(sys.modules[name].BaseEmbedder for name in BASES if name in sys.modules)
        return kind_of(type(self), bases) if bases else type(self)  # type: ignore[arg-type]

    def embed(self, documents: Iterable[str], verbose: bool = False) -> Matrix:
        """``encode``, as KeyBERT calls it.

        Args:
            documents: B texts.
            verbose: Whether to show progress.

        Returns:
            (B, D').

        Raises:
            FastflowError: As ``encode``.
        """
        found: Matrix = self.encode(list(documents), show_progress_bar=verbose)
        return found

    def embed_words(self, words: Iterable[str], verbose: bool = False) -> Matrix:
        """``encode``, as BERTopic calls it for the words of topics.

        Args:
            words: B words.
            verbose: Whether to show progress.

        Returns:
            (B, D').

        Raises:
            FastflowError: As ``encode``.
        """
        return self.embed(words, verbose)

    def embed_documents(self, document: Iterable[str], verbose: bool = False) -> Matrix:
        """``encode_document``, as BERTopic and LangChain call it.

        Args:
            document: B texts.
            verbose: Whether to show progress.

        Returns:
            (B, D').

        Raises:
            FastflowError: As ``encode``.
        """
        found: Matrix = self.encode_document(list(document), show_progress_bar=verbose)
        return found

    def embed_query(self, text: str) -> Vector:
        """``encode_query``, as LangChain calls it.

        Args:
            text: A text.

        Returns:
            (D',).

        Raises:
            FastflowError: As ``encode``.
        """
        found: Vector = self.encode_query(text)
        return found
