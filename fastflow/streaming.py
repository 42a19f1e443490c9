"""How ``Runtime.stream`` cuts texts into blocks: its options, checked, and the windows of texts they ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from fastflow.errors import UsageError
from fastflow.model.kinds import Model, VectorModel
from fastflow.model.tokens import Tokenizer, Tokens
from fastflow.stages.texts import check_text
from fastflow.stages.vectors import check_count, check_precision, check_ranges, check_truncation
from fastflow.values import short

WINDOW = 4096  # texts that stream() holds and sorts by length at a time
CHARACTERS = 1 << 24  # in a window: fewer texts if they are long: 16 to 64 MB
Item = TypeVar("Item")


def windowed(items: Iterator[Item], size: int, characters: Callable[[Item], int]) -> Iterator[list[Item]]:
    """``items`` in windows of ``size``; one whose items have CHARACTERS characters ends there."""
    window: list[Item] = []
    held = 0
    for item in items:
        window.append(item)
        held += characters(item)
        if len(window) == size or held >= CHARACTERS:
            yield window
            window, held = [], 0
    if window:
        yield window


class StreamOptions(NamedTuple):
    """The options of ``Runtime.stream``, which explains them."""

    batch_size: int | None = None
    normalize_embeddings: bool = False
    precision: str = "float32"
    truncate_dim: int | None = None
    prompt: str | None = None
    batch_tokens: int | None = None
    window: int | None = None
    prompt_name: str | None = None
    ranges: Any = None
    pooled: bool = True  # whether the tokens of the prompt are pooled

    def check(self, dim: int) -> None:
        """Raise a UsageError for options that are wrong for every model whose embeddings have ``dim`` dimensions:
        counts, precision, the prompt's type, a truncate_dim above ``dim``. ``settled`` checks the rest.
        """
        for name in ("batch_size", "batch_tokens", "window"):
            check_count(name, getattr(self, name))
        check_truncation(self.truncate_dim, dim)
        check_precision(self.precision)
        if not isinstance(self.prompt, str | None):
            raise UsageError(f"prompt must be a text, not {short(self.prompt)}")

    def settled(self, dim: int, model: Model | VectorModel) -> StreamOptions:
        """The options as ``model``, of ``dim`` dimensions, completes them. Raises as ``check`` does."""
        self.check(dim)
        kept = model.truncate_dim if self.truncate_dim is None else self.truncate_dim
        return self._replace(
            prompt=model.prompts.resolve(self.prompt, self.prompt_name),
            pooled=model.prompts.pooled,
            truncate_dim=kept,
            ranges=check_ranges(self.ranges, self.precision, kept or dim),
        )

    @property
    def size(self) -> int:
        """The texts of a window."""
        return WINDOW if self.window is None else self.window

    def texts(self, texts: Iterator[str], seen: Callable[[list[str]], object]) -> Iterator[list[str]]:
        """A window of ``texts`` after another, each of which ``seen`` gets."""
        for window in windowed((check_text(t, i) for i, t in enumerate(texts)), self.size, len):
            seen(window)
            yield window

    def windows(
        self, texts: Iterator[str], tokenize: Tokenizer, seen: Callable[[list[str]], object]
    ) -> Iterator[Tokens]:
        """The tokens of a window of texts after another, the prompt before each; ``seen`` gets them without it."""
        for window in self.texts(texts, seen):
            yield tokenize.prompted(window, self.prompt or "", self.pooled)
