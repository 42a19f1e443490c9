"""Check texts and options of a call that embeds; cut texts into windows, which are in memory together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any, NamedTuple, TypeVar

from fastflow.errors import FastflowError, UsageError
from fastflow.model import Model, VectorModel
from fastflow.transforms.vectors import check_count, check_precision, check_ranges, check_truncation
from fastflow.values import short

MISSING = ("None", "nan", "<NA>", "NaT")
WINDOW = 4096  # texts in memory, and sorted by length, together
CHARACTERS = 1 << 24  # most characters in a window, 16 to 64 MB
Item = TypeVar("Item")


class Options(NamedTuple):
    """The options of ``Runtime.encode`` and ``Runtime.stream``, which explain them."""

    batch_size: int | None = None
    normalize_embeddings: bool = False
    precision: str = "float32"
    truncate_dim: int | None = None
    prompt: str | None = None
    batch_tokens: int | None = None
    window: int | None = None
    prompt_name: str | None = None
    ranges: Any = None

    def resolve(self, dim: int, model: Model | VectorModel) -> Options:
        for name in ("batch_size", "batch_tokens", "window"):
            check_count(name, getattr(self, name))
        check_truncation(self.truncate_dim, dim)
        check_precision(self.precision)
        if not isinstance(self.prompt, str | None):
            raise UsageError(f"prompt must be a text, not {short(self.prompt)}")
        kept = model.truncate_dim if self.truncate_dim is None else self.truncate_dim
        return self._replace(
            prompt=model.prompts.resolve(self.prompt, self.prompt_name),
            truncate_dim=kept,
            window=WINDOW if self.window is None else self.window,
            ranges=check_ranges(self.ranges, self.precision, kept or dim),
        )


PLAIN = Options()


def pick_texts(inputs: Any, sentences: Any) -> Any:
    """Return the texts, given as ``inputs`` or by the older name ``sentences``."""
    if (inputs is None) == (sentences is None):
        raise UsageError("encode takes the texts once, as inputs")
    return sentences if inputs is None else inputs


def iterate_in_order(texts: Any) -> Iterator[Any]:
    """Iterate over ``texts``; raise a UsageError if they have no order."""
    if type(texts) is not list and (
        isinstance(texts, str | bytes | Set | Mapping)
        or getattr(texts, "ndim", 1) != 1
        or not isinstance(texts, Iterable)
    ):
        raise UsageError(
            f"texts come as a list or another iterable of str in a fixed order, not as {type(texts).__name__}; "
            "pooled vectors go to transform()"
        )
    return iter(texts)


def check_texts(texts: Iterable[Any]) -> Iterator[str]:
    """Yield ``texts``; raise a FastflowError with the number of an item that is not a str."""
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            if str(text) in MISSING:
                raise FastflowError(f"text {i} is {text} (a missing value): fill or drop it")
            raise FastflowError(f"text {i} is {type(text).__name__}, not str; pooled vectors go to transform()")
        yield text


def cut_windows(items: Iterator[Item], size: int, characters: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yield lists of ``size`` items, or of fewer if they have CHARACTERS characters."""
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


def prefetch(items: Iterator[Item]) -> Iterator[Item]:
    """Yield ``items``; a thread makes the next item meanwhile."""
    from concurrent.futures import ThreadPoolExecutor  # only a GPU backend needs it

    with ThreadPoolExecutor(1, thread_name_prefix="fastflow-prefetch") as worker:
        coming = worker.submit(_take, items)
        while got := coming.result():
            coming = worker.submit(_take, items)
            yield got[0]


def _take(items: Iterator[Item]) -> tuple[()] | tuple[Item]:
    """Return (item,), or () at the end: a future cannot raise StopIteration."""
    for item in items:
        return (item,)
    return ()
