"""The tokenizer: texts -> token ids without padding."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.late import late
from fastflow.model.encoder import read_config, whole_number
from fastflow.model.tokenizer.files import NotNativeError, SavedTokenizer, lowercase_first, read_saved
from fastflow.values import MOST, panics, reason

if TYPE_CHECKING:
    from fastflow.kernels.tokens import CompiledTokenizer as Compiled
    from fastflow.model.tokenizer.cuts import LongTexts
    from fastflow.model.tokenizer.native import Native

SURROGATE = re.compile("[\ud800-\udfff]")
LONGEST_WORD = 1000
UNKNOWN = ("[UNK]", "<unk>")


class Tokens(NamedTuple):
    """B texts as N token ids: text i has ids[offsets[i]:offsets[i+1]]; ``cut``: numbers of texts cut at max_length.

    The first ``skip`` tokens of every text, its prompt, are not pooled. ``seconds`` (B,): the tokens of a pair's first
    segment, before those of the second; None: texts have one segment.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    cut: NDArray[np.int64]
    skip: int = 0
    seconds: NDArray[np.int64] | None = None

    def select(self, rows: NDArray[np.integer[Any]]) -> Tokens:
        if len(rows) == 1 == len(self.offsets) - 1:
            return self
        lengths = (self.offsets[1:] - self.offsets[:-1])[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        lengths.cumsum(out=offsets[1:])
        source = np.arange(offsets[-1]) + (self.offsets[:-1][rows] - offsets[:-1]).repeat(lengths)
        cut = np.flatnonzero(np.isin(rows, self.cut)) if len(self.cut) else self.cut
        seconds = None if self.seconds is None else self.seconds[rows]
        return Tokens(self.ids[source], offsets, cut, self.skip, seconds)

    def check(self, vocabulary: int) -> None:
        if len(self.ids) and not self.ids.view(np.uint32).max() < vocabulary:  # negative ids become large
            odd = self.ids[(self.ids < 0) | (self.ids >= vocabulary)][0]
            raise FastflowError(f"a text has the token id {odd}; the encoder's vocabulary is 0 to {vocabulary - 1}")

    def batches(self, texts: int, tokens: int) -> Iterator[NDArray[np.int64]]:
        """Yield batches of text numbers, longest first, with at most ``tokens`` tokens, padding counted."""
        lengths = self.offsets[1:] - self.offsets[:-1]
        order = (-lengths).argsort(kind="stable")
        start = 0
        while start < len(order):
            count = max(1, min(texts, tokens // max(1, int(lengths[order[start]]))))
            yield order[start : start + count]
            start += count


class Piece(NamedTuple):
    """A token and its characters ``start`` to ``stop``; an added special token has no characters."""

    id: int
    text: str
    special: bool
    start: int
    stop: int


class Tokenizer:
    """A saved tokenizer with special tokens and a length limit; it never pads.

    ``lower``: lowercase texts first. ``proved``: saving the model has checked the ids. ``threads``: threads of the
    compiled tokenizer; None: all. ``runs``: "native", or "tokenizers" and the reason.
    """

    threads: int | None = None
    ended = True
    left_out: int | None = None
    longest = MOST

    def __init__(self, directory: Path, max_length: int, lower: bool = False, proved: bool = False) -> None:
        self.max_length = max_length
        self._open(directory, lower)
        if self._native is not None:
            inserted, ids = list(self._native.ends), [self._native.largest]
            added = len(inserted)
        else:
            with self._use():
                added = self._tokenizer.num_special_tokens_to_add(is_pair=False)
                inserted = self._tokenizer.encode("", add_special_tokens=True).ids
                ids = [] if proved else self._tokenizer.get_vocab(with_added_tokens=True).values()
        if not added or not inserted:  # an empty text would have no tokens
            raise FastflowError(
                f"{directory / 'tokenizer.json'}, field post_processor: adds no [CLS] or [SEP] to a text"
            )
        if len(inserted) > max_length:
            raise FastflowError(
                f"{directory}: the tokenizer adds {len(inserted)} tokens to a text, of {max_length} at most"
            )
        self._check_dropout()
        self._check_ids(max([*ids, *inserted]))

    def _open(self, directory: Path, lower: bool = False) -> None:
        self._directory, self._lower = directory, lower
        self._saved: SavedTokenizer = read_saved(directory)
        self._native: Native | None = None
        try:
            from fastflow.model.tokenizer.native import read_native

            self._native, self.runs = read_native(self._saved.data, lower, self._saved.settings), "native"
        except (ImportError, NotNativeError) as error:
            absent = isinstance(error, ImportError)
            self.runs = f"tokenizers: {'the compiled kernels are not installed' if absent else error}"
            _ = self._library

    @late
    def _library(self) -> Any:
        library = self._saved.library()
        if self._lower:
            lowercase_first(library)
        return library

    @late
    def _tokenizer(self) -> Any:
        with self._use():
            self._library.no_padding()
            if self.max_length < MOST:
                self._library.enable_truncation(self.max_length)
            else:
                self._library.no_truncation()
        return self._library

    @late
    def _uncut(self) -> Any:
        uncut = type(self._tokenizer).from_str(self._tokenizer.to_str())
        uncut.no_truncation()
        return uncut

    @late
    def _long(self) -> LongTexts:
        from fastflow.model.tokenizer.cuts import LongTexts

        return LongTexts(self._tokenizer, self.max_length)

    @contextmanager
    def _use(self) -> Iterator[None]:
        try:
            with panics():
                yield
        except Exception as error:
            raise FastflowError(f"{self._directory}: the tokenizer cannot be used: {reason(error)}") from error

    @late
    def size(self) -> int:
        if self._native is not None:
            return self._native.size
        with self._use():
            return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @late
    def _specials(self) -> dict[int, str]:
        if self._native is not None:
            return self._native.special
        known = self._tokenizer.get_added_tokens_decoder()
        return {i: known[i].content for i in sorted(known) if known[i].special}

    @property
    def compiled(self) -> Compiled | None:
        return None if self._native is None else self._native.tokenizer

    @property
    def special(self) -> list[str]:
        return list(self._specials.values())

    def _check_dropout(self) -> None:
        if self._native is None and getattr(self._tokenizer.model, "dropout", None):  # BPE would merge at random
            raise FastflowError(
                f"{self._directory / 'tokenizer.json'}, field dropout: must be null, for it merges at random"
            )

    def _check_ids(self, largest: int) -> None:
        known = whole_number(read_config(self._directory), "vocab_size", self._directory)
        said = f"more than the {known:,} of the encoder's vocabulary"
        if self.size > known:
            raise FastflowError(f"{self._directory}: the tokenizer has {self.size:,} entries, {said}")
        if largest >= known:
            raise FastflowError(f"{self._directory}: the tokenizer gives token ids up to {largest:,}, {said}")

    def __call__(self, texts: Sequence[str]) -> Tokens:
        if self._native is None:
            return self._by_library(texts)
        try:
            return Tokens(*self._native.tokenizer.tokenize(texts, self.max_length, self.ended, self.threads))
        except ValueError as error:
            raise no_utf8(texts) from error

    def _by_library(self, texts: Sequence[str]) -> Tokens:
        heads = [self._head(text) if len(text) > self._long.size else text for text in texts]
        rows, cut = [np.empty(0, np.int32)], []
        for start, stop in self._long.together(heads):
            for i, encoding in enumerate(self._encode(heads[start:stop]), start):
                if heads[i] is not texts[i] and not self._is_cut(encoding):
                    encoding = self._encode([self._long.enough(texts[i], self._is_full)])[0]
                rows.append(np.array(encoding.ids, np.uint32).view(np.int32))
                cut += [i] if self._is_cut(encoding) else []
        offsets = np.cumsum([len(row) for row in rows], dtype=np.int64)
        return Tokens(np.concatenate(rows), offsets, np.array(cut, np.int64))

    def _head(self, text: str) -> str:
        if not text.isascii() and SURROGATE.search(text):
            raise no_utf8([text])
        return self._long.head(text)

    def _is_full(self, text: str) -> bool:
        return self._is_cut(self._encode([text])[0])

    def _is_cut(self, encoding: Any) -> bool:
        return len(encoding) == self.max_length and bool(encoding.overflowing)

    def _encode(self, texts: Sequence[str]) -> list[Any]:
        return self._check(self._tokenizer.encode_batch_fast, texts, self.ended)

    def _check(self, encode: Callable[..., list[Any]], texts: Sequence[str], special: bool) -> list[Any]:
        try:
            with panics():
                return encode(list(texts), add_special_tokens=special)
        except TypeError as error:  # half a surrogate pair
            raise no_utf8(texts) from error
        except Exception as error:  # such as an unknown word without a token [UNK]
            raise FastflowError(f"{self._directory}: the tokenizer cannot take a text: {reason(error)}") from error

    def tokenize_prompted(self, texts: Sequence[str], prompt: str, pooled: bool) -> Tokens:
        """Tokenize ``prompt`` before each text; ``pooled`` false excludes its tokens from the pooling."""
        tokens = self([prompt + text for text in texts])
        return tokens._replace(skip=self.prompt_tokens(prompt)) if prompt and not pooled else tokens

    def prompt_tokens(self, prompt: str) -> int:
        """Count the tokens of ``prompt`` and the special tokens before it."""
        ids = self([prompt]).ids
        return len(ids) - int(ids[-1] in self._specials)

    def describe(self, texts: Sequence[str], special: bool = True) -> list[list[Piece]]:
        """Return the uncut tokens of each text; ``special``: also special tokens at its ends."""
        encodings = self._check(self._uncut.encode_batch, texts, special)
        return [
            [
                Piece(i, piece, i in self._specials, *span)
                for i, piece, span in zip(e.ids, e.tokens, e.offsets, strict=True)
            ]
            for e in encodings
        ]

    def pieces(self, words: Sequence[str]) -> tuple[int, int]:
        """Count all pieces and unknown pieces of ``words``, each tokenized as inside a text."""
        texts = [f" {word[:LONGEST_WORD]}" for word in words]
        if self._native is not None:
            ids, _, _ = self._native.tokenizer.tokenize(texts, self.max_length, special=False, threads=self.threads)
            unknown = [self._native.id_of(name) for name in UNKNOWN]
        else:
            encodings = self._check(self._tokenizer.encode_batch_fast, texts, False)
            unknown = [self._tokenizer.token_to_id(name) for name in UNKNOWN]
            ids = np.array([i for encoding in encodings for i in encoding.ids], np.int64)
        return len(ids), int(np.isin(ids, [i for i in unknown if i is not None]).sum())


def no_utf8(texts: Sequence[str]) -> FastflowError:
    """Return the error for half a surrogate pair."""
    found = next((half, text) for text in texts if (half := SURROGATE.search(text)))
    shown = found[1][max(0, found[0].start() - 20) :]
    return FastflowError(f"a text holds half a surrogate pair and has no UTF-8 form: {shown[:80]!r:.80}")
