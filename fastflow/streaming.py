"""The texts of a call, checked, the options of ``Runtime.stream``, and the windows of texts that they ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any, NamedTuple, TypeVar

from fastflow.errors import FastflowError, UsageError
from fastflow.model.kinds import Model, VectorModel
from fastflow.model.tokenizer.encode import Tokenizer, Tokens
from fastflow.stages.vectors import check_count, check_precision, check_ranges, check_truncation
from fastflow.values import short

WINDOW = 4096  # texts that stream() holds and sorts by length at a time
CHARACTERS = 1 << 24  # in a window: fewer texts if they are long: 16 to 64 MB
Item = TypeVar("Item")


def one_of(inputs: Any, sentences: Any) -> Any:
    """The texts of ``encode``, given once, under the one name or the other; raises a UsageError otherwise."""
    if (inputs is None) == (sentences is None):
        raise UsageError("encode takes the texts once, as inputs")
    return sentences if inputs is None else inputs


def in_order(texts: Any) -> Iterator[Any]:
    """The items of ``texts`` in their order; raises a UsageError for an argument without an order."""
    if (
        isinstance(texts, str | bytes | Set | Mapping)
        or getattr(texts, "ndim", 1) != 1
        or not isinstance(texts, Iterable)
    ):
        raise UsageError(
            f"texts come as a list or another iterable of str in a fixed order, not as {type(texts).__name__}; "
            "pooled vectors go to transform()"
        )
    return iter(texts)


def check_text(text: Any, index: int) -> str:
    """``text`` itself; raises a FastflowError with its ``index`` for anything but a str."""
    if not isinstance(text, str):
        raise FastflowError(f"text {index} is {type(text).__name__}, not str; pooled vectors go to transform()")
    return text


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


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """``items`` in their order, each made by another thread while the one before is in use; errors come in their turn.

    One item at most is made too early: a caller that stops half-way leaves no more than that unused.
    """
    from concurrent.futures import ThreadPoolExecutor  # only a GPU backend overlaps: others start without it

    with ThreadPoolExecutor(1, thread_name_prefix="fastflow-ahead") as worker:
        coming = worker.submit(_next, items)
        while got := coming.result():
            coming = worker.submit(_next, items)
            yield got[0]


def _next(items: Iterator[Item]) -> tuple[()] | tuple[Item]:
    """(item,), or () at the end: StopIteration does not travel through a future."""
    for item in items:
        return (item,)
    return ()
