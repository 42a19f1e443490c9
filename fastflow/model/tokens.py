"""texts -> packed token ids, through the ``tokenizers`` library."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.model.architecture import read_config, whole_number
from fastflow.model.bombs import read_tokenizer_file
from fastflow.values import panics, read_object, reason, short

SURROGATE = re.compile("[\ud800-\udfff]")
LONGEST_WORD = 1000  # letters of a word that are looked at, to judge the vocabulary
UNKNOWN = ("[UNK]", "<unk>")  # the unknown token in BERT's and in SentencePiece's vocabularies


class Tokens(NamedTuple):
    """B texts as N token ids: text i owns ids[offsets[i]:offsets[i+1]]; ``cut`` numbers the texts cut at max_length.

    ``skip`` tokens at the head of every text, those of a prompt, are left out of the pooling.
    """

    ids: NDArray[np.int32]  # (N,)
    offsets: NDArray[np.int64]  # (B+1,)
    cut: NDArray[np.int64]
    skip: int = 0

    def select(self, rows: NDArray[np.integer[Any]]) -> Tokens:
        """The texts numbered ``rows``, in that order."""
        lengths = np.diff(self.offsets)[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        source = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths) + np.repeat(self.offsets[:-1][rows], lengths)
        return Tokens(self.ids[source], offsets, np.flatnonzero(np.isin(rows, self.cut)), self.skip)

    def check(self, vocabulary: int) -> None:
        """Raise a FastflowError for an id that an embedding table of ``vocabulary`` rows lacks."""
        if len(self.ids) and not (self.ids.min() >= 0 and self.ids.max() < vocabulary):
            odd = self.ids[(self.ids < 0) | (self.ids >= vocabulary)][0]
            raise FastflowError(f"a text has the token id {odd}; the encoder's vocabulary is 0 to {vocabulary - 1}")

    def batches(self, texts: int, tokens: int) -> Iterator[NDArray[np.int64]]:
        """Row numbers, longest text first, cut so that a batch holds at most ``texts`` texts and ``tokens`` tokens.

        Tokens are counted as if padded to the batch's longest, as a padded backend computes them.
        """
        lengths = np.diff(self.offsets)
        order = np.argsort(-lengths, kind="stable")
        start = 0
        while start < len(order):
            count = max(1, min(texts, tokens // max(1, int(lengths[order[start]]))))
            yield order[start : start + count]
            start += count


class Piece(NamedTuple):
    """A token, and the characters ``start`` to ``stop`` of its text; a special one that was added has none."""

    id: int
    text: str
    special: bool
    start: int
    stop: int


class Tokenizer:
    """A saved tokenizer with its special tokens and a length limit; no padding is ever made.

    ``lower``: texts are lowercased first, as Sentence Transformers does for do_lower_case. ``proved``: the files have
    the hashes of an export that loaded them, so not every id of the vocabulary is looked at again; kernels refuse one
    that has no row.
    """

    def __init__(self, directory: Path, max_length: int, lower: bool = False, proved: bool = False) -> None:
        from fastflow.model.long_texts import LongTexts

        self.max_length, self._directory = max_length, directory
        self._tokenizer = load_tokenizer(directory)
        self._long = LongTexts(self._tokenizer, max_length)
        self._uncut: Any = None  # the same without a limit, made when first asked for
        if lower:
            lowercase_first(self._tokenizer)
        try:
            with panics():
                self._tokenizer.no_padding()
                self._tokenizer.enable_truncation(max_length)
                added = self._tokenizer.num_special_tokens_to_add(is_pair=False)
                inserted = self._tokenizer.encode("", add_special_tokens=True).ids
                self.size = self._tokenizer.get_vocab_size(with_added_tokens=True)
                ids = [] if proved else self._tokenizer.get_vocab(with_added_tokens=True).values()
        except Exception as error:  # as in load_tokenizer
            raise FastflowError(f"{directory}: the tokenizer cannot be used: {reason(error)}") from error
        if not added or not inserted:  # an empty text would have no token to pool
            raise FastflowError(f"{directory / 'tokenizer.json'} adds no [CLS] or [SEP]: it has no post-processor")
        if len(inserted) > max_length:
            raise FastflowError(
                f"{directory}: the tokenizer adds {len(inserted)} tokens to a text, of {max_length} at most"
            )
        if getattr(self._tokenizer.model, "dropout", None):  # of BPE, for training: ids would differ by chance
            raise FastflowError(f"{directory / 'tokenizer.json'}, field dropout: must be null, for it merges at random")
        self._check_ids(max([*ids, *inserted]))

    @property
    def special(self) -> list[str]:
        """The special tokens as they are written, in the order of their ids."""
        known = self._tokenizer.get_added_tokens_decoder()
        return [known[i].content for i in sorted(known) if known[i].special]

    def _check_ids(self, largest: int) -> None:
        """Raise if the encoder's table has no row for each entry, or none for the ``largest`` id there is."""
        known = whole_number(read_config(self._directory), "vocab_size", self._directory)
        said = f"more than the {known} of the encoder's vocabulary"
        if self.size > known:
            raise FastflowError(f"{self._directory}: the tokenizer has {self.size} entries, {said}")
        if largest >= known:
            raise FastflowError(f"{self._directory}: the tokenizer gives token ids up to {largest}, {said}")

    def __call__(self, texts: Sequence[str]) -> Tokens:
        """Tokenize ``texts``; each gets [CLS] ... [SEP] or its model's equivalents.

        Raises a FastflowError for a text that the tokenizer cannot take.
        """
        heads = [self._head(text) if len(text) > self._long.size else text for text in texts]
        rows, cut = [np.empty(0, np.int32)], []
        for start, stop in self._long.together(heads):
            for i, encoding in enumerate(self._encoded(heads[start:stop]), start):
                if heads[i] is not texts[i] and not self._is_cut(encoding):
                    encoding = self._encoded([self._long.enough(texts[i], self._is_full)])[0]
                rows.append(np.array(encoding.ids, np.int32))
                cut += [i] if self._is_cut(encoding) else []
        offsets = np.cumsum([len(row) for row in rows], dtype=np.int64)
        return Tokens(np.concatenate(rows), offsets, np.array(cut, np.int64))

    def _head(self, text: str) -> str:
        """The start of a long text that is tokenized first; raises a FastflowError if the text has no UTF-8 form."""
        if not text.isascii() and (half := SURROGATE.search(text)):
            raise no_utf8(text[max(0, half.start() - 20) :])
        return self._long.head(text)

    def _is_full(self, text: str) -> bool:
        return self._is_cut(self._encoded([text])[0])

    def _is_cut(self, encoding: Any) -> bool:
        return len(encoding) == self.max_length and bool(encoding.overflowing)

    def _encoded(self, texts: Sequence[str]) -> list[Any]:
        """The library's encodings, cut at ``max_length``; raises a FastflowError for a text that it cannot take."""
        return self._checked(self._tokenizer.encode_batch_fast, texts, True)

    def _checked(self, encode: Callable[..., list[Any]], texts: Sequence[str], special: bool) -> list[Any]:
        try:
            with panics():
                return encode(list(texts), add_special_tokens=special)
        except TypeError as error:  # half a surrogate pair is the one str that the library cannot take
            raise no_utf8(next(filter(SURROGATE.search, texts), "")) from error
        except Exception as error:  # a bare Exception, such as for an unknown word if there is no [UNK]
            raise FastflowError(f"{self._directory}: the tokenizer cannot take a text: {reason(error)}") from error

    def prompted(self, texts: Sequence[str], prompt: str, pooled: bool) -> Tokens:
        """``texts`` with ``prompt`` before each; ``pooled`` false leaves its tokens out of the pooling."""
        tokens = self([prompt + text for text in texts])
        return tokens._replace(skip=self.prompt_tokens(prompt)) if prompt and not pooled else tokens

    def prompt_tokens(self, prompt: str) -> int:
        """The tokens of ``prompt`` alone, the special ones at its head included and one at its end not."""
        ids = self([prompt]).ids
        special = [i for i, token in self._tokenizer.get_added_tokens_decoder().items() if token.special]
        return len(ids) - int(ids[-1] in special)

    def describe(self, texts: Sequence[str], special: bool = True) -> list[list[Piece]]:
        """The tokens of each text, uncut, and with ``special`` the ones that the encoder's input begins and ends with.

        Raises as a call does.
        """
        if self._uncut is None:
            self._uncut = type(self._tokenizer).from_str(self._tokenizer.to_str())
            self._uncut.no_truncation()
        known = {i for i, token in self._uncut.get_added_tokens_decoder().items() if token.special}
        encodings = self._checked(self._uncut.encode_batch, texts, special)
        return [
            [Piece(i, piece, i in known, *span) for i, piece, span in zip(e.ids, e.tokens, e.offsets, strict=True)]
            for e in encodings
        ]

    def pieces(self, words: Sequence[str]) -> tuple[int, int]:
        """How many pieces ``words`` fall into, each as it would inside a text, and how many are the unknown token."""
        encodings = self._tokenizer.encode_batch_fast(
            [f" {word[:LONGEST_WORD]}" for word in words], add_special_tokens=False
        )
        unknown = {self._tokenizer.token_to_id(name) for name in UNKNOWN}
        ids = [i for encoding in encodings for i in encoding.ids]
        return len(ids), sum(i in unknown for i in ids)


class Loading:
    """A tokenizer that a thread of its own makes by ``make``; calling this waits, and raises what ``make`` raised.

    The library reads a vocabulary without holding the interpreter, so that weights are packed in the same time.
    """

    def __init__(self, make: Callable[[], Tokenizer]) -> None:
        self._make = make
        self._found: Tokenizer | BaseException
        self._thread = Thread(target=self._run, name="fastflow-tokenizer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found = self._make()
        except BaseException as error:  # raised again where it is waited for
            self._found = error

    def __call__(self) -> Tokenizer:
        """The tokenizer."""
        self._thread.join()
        if isinstance(self._found, BaseException):
            raise self._found
        return self._found


def no_utf8(text: str) -> FastflowError:
    """The error for a text that holds half a surrogate pair."""
    return FastflowError(f"a text holds half a surrogate pair and has no UTF-8 form: {text[:80]!r:.80}")


def lowercase_first(tokenizer: Any) -> None:
    """Put Lowercase before the normalizer of ``tokenizer`` if none is in it."""
    from tokenizers import normalizers

    found: Any = tokenizer.normalizer
    parts: list[Any] = [] if found is None else [found]
    if isinstance(found, normalizers.Sequence):
        parts = [found[i] for i in range(len(found))]  # type: ignore[index, arg-type]
    if not any(isinstance(part, normalizers.Lowercase) for part in parts):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *parts])


def load_tokenizer(directory: Path) -> Any:
    """The ``tokenizers.Tokenizer`` of a Hugging Face directory: tokenizer.json, else BERT's vocab.txt."""
    import tokenizers

    saved, vocabulary = directory / "tokenizer.json", directory / "vocab.txt"
    if saved.is_file():
        data = read_tokenizer_file(saved)
        try:
            with panics():
                return tokenizers.Tokenizer.from_buffer(data)  # from_file parses a third slower
        except Exception as error:  # the library raises a bare Exception for every malformed file
            raise FastflowError(f"{saved} cannot be read as a tokenizer: {reason(error)}") from error
    if vocabulary.is_file():
        return _wordpiece(vocabulary, directory / "tokenizer_config.json")
    raise FastflowError(
        f"{directory} has no tokenizer: neither tokenizer.json nor vocab.txt is there; save it with "
        "AutoTokenizer.from_pretrained(...).save_pretrained(DIR)"
    )


def _wordpiece(vocabulary: Path, config: Path) -> Any:
    """BERT's tokenizer from a vocabulary of one word piece a line (transformers 5 no longer reads such a file)."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    settings = read_object(config) if config.is_file() else {}
    for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars"):
        value = settings.get(name, True)
        if not isinstance(value, bool) and not (name == "strip_accents" and value is None):
            raise FastflowError(f"{config}, field {name}: must be true or false, not {short(value)}")
    try:
        lines = vocabulary.read_text(encoding="utf-8").removesuffix("\n").split("\n")  # splitlines would cut at U+2028
    except (OSError, ValueError) as error:
        raise FastflowError(f"{vocabulary} cannot be read: {error}") from error
    pieces = {piece: i for i, piece in enumerate(lines)}
    if missing := [piece for piece in ("[UNK]", "[CLS]", "[SEP]") if piece not in pieces]:
        raise FastflowError(f"{vocabulary} lacks {', '.join(missing)}: it is not a BERT vocabulary")
    if "<s>" in pieces and "</s>" in pieces:  # MPNet's, in which [CLS] and [SEP] are words like any other
        raise FastflowError(
            f"{vocabulary} is not a BERT vocabulary: it has <s> and </s>; save the tokenizer with "
            "AutoTokenizer.from_pretrained(...).save_pretrained(DIR)"
        )
    tokenizer = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=settings.get("do_lower_case", True),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([t for t in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if t in pieces])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", pieces["[CLS]"]), ("[SEP]", pieces["[SEP]"])]
    )
    return tokenizer
