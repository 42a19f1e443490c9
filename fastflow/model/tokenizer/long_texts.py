"""Texts far longer than the encoder's input: a shorter one with the same tokens is tokenized in their place.

The library tokenizes a text whole and cuts it afterwards, which takes up to 320 bytes of memory for each of its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fastflow.errors import FastflowError
from fastflow.late import late

if TYPE_CHECKING:
    from fastflow.model.tokenizer.cuts import Cuts

SHARE = 16  # characters of a text that are tokenized first, for each token of the limit; English has 4 to 5 a token
LEAST = 1024  # characters that are never too many
WINDOW = 2**16  # characters read at a time of a text whose first ones hold too few tokens
GROW = 4  # times as many in the next try
LONGEST = 2**20  # characters of a text that are tokenized at once, at most
TOGETHER = 2**18  # characters of several texts that are tokenized at once
NEAR = (64, 2048)  # characters before the end in which a cut is looked for first


class LongTexts:
    """The texts of more than ``size`` characters, for a tokenizer that is limited to ``max_length`` tokens."""

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self.size = max(LEAST, SHARE * max_length)
        self._tokenizer = tokenizer

    @late
    def _cuts(self) -> Cuts | None:
        from fastflow.model.tokenizer.cuts import find_cuts  # when the first long text comes

        return find_cuts(self._tokenizer)

    def together(self, texts: Sequence[str]) -> Iterator[tuple[int, int]]:
        """(start, stop) of texts that are tokenized in one call: of TOGETHER characters at most, or a single text."""
        start = held = 0
        for i, text in enumerate(texts):
            held += len(text)
            if held > TOGETHER and i > start:
                yield start, i
                start, held = i, len(text)
        if texts:
            yield start, len(texts)

    def head(self, text: str) -> str:
        """The start of a long text up to a cut, "" if it has none; its tokens are the first ones of ``text``."""
        if self._cuts is None and len(text) <= LONGEST:
            return text
        return text[: last(self._cuts, text[: self.size])]

    def enough(self, text: str, is_full: Callable[[str], bool]) -> str:
        """A text with the tokens of ``text``, or of its start, if that ``is_full``: they are more than the limit.

        Raises a FastflowError if LONGEST characters do not suffice.
        """
        have, tried = "", self.size
        for start in range(0, len(text), WINDOW):
            part = text[start : start + WINDOW]
            have += self._shortened(part)
            if len(have) > LONGEST:
                raise FastflowError(
                    f"a text holds {LONGEST} characters that make fewer tokens than the limit, or that the tokenizer "
                    "cannot split safely: shorten the text"
                )
            if len(have) > tried and start + WINDOW < len(text):
                tried = GROW * len(have)
                if (end := last(self._cuts, have)) and is_full(have[:end]):
                    return have[:end]
        return have

    def _shortened(self, part: str) -> str:
        """A part of a text, with as much of each run of characters as its tokens depend on."""
        runs = self._cuts and self._cuts.runs
        return runs.sub(lambda run: run[run.lastindex or 0], part) if runs else part


def last(cuts: Cuts | None, text: str) -> int:
    """The last place in ``text`` where it may be cut; 0 if there is none."""
    if cuts is None:
        return 0
    for near in (*NEAR, len(text)):
        places = [match.start() for match in cuts.at.finditer(text, max(1, len(text) - near))]
        if places:
            return places[-1]
    return 0
